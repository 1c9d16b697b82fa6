"""The operations on which the rules of the squared pass are tested, with awkward sizes and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Probe(nn.Module):
    """op(x + p)."""

    def __init__(self, op: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.op = op
        self.p = nn.Parameter(0.3 * torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x + self.p)


class Bound(nn.Module):
    """An operation with bare parameters of its own."""

    def __init__(self, function: Callable[..., Tensor], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **dict(self.named_parameters()))


def randomised(module: nn.Module) -> nn.Module:
    """Fill affine parameters and running statistics, so that no one is hidden by a one or a zero."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.3, 0.8)
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.3, 2)
    return module


aten = torch.ops.aten
LINE, IMAGE, VOLUME = (4, 7), (4, 7, 5), (2, 5, 4, 3)
FEATURES = (6,)

CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    # linear maps
    "linear": (lambda: nn.Linear(6, 4), FEATURES),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), FEATURES),
    "linear over a sequence": (lambda: nn.Linear(7, 3), LINE),
    "linear over an image": (lambda: nn.Linear(5, 2), IMAGE),
    "matmul": (lambda: Bound(lambda x, w: x @ w, w=(6, 3)), FEATURES),
    "matmul from the left": (lambda: Bound(lambda x, w: w @ x, w=(3, 4)), LINE),
    "matmul with a vector": (lambda: Bound(lambda x, w: x @ w, w=(7,)), LINE),
    "matmul of a vector": (lambda: Bound(lambda x, w: w @ x.mT, w=(7,)), LINE),
    "matmul, broadcast": (lambda: Bound(lambda x, w: x @ w, w=(4, 5, 3)), IMAGE),
    "mm": (lambda: Bound(lambda x, w: torch.mm(x, w), w=(6, 3)), FEATURES),
    "mv": (lambda: Bound(lambda x, w: torch.mv(x, w), w=(6,)), FEATURES),
    "bmm": (lambda: Bound(lambda x, w: torch.bmm(x.transpose(0, 1), w).transpose(0, 1), w=(4, 7, 3)), LINE),
    "addmm": (lambda: Bound(lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=-2.0), w=(6, 3), b=(3,)), FEATURES),
    "einsum": (lambda: Bound(lambda x, w: torch.einsum("bcl,cko->bklo", x, w), w=(4, 3, 2)), LINE),
    "einsum, implicit": (lambda: Bound(lambda x, w: torch.einsum("bi,ij", x, w), w=(6, 2)), FEATURES),
    "transposed weight": (lambda: Bound(lambda x, w: F.linear(x, w.t()), w=(6, 3)), FEATURES),
    "parts of a weight": (
        lambda: Bound(lambda x, w: torch.cat([F.linear(x, part) for part in w.chunk(3)][::2], 1), w=(6, 6)), FEATURES),
    "reshaped part of a weight": (lambda: Bound(lambda x, w: x @ w[2:8].reshape(6, 1), w=(9,)), FEATURES),
    "elementwise function of a parameter": (lambda: Bound(lambda x, w: F.linear(x, F.softplus(w)), w=(2, 6)), FEATURES),
    # convolutions
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), LINE),
    "conv2d": (lambda: nn.Conv2d(4, 3, 3), IMAGE),
    "conv2d, everything": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2), groups=2), IMAGE),
    "conv2d, stride leaves a rest": (lambda: nn.Conv2d(4, 2, 2, stride=3), IMAGE),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False), IMAGE),
    "conv2d, same": (lambda: nn.Conv2d(4, 2, 3, padding="same"), IMAGE),
    "conv2d, same, even": (lambda: nn.Conv2d(4, 2, (2, 4), padding="same", dilation=(3, 1)), IMAGE),
    "conv2d, valid": (lambda: nn.Conv2d(4, 2, 3, padding="valid"), IMAGE),
    "conv2d, circular": (lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), IMAGE),
    "conv3d": (lambda: nn.Conv3d(2, 4, (3, 2, 1), stride=(2, 1, 1), padding=(1, 1, 0), groups=2), VOLUME),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2, groups=2), LINE),
    "conv_transpose2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2), IMAGE),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=(1, 2, 2), bias=False), VOLUME),
    # normalisation
    "batch_norm 1d": (lambda: nn.BatchNorm1d(6), FEATURES),
    "batch_norm 2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "batch_norm without affine": (lambda: nn.BatchNorm2d(4, affine=False), IMAGE),
    "layer_norm": (lambda: nn.LayerNorm(7), LINE),
    "layer_norm, two dimensions": (lambda: nn.LayerNorm((7, 5), eps=0.1), IMAGE),
    "layer_norm without affine": (lambda: nn.LayerNorm(6, elementwise_affine=False), FEATURES),
    "layer_norm without bias": (lambda: nn.LayerNorm(6, bias=False), FEATURES),
    "group_norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "group_norm, features": (lambda: nn.GroupNorm(3, 6, eps=0.2), FEATURES),
    "group_norm without affine": (lambda: nn.GroupNorm(2, 4, affine=False), LINE),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "instance_norm, running": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), LINE),
    "rms_norm": (lambda: nn.RMSNorm(7), LINE),
    "rms_norm, two dimensions": (lambda: nn.RMSNorm((7, 5), eps=0.3), IMAGE),
    "rms_norm without affine": (lambda: nn.RMSNorm(6, elementwise_affine=False), FEATURES),
    # pooling
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2, padding=1), LINE),
    "max_pool2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "max_pool2d, overlapping": (lambda: nn.MaxPool2d(3, 1, padding=1, dilation=2, ceil_mode=True), IMAGE),
    "max_pool3d": (lambda: nn.MaxPool3d(2, 1), VOLUME),
    "max_pool2d with indices": (lambda: lambda x: F.max_pool2d(x, 3, 2, return_indices=True)[0], IMAGE),
    "adaptive_max_pool1d": (lambda: nn.AdaptiveMaxPool1d(3), LINE),
    "adaptive_max_pool2d": (lambda: nn.AdaptiveMaxPool2d((4, 2)), IMAGE),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2, padding=1, count_include_pad=False), LINE),
    "avg_pool1d, plain": (lambda: nn.AvgPool1d(2), LINE),
    "avg_pool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "avg_pool2d, padding counted": (lambda: nn.AvgPool2d(3, 2, padding=1), IMAGE),
    "avg_pool2d, padding not counted": (lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), IMAGE),
    "avg_pool2d, ceil": (lambda: nn.AvgPool2d((3, 2), 2, ceil_mode=True), IMAGE),
    "avg_pool2d, ceil and padding": (lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), (4, 6, 4)),
    "avg_pool2d, divisor": (lambda: nn.AvgPool2d(3, 2, padding=1, divisor_override=5), IMAGE),
    "avg_pool3d": (lambda: nn.AvgPool3d(2, 1, padding=1, count_include_pad=False), VOLUME),
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(3), LINE),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "adaptive_avg_pool2d, global": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive_avg_pool2d, long windows": (lambda: nn.AdaptiveAvgPool2d((2, None)), (2, 13, 3)),
    "adaptive_avg_pool3d": (lambda: nn.AdaptiveAvgPool3d((2, 3, 1)), VOLUME),
    "max along a dimension": (lambda: lambda x: x.max(1)[0], LINE),
    "amax with ties": (lambda: lambda x: x.round().add(x - x).amax((1, 2)) + x.amax(-1)[:, 0], LINE),
    # resizing
    "nearest 1d": (lambda: nn.Upsample(scale_factor=2), LINE),
    "nearest 2d": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "nearest 2d, fractional": (lambda: nn.Upsample(scale_factor=1.6), IMAGE),
    "nearest 2d, smaller": (lambda: nn.Upsample(size=(9, 3)), IMAGE),
    "nearest 2d, exact": (lambda: nn.Upsample(scale_factor=1.5, mode="nearest-exact"), IMAGE),
    "nearest 3d": (lambda: nn.Upsample(scale_factor=(1, 2, 2)), VOLUME),
    "linear 1d": (lambda: nn.Upsample(scale_factor=2, mode="linear"), LINE),
    "linear 1d, aligned": (lambda: nn.Upsample(size=12, mode="linear", align_corners=True), LINE),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "bilinear, aligned": (lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), IMAGE),
    "bilinear, odd sizes": (lambda: nn.Upsample(size=(9, 11), mode="bilinear"), IMAGE),
    "bilinear, fractional": (lambda: nn.Upsample(scale_factor=1.7, mode="bilinear"), IMAGE),
    "bilinear, smaller": (lambda: nn.Upsample(size=(3, 2), mode="bilinear"), IMAGE),
    "bilinear, antialiased": (
        lambda: lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True), IMAGE),
    "trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), (1, 3, 2, 3)),
    "bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (2, 5, 4)),
    "bicubic, aligned": (lambda: nn.Upsample(size=(9, 3), mode="bicubic", align_corners=True), (2, 5, 4)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 4, 6)),
    # padding, shapes
    "pad, constant": (lambda: nn.ConstantPad2d((1, 2, 0, 3), 1.5), IMAGE),
    "pad, crop": (lambda: nn.ConstantPad2d((-1, 2, 0, -2), 0.0), IMAGE),
    "pad, reflect": (lambda: nn.ReflectionPad2d((3, 1, 2, 4)), IMAGE),
    "pad, replicate": (lambda: nn.ReplicationPad2d((3, 1, 2, 4)), IMAGE),
    "pad, circular": (lambda: nn.CircularPad2d((3, 1, 2, 4)), IMAGE),
    "flatten and back": (lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (5, 7, 4))), IMAGE),
    "permute": (lambda: lambda x: x.permute(0, 3, 1, 2).transpose(1, 2).contiguous().movedim(1, -1), IMAGE),
    "squeeze, unsqueeze, expand": (lambda: lambda x: x[:, :1].squeeze(1).unsqueeze(2).expand(-1, -1, 3), LINE),
    "cat": (lambda: lambda x: torch.cat([x, x[:, 1:3], x], 1), LINE),
    "stack": (lambda: lambda x: torch.stack([x[:, 0], x[:, 2]], 1), LINE),
    "split": (lambda: lambda x: torch.cat([*x.split([1, 3], 1)[::-1], x.split(2, 1)[0]], 1), LINE),
    "chunk, one part dropped": (lambda: lambda x: x.chunk(3, 2)[1], LINE),
    "unbind": (lambda: lambda x: x.unbind(1)[-2], LINE),
    "index": (lambda: lambda x: x[:, [0, 2, 2]], LINE),
    "flip and roll": (lambda: lambda x: x.flip(1).roll(2, 2), LINE),
    "repeat": (lambda: lambda x: x.repeat(1, 2, 3), LINE),
    "unfold (im2col)": (lambda: nn.Unfold((2, 3), padding=1, stride=2), IMAGE),
    "sum": (lambda: lambda x: x.sum(1), IMAGE),
    "sum over two": (lambda: lambda x: x.sum((-1, 1), keepdim=True), IMAGE),
    "cumsum": (lambda: lambda x: x.cumsum(1), LINE),
    "mean": (lambda: lambda x: x.mean((2, 3)), IMAGE),
    "mean, kept": (lambda: lambda x: x.mean(-1, keepdim=True), LINE),
    # operations that appear in decomposed graphs or under other names
    "native_layer_norm": (
        lambda: Bound(lambda x, w, b: aten.native_layer_norm(x, [7], w, b, 0.1)[0], w=(7,), b=(7,)), LINE),
    "native_group_norm": (
        lambda: Bound(lambda x, w, b: aten.native_group_norm(x, w, b, x.shape[0], 4, 35, 2, 0.1)[0], w=(4,), b=(4,)),
        IMAGE),
    "convolution": (
        lambda: Bound(
            lambda x, w, b: aten.convolution(x, w, b, [2, 1], [1, 1], [1, 2], False, [0, 0], 2),
            w=(2, 2, 3, 2), b=(2,)),
        IMAGE),
    "convolution, transposed": (
        lambda: Bound(lambda x, w: aten.convolution(x, w, None, [2], [1], [1], True, [1], 1), w=(4, 2, 3)), LINE),
    "baddbmm": (
        lambda: Bound(
            lambda x, w, b: torch.baddbmm(b, x.transpose(0, 1), w, beta=0.5, alpha=2).transpose(0, 1),
            w=(4, 7, 3), b=(3,)),
        LINE),
    "addmv": (lambda: Bound(lambda x, w, b: torch.addmv(b, x, w, beta=0.5, alpha=2), w=(6,), b=(1,)), FEATURES),
    "adaptive_max_pool3d": (lambda: nn.AdaptiveMaxPool3d(2), VOLUME),
    "_adaptive_avg_pool2d": (lambda: lambda x: aten._adaptive_avg_pool2d(x, [3, 2]), IMAGE),
    "_adaptive_avg_pool3d": (lambda: lambda x: aten._adaptive_avg_pool3d(x, [2, 3, 1]), VOLUME),
    "max_pool3d_with_indices": (lambda: lambda x: aten.max_pool3d_with_indices(x, [2, 2, 2], [1, 1, 1])[0], VOLUME),
    "nearest exact 1d": (lambda: nn.Upsample(scale_factor=1.5, mode="nearest-exact"), LINE),
    "nearest exact 3d": (lambda: nn.Upsample(size=(6, 2, 5), mode="nearest-exact"), VOLUME),
    "bicubic, antialiased": (lambda: lambda x: F.interpolate(x, size=(3, 4), mode="bicubic", antialias=True), IMAGE),
    "bilinear, sizes in the default overload": (
        lambda: lambda x: aten.upsample_bilinear2d.default(x, [9, 8], False, 1.3, 1.6), IMAGE),
    "min": (lambda: lambda x: torch.cat([x.min(1)[0], x.amin(1)], 1), LINE),
    "reflection_pad1d, constant_pad_nd": (
        lambda: lambda x: aten.constant_pad_nd(aten.reflection_pad1d(x, [2, 0]), [0, 1], 0.5), LINE),
    "reflection_pad2d": (lambda: lambda x: aten.reflection_pad2d(x, [1, 0, 2, 1]), IMAGE),
    "reflection_pad3d": (lambda: lambda x: aten.reflection_pad3d(x, [1, 0, 2, 1, 0, 1]), VOLUME),
    "replication_pad1d": (lambda: lambda x: aten.replication_pad1d(x, [1, 2]), LINE),
    "replication_pad2d": (lambda: lambda x: aten.replication_pad2d(x, [1, 2, 0, 1]), IMAGE),
    "replication_pad3d": (lambda: lambda x: aten.replication_pad3d(x, [1, 2, 0, 1, 1, 1]), VOLUME),
    "view": (lambda: lambda x: x[:, :2].contiguous().view(-1, 7, 2), LINE),
    "renamed views": (
        lambda: lambda x: aten._unsafe_view(x.swapaxes(1, 2).swapdims(1, 2).moveaxis(1, 2).narrow(1, 1, 4),
            [-1, 4, 2, 2]),
        LINE),
    "renamed copies": (
        lambda: lambda x: torch.hstack([torch.concat([x, x], 1), x[:, :1].expand_as(x), torch.concatenate([x, x], 1)]),
        LINE),
    "tensor_split, tile": (lambda: lambda x: x.tensor_split(2, 2)[1].tile(1, 2, 3), LINE),
    "unsafe chunk and split": (
        lambda: lambda x: torch.cat([torch.unsafe_chunk(x, 2, 1)[1], torch.unsafe_split(x, 3, 1)[0]], 1), LINE),
    "index_select, gather": (
        lambda: lambda x: torch.stack([x.index_select(1, torch.tensor([3, 0, 0, 1])), x.gather(1, (x > 0).long())], 1),
        LINE),
    "take_along_dim": (lambda: lambda x: torch.take_along_dim(x, x.argsort(2), 2), LINE),
    "repeat_interleave": (lambda: lambda x: x.repeat_interleave(2, 1).view_as(x.repeat(1, 2, 1)), LINE),
    "rot90, tril, triu": (lambda: lambda x: torch.cat([x.rot90(1, (1, 2)).tril(1), x.mT.triu(-2)], 1), LINE),
    "diagonal, unfold": (
        lambda: lambda x: torch.cat([x.diagonal(1, 1, 2).unsqueeze(1).reshape_as(x[:, :1, :4]),
            x.unfold(2, 4, 3)[:, 1]], 1),
        LINE),
    "scatter into a slice": (
        lambda: lambda x: torch.select_scatter(torch.slice_scatter(x, 2 * x[:, :2], 1, 1, 3), x[:, 0].exp(), 1, 3),
        LINE),
    "channel_shuffle": (lambda: lambda x: aten.channel_shuffle(x, 2), IMAGE),
    "overlap-add (col2im)": (lambda: nn.Fold((4, 3), 2, padding=(0, 1)), (8, 12)),
    "broadcast": (lambda: lambda x: aten.broadcast_to(x.unsqueeze(1), [x.shape[0], 2, 4, 7]), LINE),
    "identities": (lambda: lambda x: aten.alias(F.feature_alpha_dropout((-x).clone(), training=False)), LINE),
    # elementwise
    **{
        type(module).__name__: (lambda module=module: module, FEATURES)
        for module in (
            nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.Tanh(), nn.Sigmoid(), nn.Softplus(2.0), nn.ELU(1.3), nn.SELU(),
            nn.CELU(0.7), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(),
            nn.LogSigmoid(), nn.Softsign(), nn.Tanhshrink(), nn.Hardshrink(0.2), nn.Threshold(0.1, 2.0),
            nn.Dropout(0.5), nn.AlphaDropout(), nn.Identity(), nn.RReLU(),
        )
    },
    "GELU, tanh": (lambda: nn.GELU("tanh"), FEATURES),
    "ReLU, in place": (lambda: nn.ReLU(inplace=True), FEATURES),
    "Dropout2d": (lambda: nn.Dropout2d(), IMAGE),
    "PReLU": (lambda: nn.PReLU(), IMAGE),
    "PReLU per channel": (lambda: nn.PReLU(4), IMAGE),
    "GLU": (lambda: nn.GLU(1), IMAGE),
    "exp, sin, power": (lambda: lambda x: torch.exp(torch.sin(x)) ** 3, FEATURES),
    "clamp": (lambda: lambda x: x.clamp(-0.5, 0.7), FEATURES),
    "where": (lambda: lambda x: torch.where(x > 0.1, 2 * x, x**2), FEATURES),
    "masked_fill": (lambda: lambda x: x.masked_fill(x < 0, 0.0), FEATURES),
    "maximum": (lambda: lambda x: torch.maximum(x, 0.5 * x + 0.1), FEATURES),
    "minus": (lambda: lambda x: 3 - x, FEATURES),
    "add with alpha": (lambda: Bound(lambda x, b: torch.add(x, b, alpha=3.0), b=(4, 1)), LINE),
    "subtract with alpha": (lambda: Bound(lambda x, b: torch.sub(b, x, alpha=3.0), b=(7,)), LINE),
    "scale": (lambda: Bound(lambda x, g: x * g, g=(4, 1)), LINE),
    "scalar scale": (lambda: Bound(lambda x, g: g * x, g=()), LINE),
    "scale and shift by one parameter": (lambda: Bound(lambda x, g: x * g + g, g=(7,)), LINE),
    "division by a parameter": (lambda: Bound(lambda x, g: x / g, g=(4, 1)), LINE),
    "divided parameter": (lambda: Bound(lambda x, g: g / (x**2 + 1), g=(4, 1)), LINE),
    "times a constant": (lambda: lambda x: -2.5 * x / 3, FEATURES),
    "square": (lambda: lambda x: x * x, FEATURES),
    "doubled": (lambda: lambda x: x + x, FEATURES),
    "to another dtype and back": (lambda: lambda x: x.float().double() * 1.0, FEATURES),
}  # fmt: skip

"""Kronecker curvature (docs/method/kronecker.md): its definition by hooks and autograd, where it is exact, where it must not be."""

# ruff: noqa: E501 (tables: one case per line)

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import RTOL, assert_matches, built, dense_ggn, double
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from marquis.curvature.backward import walk
from marquis.curvature.ops import transposed_convolution
from networks import TiedAutoencoder, dense_autoencoder

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)


def block(dense: Tensor, model: nn.Module, name: str) -> Tensor:
    """One parameter's own block."""
    start = 0
    for own, p in model.named_parameters():
        if own == name:
            return dense[start : start + p.numel(), start : start + p.numel()]
        start += p.numel()
    raise KeyError(name)


def positions(layer: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs [n, q, t, i] and output gradients [n, c, q, t, o] at the positions that share the weight, per group."""
    if isinstance(layer, nn.Linear):
        n, c = g.shape[:2]
        return a.reshape(n, 1, -1, a.shape[-1]), g.reshape(n, c, 1, -1, g.shape[-1])
    if isinstance(layer, CONVOLUTIONS):
        q = layer.groups
        patches = _unfold(a, layer)  # [n, channels * k, t]
        n, _, t = patches.shape
        c = g.shape[1]
        return (
            patches.reshape(n, q, -1, t).transpose(2, 3),
            g.reshape(n, c, q, -1, t).transpose(3, 4),
        )
    assert isinstance(layer, TRANSPOSED)
    q, (n, c) = layer.groups, g.shape[:2]
    if over_outputs(layer, a):
        t = prod(g.shape[3:])
        return read_patches(a, layer), g.reshape(n, c, q, -1, t).transpose(3, 4)
    patches = _unfold(g.flatten(0, 1), layer)  # the cotangent is unfolded: [n * c, O * k, t]
    t = patches.shape[-1]
    return (
        a.reshape(n, q, -1, t).transpose(2, 3),
        patches.reshape(n, c, q, -1, t).transpose(3, 4),
    )


def over_outputs(layer: Any, a: Tensor) -> bool:
    """Whether factors of a transposed convolution are over output positions: its patches overlap or are cropped."""
    sizes = zip(layer.kernel_size, layer.dilation, layer.stride, layer.padding, strict=True)
    apart = all(d * (k - 1) < s and p == 0 for k, d, s, p in sizes)
    return not apart and prod(a.shape[2:]) > 1


def read_patches(a: Tensor, layer: Any) -> Tensor:
    """What every output position multiplies with the weights [I/q, *k] of one output channel, [n, q, t, I/q * k]."""
    size = layer.in_channels // layer.groups
    weights = torch.eye(size * prod(layer.kernel_size), dtype=a.dtype)
    weights = weights.view(-1, size, *layer.kernel_size).transpose(0, 1)  # an output channel for every single weight
    run = {1: F.conv_transpose1d, 2: F.conv_transpose2d}[len(layer.kernel_size)]
    options = (layer.stride, layer.padding, layer.output_padding, 1, layer.dilation)
    parts = [run(part, weights, None, *options) for part in a.split(size, 1)]
    return torch.stack(parts, 1).flatten(3).transpose(2, 3)


def _unfold(picture: Tensor, layer: Any) -> Tensor:
    kernel, stride, dilation, padding = (
        list(getattr(layer, name)) for name in ("kernel_size", "stride", "dilation", "padding")
    )
    if len(kernel) == 1:
        picture = picture[:, :, None]
        kernel, stride, dilation, padding = [1, *kernel], [1, *stride], [1, *dilation], [0, *padding]
    return F.unfold(picture, kernel, dilation, padding, stride)


def factors(
    model: nn.Module, x: Any, likelihood: Any, reduce: bool = False
) -> dict[str, tuple[Tensor, Tensor, float, Any]]:
    """Weight name -> (sum of g gᵀ [q, o, o], sum of a aᵀ [q, i, i], count, order), by hooks and plain autograd."""
    seen: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}
    hooks = []
    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)):

            def hook(layer: nn.Module, inputs: Any, output: Tensor, name: str = name) -> None:
                seen[name] = (layer, inputs[0].detach(), output)

            hooks.append(layer.register_forward_hook(hook))
    f = model(x)
    for handle in hooks:
        handle.remove()
    root = mq.likelihoods.as_likelihood(likelihood).resolve(f.detach()).hessian_sqrt(f.detach())  # [c, n, *shape]
    result = {}
    for name, (layer, a, h) in seen.items():
        columns = [torch.autograd.grad(f, h, s, retain_graph=True)[0] for s in root]
        g = torch.stack(columns, 1)  # [n, c, *shape of h]
        a, g = positions(layer, a, g)
        count = float(a.shape[0] * a.shape[2])
        if reduce:
            a, g, count = a.mean(2, keepdim=True), g.sum(3, keepdim=True), float(a.shape[0])
        outer = torch.einsum("ncqto,ncqtp->qop", g, g)
        inner = torch.einsum("nqti,nqtj->qij", a, a)
        order = None
        if isinstance(layer, TRANSPOSED):
            order = layer.in_channels // layer.groups if over_outputs(layer, seen[name][1]) else "swapped"
        result[f"{name}.weight"] = (outer, inner, count, order)
    return result


def assembled(outer: Tensor, inner: Tensor, count: float, order: Any) -> Tensor:
    """The block that the factors stand for, in the weight's own order: block-diagonal over groups."""
    left, right = (inner, outer) if order == "swapped" else (outer, inner)
    blocks = [torch.kron(le, ri) / count for le, ri in zip(left, right, strict=True)]
    if isinstance(order, int):  # [o, i, k, o, i, k] -> [i, o, k, i, o, k]
        o, size = outer.shape[-1], outer.shape[-1] * inner.shape[-1]
        axes = (1, 0, 2, 4, 3, 5)
        blocks = [b.view(o, order, -1, o, order, size // o // order).permute(axes).reshape(size, size) for b in blocks]
    return torch.block_diag(*blocks)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 3)),
    "sequence": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), lambda b: double(b, 5, 3)),
    "autoencoder": (lambda: dense_autoencoder((6, 4, 2, 4, 6)), lambda b: double(b, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(3, 2, 2)), lambda b: double(b, 2, 7)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 3, (3, 2), padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2, stride=2)), lambda b: double(b, 2, 4, 5)),
    "conv2d, groups": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=2), nn.Tanh(), nn.Conv2d(6, 3, 2, groups=3)),
        lambda b: double(b, 4, 4, 5),
    ),
    "conv transpose": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh(), nn.ConvTranspose2d(3, 2, 3, padding=1)),
        lambda b: double(b, 2, 2, 3),
    ),
    "conv transpose, stride and groups": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), nn.Tanh(), nn.Conv2d(6, 2, 2)),
        lambda b: double(b, 4, 2, 2),
    ),
    "conv transpose, cropped and padded": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, (4, 3), stride=(2, 1), padding=(1, 2)), nn.Tanh(), nn.ConvTranspose2d(3, 2, 4, 2, 1, 1)),
        lambda b: double(b, 2, 2, 4),
    ),
    "conv transpose, apart and of one position": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh(), nn.ConvTranspose2d(3, 2, 2, stride=2), nn.Tanh(), nn.ConvTranspose2d(2, 2, 2, 2, 1)),
        lambda b: double(b, 2, 1, 1),
    ),
    "conv1d transpose, dilated": (
        lambda: nn.Sequential(nn.ConvTranspose1d(1, 4, 3, 2, 2, 1, dilation=3), nn.Tanh(), nn.ConvTranspose1d(4, 2, 2, padding=2, groups=2)),
        lambda b: double(b, 1, 5),
    ),
    "conv transpose, many channels": (
        lambda: nn.Sequential(nn.ConvTranspose2d(18, 3, 2, padding=1), nn.Tanh(), nn.ConvTranspose2d(3, 2, 5, 2)), lambda b: double(b, 18, 3, 4),
    ),
    "conv and dense": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)), lambda b: double(b, 1, 3, 4),
    ),
}  # fmt: skip


def one_column_at_a_time(self: walk.BackwardWalk, root: object, steps: object) -> int:
    return 1


@pytest.mark.parametrize("name", LAYERS)
def test_the_factors_are_those_of_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, data = LAYERS[name]
    model = built(make())
    classes = mq.Categorical(dim=-1 if name in ("dense", "sequence") else 1)
    for _ in range(2):
        for batch, passed, sharing in product((3, 1), ("gaussian", classes), ("expand", "reduce")):
            x = data(batch)
            ours = ggn(model, x, passed, "kronecker", weight_sharing=sharing)
            exact = dense_ggn(model, x, passed)
            dense = ours.to_dense()
            for weight, parts in factors(model, x, passed, sharing == "reduce").items():
                assert_matches(block(dense, model, weight), assembled(*parts))
                outer, inner, count, _ = parts
                trace = sum(float(o.trace() * i.trace()) / count for o, i in zip(outer, inner, strict=True))
                assert float(block(dense, model, weight).trace()) == pytest.approx(trace, rel=RTOL)
                bias = weight.replace("weight", "bias")
                assert_matches(block(dense, model, bias), block(exact, model, bias))  # biases keep their exact block
        monkeypatch.setattr(walk.BackwardWalk, "_columns_per_chunk", one_column_at_a_time)


def weight_blocks(model: nn.Module, x: Tensor, likelihood: Any, names: list[str]) -> list[tuple[Tensor, Tensor]]:
    ours, exact = ggn(model, x, likelihood, "kronecker").to_dense(), dense_ggn(model, x, likelihood)
    return [(block(ours, model, name), block(exact, model, name)) for name in names]


def test_exact_for_one_datum_and_dense_layers() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    for ours, exact in weight_blocks(model, double(1, 3), "categorical", ["0.weight", "2.weight"]):
        assert_matches(ours, exact)


def test_exact_for_the_last_layer_under_gaussian_noise_for_any_number_of_data() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    (below, exact_below), (last, exact_last) = weight_blocks(model, double(50, 3), "gaussian", ["0.weight", "2.weight"])
    assert_matches(last, exact_last)
    assert float((50 * last - exact_last).abs().max() / exact_last.abs().max()) > 1, "without 1/N it must fail"
    assert float((below - exact_below).abs().max() / exact_below.abs().max()) > 1e-3, "below it is an approximation"


DECODERS = {
    "kernel 4, stride 2": lambda: nn.ConvTranspose2d(4, 1, 4, 2, 1),
    "kernel 3, stride 2, one more": lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, groups=2),
    "kernel 2, stride 2": lambda: nn.ConvTranspose2d(4, 1, 2, 2),
    "kernel 2, stride 2, cropped": lambda: nn.ConvTranspose2d(4, 1, 2, 2, 1),
    "one position": lambda: nn.Sequential(nn.MaxPool2d(2), nn.ConvTranspose2d(4, 1, 4)),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_transposed_convolution_is_exact_as_a_last_layer_and_not_below(name: str) -> None:
    below = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.Tanh())
    model = built(nn.Sequential(below, DECODERS[name]()))
    last = [n for n, p in model.named_parameters() if p.dim() > 1][-1]
    (under, exact_under), (ours, exact) = weight_blocks(model, double(9, 3, 1, 2), "gaussian", ["0.0.weight", last])
    assert_matches(ours, exact)
    assert float((under - exact_under).norm() / exact_under.norm()) > 0.1
    (_, _), (ours, exact) = weight_blocks(model, double(9, 3, 1, 2), "bernoulli", ["0.0.weight", last])
    assert float((ours - exact).norm() / exact.norm()) > 1e-5


def test_over_input_positions_a_last_layer_would_not_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(nn.Sequential(nn.Conv2d(2, 4, 2), nn.Tanh(), nn.ConvTranspose2d(4, 1, 4, 2, 1)))
    monkeypatch.setattr(transposed_convolution, "_over_output_positions", transposed_convolution._over_input_positions)
    ((ours, exact),) = weight_blocks(model, double(9, 2, 3, 3), "gaussian", ["2.weight"])
    assert float((ours - exact).norm() / exact.norm()) > 0.5


def test_exact_for_a_linear_model_and_not_for_logistic_regression() -> None:
    model = built(nn.Linear(3, 2))
    ((ours, exact),) = weight_blocks(model, double(7, 3), "gaussian", ["weight"])
    assert_matches(ours, exact)
    ((ours, exact),) = weight_blocks(model, double(7, 3), "categorical", ["weight"])
    assert float((ours - exact).abs().max() / exact.abs().max()) > 1e-3


def test_exact_if_all_inputs_are_equal() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    for ours, exact in weight_blocks(model, double(1, 3).expand(6, 3), "categorical", ["0.weight", "2.weight"]):
        assert_matches(ours, exact)


def test_a_convolution_with_one_output_position_is_a_dense_layer() -> None:
    conv = built(nn.Sequential(nn.Conv2d(2, 3, (3, 4)), nn.Flatten(), nn.Tanh(), nn.Linear(3, 2)))
    dense = built(nn.Sequential(nn.Linear(24, 3), nn.Identity(), nn.Tanh(), nn.Linear(3, 2)))
    assert isinstance(dense[0], nn.Linear) and isinstance(conv[0], nn.Conv2d)
    with torch.no_grad():
        dense[0].weight.copy_(conv[0].weight.flatten(1))
    x = double(3, 2, 3, 4)
    assert_matches(
        ggn(conv, x, "gaussian", "kronecker").to_dense(), ggn(dense, x.flatten(1), "gaussian", "kronecker").to_dense()
    )


def test_what_has_no_kronecker_form_is_exactly_diagonal() -> None:
    model = built(
        nn.Sequential(
            nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.LayerNorm(8)
        )
    )
    x = double(3, 1, 4, 4)
    ours, exact = ggn(model, x, "gaussian", "kronecker").to_dense(), dense_ggn(model, x)
    for name in ("1.weight", "1.bias", "5.weight", "5.bias"):
        mine = block(ours, model, name)
        assert_matches(mine.diagonal(), block(exact, model, name).diagonal())
        assert float((mine - mine.diagonal().diag()).abs().max()) == 0


def test_sums_over_batches_are_the_joint_batch() -> None:
    model = built(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)))
    x = double(7, 1, 3, 4)
    parts = [ggn(model, part, "categorical", "kronecker") for part in x.split(3)]
    assert_matches(
        (parts[0] + parts[1] + parts[2]).to_dense(), ggn(model, x, "categorical", "kronecker").to_dense(), 1e-12
    )


def test_tied_weights_are_refused_by_name() -> None:
    with pytest.raises(mq.UnsupportedOperationError, match=r"'weight' is used 2 times.*diagonal"):
        ggn(built(TiedAutoencoder()), double(3, 5), "gaussian", "kronecker")
    only = ggn(built(TiedAutoencoder()), double(3, 5), "gaussian", "kronecker", parameters=["bias"])
    assert_matches(only.to_dense(), 3 * torch.eye(5, dtype=torch.float64))

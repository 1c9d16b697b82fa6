"""Define the rules of convolutions in one to three dimensions; the squared rule is also that of transposed ones.

Index letters: `c` columns of the factor S, `n` samples, `q` groups, `t` output positions, `O` and `I` channels, `k`
offsets within the kernel; g is a column of S.

* Vector-Jacobian product: the adjoint convolution, per column. A window grows by the kernel and stays in the image.
* Parameter gradients: `dW[c, n] = sum_t g_t (patch of x at t)ᵀ` for each group, over the factor's window only.
  `db = sum_t g_t`.
* Squared rule: the adjoint convolution of m with W², the weight gradient of m with x², and the sum of m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.factors.gradients import ExplicitGradients, ParameterGradients
from marquis.curvature.factors.outer_products import OuterProducts
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context, SquaredCall
from marquis.curvature.ops.patches import ConvolutionGeometry, patch_products, unfold, unfolder
from marquis.curvature.ops.registry import SquaredRule, reading, register

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

LARGEST_GROUP = 2**17
"""Entries of a kernel up to which the samples of a batch become groups of one convolution."""


def batched_geometry(context: Context, step: Step, factor: Factor) -> tuple[int, ConvolutionGeometry] | None:
    """Return input and geometry; None where the step does not convolve a batch of data with a batch-free kernel."""
    source, weight, batched = step.reference("input"), step.reference("weight"), context.network.batched
    shape = context.shapes[step.value]
    if not factor.batch_first or len(factor.shape) != len(shape):
        return None
    if source is None or weight is None or source not in batched or weight in batched:
        return None
    if len(shape) != context.values[weight].dim():
        return None
    return source, context.fact(step, lambda: ConvolutionGeometry.of(step, context.values))


# Vector-Jacobian products


def convolution_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Apply the transposed convolution to every column."""
    read = batched_geometry(context, step, factor)
    if read is None:
        return None
    number, geometry = read
    if not context.is_target(number):
        return {}
    sizes = context.shapes[number][2:]
    factor = factor.whole_channels()
    columns = factor.product()
    window = factor.window
    if window is None:
        window = Window(factor.shape[1:], tuple((0, s) for s in factor.shape[1:]))
    c, n = columns.shape[:2]
    folded = columns.reshape(c * n, *columns.shape[2:])
    ranges, crops = _adjoint_extent(window, geometry, sizes)
    spread = _adjoint(folded, geometry, crops)
    channels = geometry.weight.shape[1] * geometry.groups
    shape = (factor.shape[0], channels, *sizes)
    result = spread.reshape(c, n, *spread.shape[1:])
    boxed = Window(shape[1:], ((0, channels), *ranges))
    return {number: Factor(result, shape, None, None if boxed.is_everything else boxed)}


def _adjoint_extent(
    window: Window, geometry: ConvolutionGeometry, sizes: tuple[int, ...]
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Return where the input cotangent of a box lies: its range, and (before, after, extra) to crop or extend."""
    stride = geometry.stride
    ranges, crops = [], []
    for axis, size in enumerate(sizes):
        start, stop = window.ranges[axis + 1]
        low = start * stride[axis] - geometry.padding[axis][0]
        high = low + (stop - start - 1) * stride[axis] + geometry.dilation[axis] * (geometry.kernel[axis] - 1) + 1
        before, after = max(0, -low), max(0, high - size)
        whole = start == 0 and stop == window.full[axis + 1]
        extra = size - (high - after) if whole else 0  # a stride can leave a rim of inputs that no output reads
        ranges.append((low + before, high - after + extra))
        crops.append((before, after, extra))
    return ranges, crops


def _adjoint(columns: Tensor, geometry: ConvolutionGeometry, crops: list[tuple[int, int, int]]) -> Tensor:
    """Apply the transposed convolution to a box, cropped to the image."""
    dims, stride = geometry.dims, geometry.stride
    if all(before == after for before, after, _ in crops) and all(
        e < s for (_, _, e), s in zip(crops, stride, strict=True)
    ):
        padding = [before for before, _, _ in crops]
        extra = [e for _, _, e in crops]
        return TRANSPOSED[dims - 1](
            columns, geometry.weight, None, stride, padding, extra, geometry.groups, geometry.dilation
        )
    # unequal sides: a smaller symmetric crop by the kernel, the rest by slicing and zero padding
    padding = [min(before, after) for before, after, _ in crops]
    spread = TRANSPOSED[dims - 1](
        columns, geometry.weight, None, stride, padding, 0, geometry.groups, geometry.dilation
    )
    for axis, (before, after, extra) in enumerate(crops):
        before, after = before - padding[axis], after - padding[axis]
        spread = spread.narrow(2 + axis, before, spread.shape[2 + axis] - before - after)
        if extra:
            spread = F.pad(spread, [0, 0] * (dims - 1 - axis) + [0, extra])
    return spread


# Parameter gradients


def convolution_gradient(context: Context, step: Step, factor: Factor, number: int) -> ParameterGradients | None:
    """Return the gradients of a kernel [O, I/q, *k] or of the bias."""
    read = batched_geometry(context, step, factor)
    if read is None:
        return None
    source, geometry = read
    factor = _boxed(factor)
    window = factor.window
    assert window is not None
    columns = factor.product()
    if step.reference("bias") == number:
        return ExplicitGradients(columns.flatten(3).sum(-1), factor.shape[0], as_block=True)
    image: Tensor = context.values[source]
    weight, kernel, groups, dims = geometry.weight, geometry.kernel, geometry.groups, geometry.dims
    boxes = window.ranges[1:]

    c, n = columns.shape[:2]
    g = columns.reshape(c, n, groups, -1, prod(columns.shape[3:])).transpose(-1, -2)
    channels = weight.shape[1]

    def arrange(G: Tensor) -> Tensor:
        split = G.reshape(*G.shape[:-1], *kernel, channels).movedim(-1, -1 - dims)
        return split.flatten(-3 - dims, -2 - dims)

    sizes = (groups, g.shape[3], prod(kernel) * channels)
    everywhere = tuple((0, size) for size in factor.shape[2:])

    def input_products(sharing: str) -> tuple[Tensor, float]:
        return patch_products(image, geometry, everywhere, sharing)

    direct = None
    if c * weight.shape[0] // groups * 4 <= channels and set(geometry.stride) == {1} and groups == 1:
        direct = _by_unfolded_cotangent(columns, image, geometry, boxes)
    shape = tuple(weight.shape)
    one_column = None
    if boxes == everywhere and c == groups == 1 and n == image.shape[0] and _one_dnn_groups(image, geometry):
        one_column = _by_groups(columns[0], image, geometry)
    order = row_major(weight)
    return OuterProducts(
        unfolder(image, geometry, boxes),
        g,
        factor.shape[0],
        sizes,
        shape,
        arrange,
        False,
        input_products,
        direct,
        one_column,
        order,
    )


def row_major(weight: Tensor, channels: int | None = None) -> Tensor:
    """Return where the entries (channel, offset) of a patch, in row-major order, are in one with channels fastest."""
    offsets, channels = prod(weight.shape[2:]), channels or weight.shape[1]
    return torch.arange(offsets * channels, device=weight.device).view(offsets, channels).t().flatten()


def _one_dnn_groups(image: Tensor, geometry: ConvolutionGeometry) -> bool:
    """Return whether a convolution with a group per sample is faster than unfolded patches (by up to 2.5)."""
    symmetric = all(before == after for before, after in geometry.padding)
    small = prod(geometry.weight.shape) <= LARGEST_GROUP
    fast = image.device.type == "cpu" and image.dtype is torch.float32 and bool(torch.backends.mkldnn.enabled)
    return symmetric and small and fast


def _by_groups(column: Tensor, image: Tensor, geometry: ConvolutionGeometry) -> Callable[[int, int], Tensor]:
    """Return the gradients of one column as the weight gradient of a convolution that has a group for every sample."""
    shape, none = geometry.weight.shape, [0] * geometry.dims
    padding = [before for before, _ in geometry.padding]

    def gradients(start: int, stop: int) -> Tensor:
        m = stop - start
        g, x = (part[start:stop].reshape(1, -1, *part.shape[2:]) for part in (column, image))
        weight = image.new_empty(1).expand(m * shape[0], *shape[1:])
        options = (geometry.stride, padding, geometry.dilation, False, none, m, [False, True, False])
        return torch.ops.aten.convolution_backward(g, x, weight, None, *options)[1].view(m, *shape)

    return gradients


def _by_unfolded_cotangent(
    columns: Tensor, image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...]
) -> Callable[[int, int], Tensor]:
    """Unfold the cotangent instead of the image where there are few outputs (stride 1).

    `G[o, u, i] = sum_s x[i, s] g[o, s - u + p]`, with s over the inputs that the box reads.
    """
    kernel, dilation, padding = geometry.kernel, geometry.dilation, geometry.padding
    reads, pads = [], []
    for axis, (first, last) in enumerate(boxes):
        spread = dilation[axis] * (kernel[axis] - 1)
        low, high = first - padding[axis][0], last - padding[axis][0] + spread
        inside = max(0, low), min(image.shape[2 + axis], high)
        reads.append(inside)
        pads.append((spread - (inside[0] - low), spread - (high - inside[1])))
    index = tuple(slice(low, high) for low, high in reads)
    counts = tuple((0, high - low) for low, high in reads)
    sliding = replace(geometry, padding=pads, groups=1)

    def gradients(start: int, stop: int) -> Tensor:
        g = columns if columns.shape[1] == 1 else columns[:, start:stop]
        c, m, o = g.shape[:3]
        folded = g.transpose(0, 1).reshape(m, c * o, *g.shape[3:])
        unfolded = unfold(folded, sliding, counts)  # [m, 1, s, k * c * o], offsets reversed
        unfolded = unfolded.reshape(m, -1, prod(kernel), c * o).flip(2)
        x = image[(slice(start, stop), slice(None), *index)].flatten(2)  # [m', i, s]
        products = x @ unfolded.flatten(2)  # [m', i, k * c * o]
        products = products.reshape(x.shape[0], x.shape[1], prod(kernel), c * o).permute(0, 3, 2, 1)
        return products.reshape(x.shape[0], 1, c * o, -1)

    return gradients


def _boxed(factor: Factor) -> Factor:
    """Return the factor with a window, if only the trivial one."""
    if factor.window is not None and factor.window.full == factor.shape[1:]:
        return factor.whole_channels()
    factor = factor.unwindowed()
    window = Window(factor.shape[1:], tuple((0, size) for size in factor.shape[1:]))
    return Factor(factor.columns, factor.shape, factor.scale, window)


# Squared rule


def convolution_squared(call: SquaredCall) -> None:
    """Pass m through a convolution with any options, plain or transposed."""
    geometry = ConvolutionGeometry.of(call.step, call.values)
    weight, x, m = geometry.weight, call.value("input"), call.m
    unbatched = x.dim() < weight.dim()
    if unbatched:
        x, m = x.unsqueeze(0), m.unsqueeze(0)
    extra = [after - before for before, after in geometry.padding]  # 'same' with an even kernel pads more behind
    behind = [size for amount in reversed(extra) for size in (0, amount)]
    if call.wants("weight"):
        squares = x.square()
        squares = F.pad(squares, behind) if any(extra) else squares
        call.give("weight", _adjoint_of_squares(m, squares, m.new_empty(1).expand(weight.shape), geometry, 1))
    if call.wants("bias"):
        call.give("bias", m.sum([0, *range(2, m.dim())]))
    if call.wants("input"):
        shape = [*x.shape[:2], *(size + more for size, more in zip(x.shape[2:], extra, strict=True))]
        to_input = _adjoint_of_squares(m, m.new_empty(1).expand(shape), weight.square(), geometry, 0)
        if any(extra):
            to_input = F.pad(to_input, [-size for size in behind])
        call.give("input", to_input.squeeze(0) if unbatched else to_input)


def _adjoint_of_squares(m: Tensor, x: Tensor, weight: Tensor, geometry: ConvolutionGeometry, which: int) -> Tensor:
    """Return the adjoint in the input (`which` = 0) or the weight (1); only the shape of that one is read."""
    padding = [before for before, _ in geometry.padding]
    options = (geometry.stride, padding, geometry.dilation, geometry.transposed, geometry.output_padding)
    wanted = [which == 0, which == 1, False]
    return torch.ops.aten.convolution_backward(m, x, weight, None, *options, geometry.groups, wanted)[which]


FACTORS = reading(input=("weight",), weight=("input",))
PLAIN = SquaredRule(
    convolution_squared,
    FACTORS,
    "x: transposed convolution of m with W²; W: weight gradient of m with x²; b: sum of m",
    parameters=True,
)
GENERAL = replace(PLAIN, note="as conv1d-3d and conv_transpose1d-3d")

register(
    "conv1d", "conv2d", "conv3d",
    kind="convolution", vjp=convolution_vjp, vjp_reads="factors", gradient=convolution_gradient, kronecker=True,
    layer="Conv1d, Conv2d, Conv3d (stride, padding, padding mode, dilation, groups)", squared=PLAIN,
)  # fmt: skip
register("convolution", kind="convolution", squared=GENERAL)  # as decomposed graphs have it

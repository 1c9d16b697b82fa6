"""Gradients of convolution kernels: outer products of unfolded pictures and cotangents, over the factor's window only.

For a transposed convolution the roles are swapped: the cotangent is unfolded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from torch import Tensor

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.factors.gradients import Explicit, Form, Outer
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.convolution_geometry import Geometry
from marquis.curvature.ops.pullbacks.registry import Context
from marquis.curvature.ops.rules.patches import patch_products, unfold
from marquis.curvature.ops.rules.registry import parametric


@parametric(
    "conv1d",
    "conv2d",
    "conv3d",
    layer="Conv1d, Conv2d, Conv3d (stride, padding, padding mode, dilation, groups)",
    kronecker="kronecker",
)
def convolution(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Kernel [O, I/q, *k]: G = sum_t g_t (patch at t)ᵀ for each group q."""
    geometry = Geometry.of(context, step, factor)
    if geometry is None:
        return None
    factor = _boxed(factor)
    window = factor.window
    assert window is not None
    columns = factor.product()
    if step.reference("bias") == number:
        return Explicit(columns.flatten(3).sum(-1), factor.shape[0], as_block=True)
    picture: Tensor = context.values[geometry.source]
    weight, kernel, groups, dims = geometry.weight, geometry.kernel, geometry.groups, geometry.dims
    boxes = window.ranges[1:]

    def patches(start: int, stop: int) -> Tensor:
        return unfold(picture[start:stop], geometry, boxes)

    c, n = columns.shape[:2]
    g = columns.reshape(c, n, groups, -1, prod(columns.shape[3:])).transpose(-1, -2)
    channels = weight.shape[1]

    def arrange(G: Tensor) -> Tensor:
        split = G.reshape(*G.shape[:-1], *kernel, channels).movedim(-1, -1 - dims)
        return split.flatten(-3 - dims, -2 - dims)

    sizes = (groups, g.shape[3], prod(kernel) * channels)
    everywhere = tuple((0, size) for size in factor.shape[2:])

    def input_products(sharing: str) -> tuple[Tensor, float]:
        return patch_products(picture, geometry, everywhere, sharing)

    direct = None
    if c * weight.shape[0] // groups * 4 <= channels and set(geometry.stride) == {1} and groups == 1:
        direct = _by_unfolded_cotangent(columns, picture, geometry, boxes)
    shape = tuple(weight.shape)
    return Outer(patches, g, factor.shape[0], sizes, shape, arrange, False, input_products, direct)


def _by_unfolded_cotangent(
    columns: Tensor, picture: Tensor, geometry: Geometry, boxes: tuple[tuple[int, int], ...]
) -> Callable[[int, int], Tensor]:
    """Few outputs: unfold the cotangent, which is small, instead of the picture (stride 1).

    `G[o, u, i] = sum_s x[i, s] g[o, s - u + p]`, with s over the inputs that the box reads.
    """
    kernel, dilation, padding = geometry.kernel, geometry.dilation, geometry.padding
    reads, pads = [], []
    for axis, (first, last) in enumerate(boxes):
        spread = dilation[axis] * (kernel[axis] - 1)
        low, high = first - padding[axis][0], last - padding[axis][0] + spread
        inside = max(0, low), min(picture.shape[2 + axis], high)
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
        x = picture[(slice(start, stop), slice(None), *index)].flatten(2)  # [m', i, s]
        products = x @ unfolded.flatten(2)  # [m', i, k * c * o]
        products = products.reshape(x.shape[0], x.shape[1], prod(kernel), c * o).permute(0, 3, 2, 1)
        return products.reshape(x.shape[0], 1, c * o, -1)

    return gradients


@parametric(
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    layer="ConvTranspose1d, 2d, 3d (all options)",
    kronecker="kronecker",
)
def transposed_convolution(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Kernel [I, O/q, *k]: G = sum_t x_t (patch of the cotangent at t)ᵀ for each group q."""
    geometry = Geometry.of(context, step, factor)
    if geometry is None:
        return None
    columns = factor.dense()
    c, n = columns.shape[:2]
    if step.reference("bias") == number:
        return Explicit(columns.flatten(3).sum(-1), n, as_block=True)
    picture: Tensor = context.values[geometry.source]
    weight, kernel, groups, dims = geometry.weight, geometry.kernel, geometry.groups, geometry.dims
    boxes = tuple((0, size) for size in picture.shape[2:])
    pads = []
    for axis, (size, out) in enumerate(zip(picture.shape[2:], columns.shape[3:], strict=True)):
        reach = (size - 1) * geometry.stride[axis] + geometry.dilation[axis] * (kernel[axis] - 1) + 1
        before = geometry.padding[axis][0]
        pads.append((before, max(0, reach - before - out)))
    folded = columns.reshape(c * n, *columns.shape[2:])
    unfolded = unfold(folded, replace(geometry, padding=pads), boxes)  # [c * n, q, t, k * O/q]
    g = unfolded.reshape(c, n, *unfolded.shape[1:])
    inputs = picture.reshape(n, groups, -1, g.shape[3]).transpose(-1, -2)  # [n, q, t, I/q]
    channels = weight.shape[1]

    def arrange(G: Tensor) -> Tensor:  # [..., q, k * O/q, I/q] -> [..., I, O/q, *k]
        split = G.transpose(-1, -2)
        split = split.reshape(*split.shape[:-1], *kernel, channels).movedim(-1, -1 - dims)
        return split.flatten(-3 - dims, -2 - dims)

    sizes = (groups, inputs.shape[2], inputs.shape[3])
    return Outer(lambda start, stop: inputs[start:stop], g, n, sizes, tuple(weight.shape), arrange, swapped=True)


def _boxed(factor: Factor) -> Factor:
    """The factor with a window, if only the trivial one."""
    if factor.window is not None and factor.window.full == factor.shape[1:]:
        return factor.whole_channels()
    factor = factor.unwindowed()
    window = Window(factor.shape[1:], tuple((0, size) for size in factor.shape[1:]))
    return Factor(factor.columns, factor.shape, factor.scale, window)

"""Pull-backs through convolutions, cropped to the factor's window where there is one."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.convolution_geometry import Geometry
from marquis.curvature.ops.pullbacks.registry import Context, pullback

TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
PLAIN = (F.conv1d, F.conv2d, F.conv3d)


@pullback("conv1d", "conv2d", "conv3d", needs="factors")
def convolution(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """The adjoint convolution, per column; a window grows by the kernel and stays inside the picture."""
    geometry = Geometry.of(context, step, factor)
    if geometry is None:
        return None
    number, weight = geometry.source, geometry.weight
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
    channels = weight.shape[1] * geometry.groups
    shape = (factor.shape[0], channels, *sizes)
    result = spread.reshape(c, n, *spread.shape[1:])
    boxed = Window(shape[1:], ((0, channels), *ranges))
    return {number: Factor(result, shape, None, None if boxed.is_everything else boxed)}


def _adjoint_extent(
    window: Window, geometry: Geometry, sizes: tuple[int, ...]
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Where the input cotangent of a box lies: its range, and (before, after, extra) to crop or extend."""
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


def _adjoint(columns: Tensor, geometry: Geometry, crops: list[tuple[int, int, int]]) -> Tensor:
    """Transposed convolution of a box, cropped to the picture."""
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


@pullback("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", needs="factors")
def transposed_convolution(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """The adjoint of a transposed convolution is the convolution with the same kernel."""
    geometry = Geometry.of(context, step, factor)
    if geometry is None:
        return None
    number = geometry.source
    if not context.is_target(number):
        return {}
    columns = factor.unwindowed().product()
    c, n = columns.shape[:2]
    padding = [before for before, _ in geometry.padding]
    result = PLAIN[geometry.dims - 1](
        columns.reshape(c * n, *columns.shape[2:]),
        geometry.weight,
        None,
        geometry.stride,
        padding,
        geometry.dilation,
        geometry.groups,
    )
    sizes = context.shapes[number][2:]
    for axis, size in enumerate(sizes):  # output padding can add positions that no input produced
        result = result.narrow(2 + axis, 0, size)
    return {number: Factor(result.reshape(c, n, *result.shape[1:]), (factor.shape[0], *result.shape[1:]))}

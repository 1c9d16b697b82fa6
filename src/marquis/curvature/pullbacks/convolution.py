"""Pull-backs through convolutions, cropped to the factor's window where there is one."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factor import Factor, Window
from marquis.curvature.graph import Step
from marquis.curvature.pullbacks.registry import Context, pullback

TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
PLAIN = (F.conv1d, F.conv2d, F.conv3d)


def pairs(value: Any, dims: int) -> list[int]:
    """A hyper-parameter as one number per spatial dimension."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * dims if len(values) == 1 else values


def padding_of(step: Step, context: Context) -> list[tuple[int, int]] | None:
    """(before, after) per spatial dimension; 'same' and 'valid' are resolved."""
    values = context.values
    weight: Tensor = step.argument("weight", values)
    dims = weight.dim() - 2
    given = step.argument("padding", values)
    if given == "valid":
        return [(0, 0)] * dims
    if given == "same":
        dilation = pairs(step.argument("dilation", values), dims)
        totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in pairs(given, dims)]


@pullback("conv1d", "conv2d", "conv3d", needs="factors")
def convolution(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """The adjoint convolution, per column; a window grows by the kernel and stays inside the picture."""
    number, weight_number = step.reference("input"), step.reference("weight")
    if number is None or weight_number is None or weight_number in context.network.batched:
        return None
    if not context.is_target(number):
        return {}
    weight = context.values[weight_number]
    dims = weight.dim() - 2
    if len(factor.shape) != dims + 2 or not factor.batch_first:
        return None
    stride = pairs(step.argument("stride", context.values), dims)
    dilation = pairs(step.argument("dilation", context.values), dims)
    groups = step.argument("groups", context.values)
    padding = padding_of(step, context)
    assert padding is not None
    sizes = spatial_sizes(context, number, dims)
    factor = factor.whole_channels()
    columns = factor.product()
    window = factor.window
    if window is None:
        window = Window(factor.shape[1:], tuple((0, s) for s in factor.shape[1:]))
    c, n = columns.shape[:2]
    folded = columns.reshape(c * n, *columns.shape[2:])
    ranges, crops = _adjoint_extent(window, weight, stride, dilation, padding, sizes)
    spread = _adjoint(folded, weight, stride, dilation, groups, crops)
    channels = weight.shape[1] * groups
    shape = (factor.shape[0], channels, *sizes)
    result = spread.reshape(c, n, *spread.shape[1:])
    boxed = Window(shape[1:], ((0, channels), *ranges))
    return {number: Factor(result, shape, None, None if boxed.is_everything else boxed)}


def spatial_sizes(context: Context, number: int, dims: int) -> list[int]:
    """Spatial shape of a convolution's input."""
    return list(context.shapes[number][-dims:])


def _adjoint_extent(
    window: Window,
    weight: Tensor,
    stride: list[int],
    dilation: list[int],
    padding: list[tuple[int, int]],
    sizes: list[int],
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Where the input cotangent of a box lies: its range, and (before, after, extra) to crop or extend."""
    ranges, crops = [], []
    for axis, size in enumerate(sizes):
        start, stop = window.ranges[axis + 1]
        low = start * stride[axis] - padding[axis][0]
        high = (stop - 1) * stride[axis] - padding[axis][0] + dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        before, after = max(0, -low), max(0, high - size)
        whole = start == 0 and stop == window.full[axis + 1]
        extra = size - (high - after) if whole else 0  # a stride can leave a rim of inputs that no output reads
        ranges.append((low + before, high - after + extra))
        crops.append((before, after, extra))
    return ranges, crops


def _adjoint(
    columns: Tensor,
    weight: Tensor,
    stride: list[int],
    dilation: list[int],
    groups: int,
    crops: list[tuple[int, int, int]],
) -> Tensor:
    """Transposed convolution of a box, cropped to the picture."""
    dims = weight.dim() - 2
    if all(before == after for before, after, _ in crops) and all(
        e < s for (_, _, e), s in zip(crops, stride, strict=True)
    ):
        padding = [before for before, _, _ in crops]
        extra = [e for _, _, e in crops]
        return TRANSPOSED[dims - 1](columns, weight, None, stride, padding, extra, groups, dilation)
    # unequal sides: a smaller symmetric crop by the kernel, the rest by slicing and zero padding
    padding = [min(before, after) for before, after, _ in crops]
    spread = TRANSPOSED[dims - 1](columns, weight, None, stride, padding, 0, groups, dilation)
    for axis, (before, after, extra) in enumerate(crops):
        before, after = before - padding[axis], after - padding[axis]
        spread = spread.narrow(2 + axis, before, spread.shape[2 + axis] - before - after)
        if extra:
            spread = F.pad(spread, [0, 0] * (dims - 1 - axis) + [0, extra])
    return spread


@pullback("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", needs="factors")
def transposed_convolution(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """The adjoint of a transposed convolution is the convolution with the same kernel."""
    number, weight_number = step.reference("input"), step.reference("weight")
    if number is None or weight_number is None or weight_number in context.network.batched:
        return None
    if not context.is_target(number):
        return {}
    weight = context.values[weight_number]
    dims = weight.dim() - 2
    if len(factor.shape) != dims + 2 or not factor.batch_first:
        return None
    columns = factor.unwindowed().product()
    c, n = columns.shape[:2]
    arguments = [pairs(step.argument(name, context.values), dims) for name in ("stride", "padding", "dilation")]
    groups = step.argument("groups", context.values)
    result = PLAIN[dims - 1](columns.reshape(c * n, *columns.shape[2:]), weight, None, *arguments, groups)
    sizes = spatial_sizes(context, number, dims)
    for axis, size in enumerate(sizes):  # output padding can add positions that no input produced
        result = result.narrow(2 + axis, 0, size)
    return {number: Factor(result.reshape(c, n, *result.shape[1:]), (factor.shape[0], *result.shape[1:]))}

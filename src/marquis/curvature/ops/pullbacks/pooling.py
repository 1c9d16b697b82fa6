"""Pull-backs through pooling, nearest upsampling and batch normalisation in eval mode."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.convolution_geometry import per_dimension
from marquis.curvature.ops.pullbacks.elementwise import FROM_OUTPUT
from marquis.curvature.ops.pullbacks.registry import Context, pullback


@pullback("max_pool2d", needs="output")
def max_pool(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """Put every entry back where the maximum was; overlapping windows add up.

    The derivative of an activation in front of the pooling is applied before, on the smaller tensor.
    """
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    shape = context.shapes[number]
    indices: Tensor = context.values[~step.value]
    factor = _through_activation(context, step, number, factor)
    kernel = per_dimension(step.argument("kernel_size", context.values), 2)
    stride = per_dimension(step.argument("stride", context.values) or kernel, 2)
    tiled = (
        stride == kernel
        and per_dimension(step.argument("padding", context.values), 2) == [0, 0]
        and all(size % k == 0 for size, k in zip(shape[-2:], kernel, strict=True))
        and factor.batch_first
    )
    if factor.window is not None and tiled and len(factor.window.full) == 3:
        return {number: _within_window(context, step, factor, shape, kernel, indices)}
    columns = factor.dense()
    spread = columns.new_zeros(columns.shape[0], *shape)
    flat = indices.flatten(-2).expand(columns.shape[0], *indices.shape[:-2], -1)
    spread.flatten(-2).scatter_add_(-1, flat, columns.flatten(-2))
    return {number: context.factor(spread, number)}


def _through_activation(context: Context, step: Step, number: int, factor: Factor) -> Factor:
    """Multiply by the derivative of an activation whose only reader is this pooling, and mark it as done."""
    source = context.network.producers.get(number) if context.folding else None
    if source is None or source.name not in FROM_OUTPUT or len(context.network.uses[number]) > 1:
        return factor
    context.folded.add(source.value)
    derivative = context.cached(step, "derivative", lambda: FROM_OUTPUT[source.name](context.values[step.value]))
    return factor.multiply(derivative)


def _within_window(
    context: Context, step: Step, factor: Factor, shape: tuple[int, ...], kernel: list[int], indices: Tensor
) -> Factor:
    """Non-overlapping windows inside a box: copy to the window and keep only its maximum."""
    assert factor.window is not None

    def mask_of_maxima() -> Tensor:
        mask = factor.columns.new_zeros(shape)
        mask.flatten(-2).scatter_(-1, indices.flatten(-2), 1.0)
        return mask

    ranges = [(a * k, b * k) for (a, b), k in zip(factor.window.ranges[1:], kernel, strict=True)]
    window = Window(shape[1:], (factor.window.ranges[0], *ranges))
    mask = window.crop(context.cached(step, "maxima", mask_of_maxima))
    columns = factor.product()
    high, wide = columns.shape[-2:]
    tiles = mask.reshape(*mask.shape[:2], high, kernel[0], wide, kernel[1])
    spread = columns[..., :, None, :, None] * tiles
    return Factor(spread.view(*spread.shape[:3], high * kernel[0], wide * kernel[1]), shape, None, window)


@pullback("upsample_nearest2d", needs="nothing")
def upsample_nearest(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Sum over the copies of each entry; whole factors only."""
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    shape = context.shapes[number]
    ratios = [big // small for big, small in zip(factor.shape[2:], shape[2:], strict=True)]
    exact = all(big == small * r for big, small, r in zip(factor.shape[2:], shape[2:], ratios, strict=True))
    if not exact or not factor.batch_first:
        return None
    columns = factor.product()
    window = factor.window
    if window is not None:
        inner, pads = [], []
        for (start, stop), ratio in zip(window.ranges[1:], ratios, strict=True):
            low, high = start // ratio, -(-stop // ratio)
            inner.append((low, high))
            pads.append((start - low * ratio, high * ratio - stop))
        if any(any(pad) for pad in pads):
            columns = F.pad(columns, [*pads[1], *pads[0]])
        window = Window(shape[1:], (window.ranges[0], *inner))
    columns = _sum_blocks(_sum_blocks(columns, ratios[0]).transpose(-1, -2), ratios[1]).transpose(-1, -2)
    return {number: Factor(columns, shape, None, window)}


def _sum_blocks(columns: Tensor, ratio: int) -> Tensor:
    """Sum blocks of rows, as a sum of strided slices: much faster than a reduction over a short inner dimension."""
    total = columns[..., 0::ratio, :]
    for offset in range(1, ratio):
        total = total + columns[..., offset::ratio, :]
    return total


@pullback("batch_norm", needs="nothing")
def batch_norm(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Eval mode: a fixed scale per channel."""
    number = step.reference("input")
    if not context.is_target(number) or number is None:
        return {}
    if not factor.batch_first:
        return None
    values = context.values
    variance, epsilon = step.argument("running_var", values), step.argument("eps", values)
    scale = (variance + epsilon).rsqrt()
    weight = step.argument("weight", values)
    scale = scale if weight is None else scale * weight
    channels = scale.view(1, -1, *([1] * (len(factor.shape) - 2)))
    if factor.window is None:
        return {number: factor.multiply(channels)}
    if factor.window.full != factor.shape[1:]:
        return {number: factor.unwindowed().multiply(channels)}
    start, stop = factor.window.ranges[0]
    merged = channels[:, start:stop] if factor.scale is None else factor.scale * channels[:, start:stop]
    return {number: replace(factor, scale=merged)}

"""Pull-backs through pooling, nearest upsampling and batch normalisation in eval mode."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factor import Factor, Window
from marquis.curvature.graph import Step
from marquis.curvature.pullbacks.convolution import pairs
from marquis.curvature.pullbacks.elementwise import elementwise_derivatives, is_pointwise
from marquis.curvature.pullbacks.registry import Context, pullback


@pullback("max_pool2d")
def max_pool(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Non-overlapping windows: copy to the window and keep only its maximum.

    The derivative of an activation in front of the pooling is folded into the same multiplication, at no cost per column.
    """
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    value: Tensor = context.values[number]
    kernel = pairs(step.argument("kernel_size", context.values), 2)
    stride = step.argument("stride", context.values) or kernel
    plain = (
        pairs(stride, 2) == kernel
        and pairs(step.argument("padding", context.values), 2) == [0, 0]
        and pairs(step.argument("dilation", context.values), 2) == [1, 1]
        and value.dim() == 4
        and factor.batch_first
        and all(size % k == 0 for size, k in zip(value.shape[2:], kernel, strict=True))
    )
    if not plain:
        return None
    mask = context.cached(step, "mask", lambda: _selection(context, number, value, kernel))
    columns = factor.product()
    window = factor.window
    if window is not None:
        ranges = [(a * k, b * k) for (a, b), k in zip(window.ranges[1:], kernel, strict=True)]
        window = Window(tuple(value.shape[1:]), (window.ranges[0], *ranges))
        mask = window.crop(mask)
    high, wide = columns.shape[-2:]
    tiles = mask.reshape(*mask.shape[:2], high, kernel[0], wide, kernel[1])
    spread = columns[..., :, None, :, None] * tiles
    spread = spread.view(*spread.shape[:3], high * kernel[0], wide * kernel[1])
    return {number: Factor(spread, tuple(value.shape), None, window)}


def _selection(context: Context, number: int, value: Tensor, kernel: list[int]) -> Tensor:
    """One at each maximum, times the derivative of an activation whose only reader is the pooling."""
    mask = _argmax_mask(value, kernel)
    source = context.network.producers.get(number)
    if source is None or not is_pointwise(source) or len(context.network.uses[number]) > 1:
        return mask
    derivatives = elementwise_derivatives(context, source)
    targets = context.targets(source)
    if len(targets) != 1 or list(derivatives) != targets or context.shapes[targets[0]] != tuple(value.shape):
        return mask
    context.folded.add(source.value)
    return mask.mul_(derivatives[targets[0]])


def _argmax_mask(value: Tensor, kernel: list[int]) -> Tensor:
    indices = F.max_pool2d(value, kernel, return_indices=True)[1]
    mask = torch.zeros_like(value, memory_format=torch.contiguous_format)
    mask.flatten(2).scatter_(2, indices.flatten(2), 1.0)
    return mask


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
    high, wide = (s // r for s, r in zip(columns.shape[-2:], ratios, strict=True))
    columns = columns.reshape(*columns.shape[:-2], high, ratios[0], wide, ratios[1]).sum(dim=(-3, -1))
    return {number: Factor(columns, shape, None, window)}


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

"""Define the rules of pooling: maxima, averages, and extrema along a dimension.

Index letters: `c` columns of the factor S, `n` samples, `k` the kernel's sides.

* Vector-Jacobian product: of `max_pool2d`, every entry of S goes back to where the maximum was; of averages over
  windows that do not overlap, every entry of S / w is repeated over its window. Others go through local autograd.
* Squared rule: maxima send m to the winning entry, averages send m / w² to each of the w entries.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context, SquaredCall, per_dimension
from marquis.curvature.ops.registry import SquaredRule, operation_of, read_everything, read_nothing, register
from marquis.curvature.ops.resizing import apply_squared, squared_taps
from marquis.curvature.ops.shapes import adjoint_squared, restore_reduced

# Forward pass


def max_pool_with_positions(x: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """Return the maxima and their flat positions; a processor compares channels in a third of the time."""
    if x.device.type == "cpu" and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    maxima, positions = torch.ops.aten.max_pool2d_with_indices(x, *options, **named)
    return maxima.contiguous(), positions.contiguous()


# Vector-Jacobian products


def max_pool_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """Put every entry back where the maximum was; overlapping windows add up.

    The derivative of an activation in front of the pooling is applied before, on the smaller tensor.
    """
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    shape = context.shapes[number]
    indices: Tensor = context.values[~step.value]
    factor = _times_activation(context, step, number, factor)
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
    spread = context.zeros(step, columns, (columns.shape[0], *shape))
    flat = indices.flatten(-2).expand(columns.shape[0], *indices.shape[:-2], -1)
    spread.flatten(-2).scatter_add_(-1, flat, columns.flatten(-2))
    return {number: context.factor(spread, number)}


def _times_activation(context: Context, step: Step, number: int, factor: Factor) -> Factor:
    """Multiply by the derivative of an activation whose only reader is this pooling, and mark it as done."""
    source = context.network.producers.get(number) if context.folding else None
    derivative = None if source is None else operation_of(source).derivative_from_output
    if source is None or derivative is None or len(context.network.uses[number]) > 1:
        return factor
    context.folded.add(source.value)
    return factor.multiply(context.cached(step, "derivative", lambda: derivative(context.values[step.value])))


def _within_window(
    context: Context, step: Step, factor: Factor, shape: tuple[int, ...], kernel: list[int], indices: Tensor
) -> Factor:
    """Copy to every non-overlapping pooling window inside a box and keep only its maximum."""
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


def avg_pool_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Repeat every entry over its window, divided by the window's size; windows that overlap or stick out are declined.

    An average is linear, so columns that all samples share stay shared, and a window of the columns grows to whole
    pooling windows.
    """
    number, axes = step.inputs[0], int(step.name[-2])
    if not context.is_target(number):
        return {}
    kernel = per_dimension(step.argument("kernel_size", context.values), axes)
    stride = per_dimension(step.argument("stride", context.values), axes) or kernel
    padding = per_dimension(step.argument("padding", context.values), axes)
    shape = context.shapes[number]
    fits = all(size // k * k == size for size, k in zip(shape[-axes:], kernel, strict=True))
    divisor = step.argument("divisor_override", context.values) if axes > 1 else None
    if stride != kernel or any(padding) or not fits or not factor.batch_first or len(shape) != axes + 2:
        return None
    if factor.window is not None and factor.window.full != factor.shape[1:]:
        factor = factor.unwindowed()
    columns = factor.product()
    lead, space = columns.shape[:-axes], columns.shape[-axes:]
    each = columns.reshape(*lead, *(length for size in space for length in (size, 1)))
    each = each.expand(*lead, *(length for pair in zip(space, kernel, strict=True) for length in pair))
    columns = (each / (divisor or prod(kernel))).reshape(*lead, *(s * k for s, k in zip(space, kernel, strict=True)))
    window = None
    if factor.window is not None:
        ranges = [(a * k, b * k) for (a, b), k in zip(factor.window.ranges[1:], kernel, strict=True)]
        window = Window(shape[1:], (factor.window.ranges[0], *ranges))
    return {number: Factor(columns, shape, None, window)}


# Squared rules


def max_pool_squared(call: SquaredCall) -> None:
    """Put m back where the maxima were, as the forward pass found them; overlapping windows add up."""
    options = [call.value(name) for name in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    call.give("self", backward(call.m, call.value("self"), *options, call.values[~call.step.value]))


def amax_squared(call: SquaredCall) -> None:
    """Share m among the entries that are equal to a maximum over dimensions, as its derivative is."""
    x = call.value("self")
    # The result is recomputed: it may have been dropped, and comparing with it is what finds the winners.
    extreme = (torch.amax if call.step.name == "amax" else torch.amin)(x, call.value("dim"))
    winners = x == restore_reduced(call, extreme)
    m = restore_reduced(call, call.m)
    count = winners.sum_to_size(m.shape)
    call.give("self", winners * (m / count.square()))


def avg_pool_squared(call: SquaredCall) -> None:
    """Pass m through the average's adjoint, divided once more by each window's divisor."""
    x = call.value("self")
    axes = int(call.step.name[-2])
    kernel = per_dimension(call.value("kernel_size"), axes)
    stride = per_dimension(call.value("stride"), axes) or kernel
    padding = per_dimension(call.value("padding"), axes)
    ceil_mode, include_pad = call.value("ceil_mode"), call.value("count_include_pad")
    override = call.value("divisor_override") if axes > 1 else None
    shape, m = x.shape, call.m
    if axes == 1:  # the 2-D kernel takes a divisor, the 1-D kernel does not
        kernel, stride, padding, axes = [1, *kernel], [1, *stride], [0, *padding], 2
        m, shape = m.unsqueeze(-2), torch.Size([*shape[:-1], 1, shape[-1]])
    pool = F.avg_pool2d if axes == 2 else F.avg_pool3d

    def averaged(t: Tensor, divisor: int | None) -> Tensor:
        return pool(t, kernel, stride, padding, ceil_mode, include_pad, divisor)  # type: ignore[arg-type]

    ones = m.new_ones(1, 1, *shape[-axes:])
    inverse_divisor = (averaged(ones, override) / averaged(ones, 1))[0]
    with torch.enable_grad():
        leaf = m.new_zeros(()).expand(shape).requires_grad_()
        (to_input,) = torch.autograd.grad(averaged(leaf, override), leaf, m * inverse_divisor)
    call.give("self", to_input.reshape(x.shape))


def adaptive_avg_pool_squared(call: SquaredCall) -> None:
    """Pass m through separable averages over windows whose sizes may differ by one."""
    x, m = call.value("self"), call.m
    axes = int(call.step.name[-2])
    for dim in range(-axes, 0):
        size, pooled = x.shape[dim], m.shape[dim]
        if pooled == 1:
            m = (m / size**2).expand(*m.shape[:dim], size, *m.shape[m.dim() + dim + 1 :])
        else:
            identity = torch.eye(size, dtype=m.dtype, device=m.device)
            matrix = F.adaptive_avg_pool1d(identity[None], pooled)[0].T
            m = apply_squared(m, squared_taps(matrix), size, dim)
    call.give("self", m)


MAXIMUM = SquaredRule(adjoint_squared, read_everything, "m to the winning entry, added up where windows overlap")

register(
    "max_pool2d",
    vjp=max_pool_vjp,
    vjp_reads="output",
    absorbs_activation=True,
    forward_with_extra=max_pool_with_positions,
    squared=replace(MAXIMUM, apply=max_pool_squared, reads=read_nothing),
)
register(
    "max_pool1d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d",
    squared=MAXIMUM,
)  # fmt: skip
register(
    "max", "min",
    squared=SquaredRule(adjoint_squared, read_everything, "along one dimension: m to the winning entry"),
)  # fmt: skip
register("amax", "amin", squared=SquaredRule(amax_squared, read_everything, "m / k² to each of k equal winners"))
register(
    "avg_pool1d", "avg_pool2d", "avg_pool3d",
    vjp=avg_pool_vjp,
    vjp_reads="nothing",
    squared=SquaredRule(
        avg_pool_squared,
        read_nothing,
        "sum over windows of m / w², w the divisor of that window (padding, ceil_mode, divisor_override)",
    ),
)  # fmt: skip
register(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    squared=SquaredRule(adaptive_avg_pool_squared, read_nothing, "squared 1-D averaging matrices along each axis"),
)  # fmt: skip

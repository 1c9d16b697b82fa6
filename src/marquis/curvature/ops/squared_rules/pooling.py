"""Pooling: maxima send m to the winning entry, averages send m / w² to each of the w entries."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from marquis.curvature.ops.squared_rules.registry import Local, everything, nothing, rule
from marquis.curvature.ops.squared_rules.resizing import apply_squared, squared_taps
from marquis.curvature.ops.squared_rules.shapes import adjoint, restore_reduced

_MAXIMA = (
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
)  # fmt: skip


@rule(*_MAXIMA, reads=everything, note="m to the winning entry, added up where windows overlap")
def max_pool(local: Local) -> None:
    """The Jacobian has entries 0 and 1, so m goes through the ordinary adjoint."""
    adjoint(local)


@rule("max", "min", reads=everything, note="along one dimension: m to the winning entry")
def maximum_along(local: Local) -> None:
    """Values and indices along one dimension; entrywise maxima of two tensors are elementwise."""
    adjoint(local)


@rule("amax", "amin", reads=everything, note="m / k² to each of k equal winners")
def amax(local: Local) -> None:
    """Maximum over dimensions; its derivative is shared among ties."""
    x = local.value("self")
    # The result is recomputed: it may have been dropped, and comparing with it is what finds the winners.
    extreme = (torch.amax if local.step.name == "amax" else torch.amin)(x, local.value("dim"))
    winners = x == restore_reduced(local, extreme)
    m = restore_reduced(local, local.m)
    count = winners.sum_to_size(m.shape)
    local.give("self", winners * (m / count.square()))


@rule(
    "avg_pool1d", "avg_pool2d", "avg_pool3d", reads=nothing,
    note="sum over windows of m / w², w the divisor of that window (padding, ceil_mode, divisor_override)",
)  # fmt: skip
def avg_pool(local: Local) -> None:
    """The average's adjoint, with m divided once more by each window's divisor."""
    x = local.value("self")
    axes = int(local.step.name[-2])
    kernel = _per_axis(local.value("kernel_size"), axes)
    stride = _per_axis(local.value("stride"), axes) or kernel
    padding = _per_axis(local.value("padding"), axes)
    ceil_mode, include_pad = local.value("ceil_mode"), local.value("count_include_pad")
    override = local.value("divisor_override") if axes > 1 else None
    shape, m = x.shape, local.m
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
    local.give("self", to_input.reshape(x.shape))


def _per_axis(value: Any, axes: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * axes if len(numbers) == 1 else numbers


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", reads=nothing, note="squared 1-D averaging matrices along each axis",
)  # fmt: skip
def adaptive_avg_pool(local: Local) -> None:
    """Separable averages over windows whose sizes may differ by one."""
    x, m = local.value("self"), local.m
    axes = int(local.step.name[-2])
    for dim in range(-axes, 0):
        size, pooled = x.shape[dim], m.shape[dim]
        if pooled == 1:
            m = (m / size**2).expand(*m.shape[:dim], size, *m.shape[m.dim() + dim + 1 :])
        else:
            identity = torch.eye(size, dtype=m.dtype, device=m.device)
            matrix = F.adaptive_avg_pool1d(identity[None], pooled)[0].T
            m = apply_squared(m, squared_taps(matrix), size, dim)
    local.give("self", m)

"""Define the rules of up- and down-sampling.

Index letters: `c` columns of the factor S, `n` samples. Along each axis the operation is a sparse matrix U with few
entries per row, so that the cost is linear in the number of pixels.

* Vector-Jacobian product (`upsample_nearest2d`; the others go through local autograd): sum over the copies.
* Squared rule: `m_x = (U²)ᵀ m` along each axis. (The adjoint interpolation of m would be Uᵀ m, another number.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context, SquaredCall
from marquis.curvature.ops.registry import SquaredRule, read_nothing, register


def upsample_nearest_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Sum over the copies of each entry, where every entry has as many."""
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


def nearest_squared(call: SquaredCall) -> None:
    """Pass m through the ordinary adjoint, since entries are only copied."""
    name = call.input_name
    axes = int(call.step.name[-2])
    backward = getattr(torch.ops.aten, f"{call.step.name}_backward").default
    m, shape = call.m, list(call.value(name).shape)
    call.give(name, backward(m, list(m.shape[2:]), shape, *_scales(call, axes)))


def interpolation_squared(call: SquaredCall) -> None:
    """Pass m through a separable interpolation, with or without aligned corners."""
    name = call.input_name
    shape, m = call.value(name).shape, call.m
    axes = len(shape) - 2
    for axis, scale in enumerate(_scales(call, axes)):
        dim = axis - axes
        size = shape[dim]
        matrix = _interpolation_matrix(call, size, m.shape[dim], scale, m)
        m = apply_squared(m, squared_taps(matrix), size, dim)
    call.give(name, m)


def _scales(call: SquaredCall, axes: int) -> list[float | None]:
    """Return the explicit scale factor of each axis, first axis first; None where the sizes decide."""
    if call.step.has_argument("scale_factors"):
        factors = call.value("scale_factors")
        return [None] * axes if factors is None else list(factors)
    if axes == 1:
        return [call.value("scales")]
    return [call.value(name) for name in ("scales_d", "scales_h", "scales_w")[3 - axes :]]


def _interpolation_matrix(call: SquaredCall, size: int, resized: int, scale: float | None, like: Tensor) -> Tensor:
    """Return U (resized x size) by interpolating the identity along one axis."""
    identity = torch.eye(size, dtype=like.dtype, device=like.device)
    align, name = call.value("align_corners"), call.step.name
    if "cubic" in name or name.endswith("_aa"):
        op = getattr(torch.ops.aten, name).default
        # The columns stay as wide as they are (at width 1 the antialiased kernel of torch 2.13 repeats its first row).
        return op(identity[None, None], [resized, size], align, scale, None)[0, 0]
    return torch.ops.aten.upsample_linear1d.default(identity[None], [resized], align, scale)[0].T


def squared_taps(matrix: Tensor) -> tuple[Any, Tensor]:
    """Return columns and squared weights of the non-zero entries of each row, or the dense square if they are many."""
    count = int((matrix != 0).sum(1).max())
    if count > 4:
        return None, matrix.square()
    magnitudes, columns = matrix.abs().topk(count, dim=1)
    return columns, magnitudes.square()


def apply_squared(m: Tensor, taps: tuple[Any, Tensor], size: int, dim: int) -> Tensor:
    """Compute (U²)ᵀ m along one dimension."""
    columns, weights = taps
    if columns is None:
        return (m.movedim(dim, -1) @ weights).movedim(-1, dim)
    result = m.new_zeros([*m.shape[:dim], size, *m.shape[m.dim() + dim + 1 :]])
    broadcast = [-1] + [1] * (-dim - 1)
    for tap in range(columns.shape[1]):
        result.index_add_(dim, columns[:, tap], m * weights[:, tap].reshape(broadcast))
    return result


NEAREST = SquaredRule(nearest_squared, read_nothing, "m added up over the copies of each entry")
INTERPOLATION = SquaredRule(
    interpolation_squared, read_nothing, "squared 1-D interpolation matrices along each axis, per channel"
)

register("upsample_nearest2d", vjp=upsample_nearest_vjp, vjp_reads="nothing", squared=NEAREST)
register(
    "upsample_nearest1d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    squared=NEAREST,
)  # fmt: skip
register(
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    squared=INTERPOLATION,
)  # fmt: skip

"""Up- and down-sampling. Linear and cubic interpolation act along each axis with a sparse matrix U: m_x = (U²)ᵀ m.

(The adjoint interpolation of m would be Uᵀ m, another number.) U has few entries per row, so the cost is linear in
the number of pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marquis.curvature.ops.squared_rules.registry import Local, nothing, rule

_NEAREST = tuple(f"{name}{axes}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for axes in (1, 2, 3))
_INTERPOLATION = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


def _scales(local: Local, axes: int) -> list[float | None]:
    """The explicit scale factor of each axis, first axis first; None where the sizes decide."""
    names = [formal.name for formal in local.step.op._schema.arguments]
    if "scale_factors" in names:
        factors = local.value("scale_factors")
        return [None] * axes if factors is None else list(factors)
    if axes == 1:
        return [local.value("scales")]
    return [local.value(name) for name in ("scales_d", "scales_h", "scales_w")[3 - axes :]]


def _source(local: Local) -> str:
    return "input" if any(formal.name == "input" for formal in local.step.op._schema.arguments) else "self"


@rule(*_NEAREST, reads=nothing, note="m added up over the copies of each entry")
def nearest(local: Local) -> None:
    """Copies only: the ordinary adjoint."""
    name = _source(local)
    axes = int(local.step.name[-2])
    backward = getattr(torch.ops.aten, f"{local.step.name}_backward").default
    m, shape = local.m, list(local.value(name).shape)
    local.give(name, backward(m, list(m.shape[2:]), shape, *_scales(local, axes)))


@rule(*_INTERPOLATION, reads=nothing, note="squared 1-D interpolation matrices along each axis, per channel")
def interpolation(local: Local) -> None:
    """Separable interpolation, with or without aligned corners."""
    name = _source(local)
    shape, m = local.value(name).shape, local.m
    axes = len(shape) - 2
    for axis, scale in enumerate(_scales(local, axes)):
        dim = axis - axes
        size = shape[dim]
        matrix = _matrix(local, size, m.shape[dim], scale, m)
        m = apply_squared(m, squared_taps(matrix), size, dim)
    local.give(name, m)


def _matrix(local: Local, size: int, resized: int, scale: float | None, like: Tensor) -> Tensor:
    """U (resized x size) by interpolating the identity along one axis."""
    identity = torch.eye(size, dtype=like.dtype, device=like.device)
    align, kind = local.value("align_corners"), local.step.name
    if "cubic" in kind or kind.endswith("_aa"):
        op = getattr(torch.ops.aten, kind).default
        # The columns stay as wide as they are (at width 1 the antialiased kernel of torch 2.13 repeats its first row).
        return op(identity[None, None], [resized, size], align, scale, None)[0, 0]
    return torch.ops.aten.upsample_linear1d.default(identity[None], [resized], align, scale)[0].T


def squared_taps(matrix: Tensor) -> tuple[Any, Tensor]:
    """Columns and squared weights of the non-zero entries of each row, or the dense square if they are many."""
    count = int((matrix != 0).sum(1).max())
    if count > 4:
        return None, matrix.square()
    magnitudes, columns = matrix.abs().topk(count, dim=1)
    return columns, magnitudes.square()


def apply_squared(m: Tensor, taps: tuple[Any, Tensor], size: int, dim: int) -> Tensor:
    """(U²)ᵀ m along one dimension."""
    columns, weights = taps
    if columns is None:
        return (m.movedim(dim, -1) @ weights).movedim(-1, dim)
    result = m.new_zeros([*m.shape[:dim], size, *m.shape[m.dim() + dim + 1 :]])
    broadcast = [-1] + [1] * (-dim - 1)
    for tap in range(columns.shape[1]):
        result.index_add_(dim, columns[:, tap], m * weights[:, tap].reshape(broadcast))
    return result

"""Recompress a factor: an exact square root of M with as many columns as the tensor is wide.

See docs/method/curvature.md, Recompression.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.curvature.backward.output_roots import ExplicitRoot
from marquis.curvature.factors.factor import Factor, Window
from marquis.errors import NumericalError

LARGEST_JITTER = 1e-4
"""Share of the mean diagonal that may be added to M to make it factorisable; rounding needs far less."""


@dataclass(eq=False)
class TriangularRoot(ExplicitRoot):
    """Provide columns of a lower triangular root: column c is zero above entry c, so a chunk has a window."""

    def __init__(self, lower: Tensor, shape: tuple[int, ...]) -> None:
        """Keep the factor [n or 1, w, w] as it is; columns are cut from it."""
        self.lower = lower
        self.shape = shape
        self.shared = lower.shape[0] == 1 and shape[0] != 1

    @property
    def count(self) -> int:  # type: ignore[override]
        """Return the number of columns: the width of the bottleneck."""
        return self.lower.shape[-1]

    def make(self, chunk: object) -> Factor:
        """Return columns [start, stop), cropped to the rows from start on."""
        start, stop = chunk  # type: ignore[misc]
        columns = self.lower[:, start:, start:stop].permute(2, 0, 1)
        if len(self.shape) == 2:
            window = Window((self.count,), ((start, self.count),))
            return Factor(columns, self.shape, None, window if start else None)
        whole = columns.new_zeros(stop - start, columns.shape[1], self.count)
        whole[:, :, start:] = columns
        return Factor(whole.view(stop - start, columns.shape[1], *self.shape[1:]), self.shape)


def add_gram(gram: Tensor | None, factor: Factor, width: int) -> Tensor:
    """Add S Sᵀ of one chunk to M, [n or 1, w, w], in the window that the chunk touches."""
    columns = factor.product()
    flat = columns.reshape(columns.shape[0], columns.shape[1], -1)
    n = flat.shape[1]
    window = factor.window
    if gram is None:
        gram = flat.new_zeros(n, width, width)
    if window is None or window.is_everything:
        by_sample = flat.transpose(0, 1)
        return gram.baddbmm_(by_sample.transpose(1, 2), by_sample)
    index = torch.arange(width, device=flat.device).view(window.full)[window.slices].flatten()
    by_sample = flat.transpose(0, 1)
    gram[:, index[:, None], index] += by_sample.transpose(1, 2) @ by_sample
    return gram


def square_root(gram: Tensor, where: str) -> Tensor:
    """Return lower triangular L with L Lᵀ = M, for positive semi-definite M that may be singular.

    Rounding makes a singular M slightly indefinite; the jitter starts at the rounding error of M itself, and more than
    `LARGEST_JITTER` of the mean diagonal is never added silently.
    """
    if not bool(torch.isfinite(gram).all()):
        raise NumericalError(
            f"the curvature at the output of {where} is not finite; check the network's outputs and data."
        )
    level = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    tiny = torch.finfo(gram.dtype).tiny ** 0.5
    jitter = 0.0
    while jitter <= LARGEST_JITTER:
        lifted = gram
        if jitter:
            lifted = gram.clone()
            lifted.diagonal(dim1=-2, dim2=-1).add_((jitter * level + tiny)[:, None])
        lower, info = torch.linalg.cholesky_ex(lifted)
        if not bool(info.any()):
            return lower
        jitter = 10 * jitter or torch.finfo(gram.dtype).eps
    raise NumericalError(
        f"the curvature at the output of {where} (width {gram.shape[-1]}) is not positive semi-definite even with a "
        f"relative jitter of {LARGEST_JITTER:.1g}; compute in float64."
    )

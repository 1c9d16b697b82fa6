"""Represent curvature by columns instead of a matrix: the exact dual form, and its truncation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.errors import DataError, NumericalError
from marquis.structures.base import Part, Structure
from marquis.structures.layout import DiagonalLike, Layout, Scalar
from marquis.structures.linalg import as_number, check_factor, cholesky, eigh_psd, require_consistent, square_root
from marquis.structures.operators import DenseOperator, Operator, as_rows, gram


@dataclass(frozen=True, eq=False, repr=False, init=False)
class LowRank(Structure):
    """Keep A = diag + scale * G G^T with columns `G [P, R]` (docs/method/posterior.md#low-rank-samples).

    Exact, not an approximation, when G holds one column per sample and output. Inverted by Woodbury's
    identity through an `[R, R]` matrix: O(P R^2 + R^3) once, O(P R) per product and sample, memory P R. From
    R >= P on the `[P, P]` matrix is the smaller one and is used instead.

    Inverses need a positive diagonal, so `add_diagonal` comes first. Between processes the columns are
    gathered (`reduction = "gather"`), not summed.

    Args:
        layout: Names and shapes of the parameters.
        columns: `[P, R]`, R >= 0.
        diagonal: What to add to the diagonal, as in `add_diagonal`.
        scale: Non-negative scalar in front of G G^T (not of the diagonal).
    """

    kind: ClassVar[str] = "lowrank"
    reduction: ClassVar[Literal["sum", "gather"]] = "gather"
    layout: Layout
    columns: Tensor
    shift: Tensor | None
    """The added diagonal `[P]`."""
    scale: Scalar

    def __init__(
        self,
        layout: Layout,
        columns: Tensor,
        diagonal: DiagonalLike | None = None,
        scale: Scalar = 1.0,
    ) -> None:
        """Check shape and finiteness."""
        require_consistent([columns], "columns")
        if columns.dim() != 2 or columns.shape[0] != layout.total:
            raise DataError(f"columns have shape {tuple(columns.shape)}, expected ({layout.total}, R)")
        layout.check_finite(columns, "columns", axis=0)
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "shift", None if diagonal is None else layout.vector(diagonal, columns))
        object.__setattr__(self, "scale", check_factor(scale, "scale", columns))

    @property
    def rank(self) -> int:
        """Return R, the number of columns."""
        return self.columns.shape[1]

    def _make_parts(self) -> Sequence[Part]:
        diagonal = self.columns.new_zeros(self.layout.total) if self.shift is None else self.shift
        operator: Operator = LowRankOperator(self.columns, diagonal, self.scale, self.layout)
        if self.rank >= self.layout.total and operator.invertible:
            operator = DenseOperator(operator.to_dense(), "the low-rank matrix with its diagonal")
        return ((self.layout.names, operator),)

    def truncate(self, rank: int) -> Self:
        """Keep the `rank` largest eigenvalues of G G^T (the best such approximation); the diagonal stays.

        By the eigen-decomposition of the smaller of G^T G and G G^T: O(P R min(P, R) + min(P, R)^3). With rank
        at least min(P, R) nothing is lost, and R > P shrinks to P columns.
        """
        if rank < 0:
            raise DataError(f"rank has to be 0 or more, got {rank}")
        if self.rank <= min(rank, self.layout.total):
            return self
        dual = self.rank <= self.layout.total
        small = self.columns.mT @ self.columns if dual else self.columns @ self.columns.mT
        values, vectors = eigh_psd(small, "the Gram matrix of the columns")
        largest = slice(max(len(values) - rank, 0), None)
        # G V has columns sqrt(l) u already; the primal eigenvectors still need their length.
        columns = self.columns @ vectors[:, largest] if dual else vectors[:, largest] * values[largest].sqrt()
        return type(self)(self.layout, columns, self.shift, self.scale)

    def tensors(self) -> list[Tensor]:
        """Return the columns, then the diagonal if any; gather these over processes, do not sum them."""
        return [self.columns] if self.shift is None else [self.columns, self.shift]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same layout and scale with other columns and diagonal."""
        columns, *diagonal = tensors
        return type(self)(self.layout, columns, diagonal[0] if diagonal else None, self.scale)

    def add_diagonal(self, diagonal: DiagonalLike) -> Self:
        """Return A + diag(d), O(P); the columns are shared, not copied."""
        extra = self.layout.vector(diagonal, self.columns)
        return type(self)(self.layout, self.columns, extra if self.shift is None else self.shift + extra, self.scale)

    def by_parameter(self) -> dict[str, LowRank]:
        """Return name to the low-rank matrix over that parameter alone."""
        blocks = {}
        for name in self.layout.names:
            place = self.layout.slice(name)
            diagonal = None if self.shift is None else self.shift[place]
            blocks[name] = LowRank(self.layout.select([name]), self.columns[place], diagonal, self.scale)
        return blocks

    def _plus(self, other: Any) -> Self:
        if self.shift is None or other.shift is None:
            diagonal = other.shift if self.shift is None else self.shift
        else:
            diagonal = self.shift + other.shift
        # A tensor may carry a gradient, so that an equal value is not the same.
        plain = not isinstance(self.scale, Tensor) and not isinstance(other.scale, Tensor)
        if self.scale is other.scale or (plain and self.scale == other.scale):
            return type(self)(self.layout, torch.cat([self.columns, other.columns], 1), diagonal, self.scale)
        columns = [value.columns * square_root(value.scale, value.columns) for value in (self, other)]
        return type(self)(self.layout, torch.cat(columns, 1), diagonal)

    def _times(self, factor: Scalar) -> Self:
        diagonal = None if self.shift is None else self.shift * factor
        return type(self)(self.layout, self.columns, diagonal, self.scale * factor)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = {"columns": self.columns} | ({} if self.shift is None else {"shift": self.shift})
        return {"scale": as_number(self.scale), "shifted": self.shift is not None}, tensors

    @classmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        diagonal = tensors["shift"] if meta["shifted"] else None
        return cls(layout, tensors["columns"], diagonal, meta["scale"])

    def _summary(self) -> str:
        return f"rank {self.rank}{'' if self.shift is None else ' + diagonal'}"


@dataclass(frozen=True, eq=False)
class LowRankOperator(Operator):
    """Invert D + c G G^T by Woodbury: A^-1 = D^-1 - c D^-1 G C^-1 G^T D^-1 with C = I + c G^T D^-1 G.

    Products and solves cost O(n R), `to_dense` O(n^2 R).
    """

    columns: Tensor
    values: Tensor
    factor: Scalar
    layout: Layout

    @property
    def size(self) -> int:
        return self.columns.shape[0]

    @property
    def noise_dim(self) -> int:
        """Return the number of random numbers per sample: one per weight and one per column."""
        return self.size + self.columns.shape[1]

    @property
    def invertible(self) -> bool:
        """Return whether the diagonal alone already is positive, as Woodbury needs."""
        return not self.size or float(self.values.detach().amin()) >= torch.finfo(self.values.dtype).tiny

    @cached_property
    def _diagonal(self) -> Tensor:
        """Return the diagonal D, if it is positive everywhere."""
        if not self.invertible:
            name = self.layout.locate(int(self.values.detach().argmin()))
            raise NumericalError(
                f"the low-rank matrix has no positive diagonal at parameter {name!r}, so it cannot be inverted:"
                " add_diagonal (a prior precision) first"
            )
        return self.values

    @cached_property
    def _core(self) -> Tensor:
        """Return Cholesky factor of C `[R, R]`."""
        inner = self.columns.mT @ (self.columns / self._diagonal.unsqueeze(1)) * self.factor
        identity = torch.eye(inner.shape[0], dtype=inner.dtype, device=inner.device)
        return cholesky(identity + (inner + inner.mT) / 2, "the dual matrix I + G^T D^-1 G of the low-rank matrix")

    def _weights(self, v: Tensor) -> Tensor:
        """Apply C^-1 to the last axis of `[..., R]`."""
        return torch.cholesky_solve(as_rows(v).mT, self._core).mT.reshape(v.shape)

    def _leverage(self) -> Tensor:
        """Return by how much the columns reduce the diagonal of D^-1, `[n]`."""
        half = torch.linalg.solve_triangular(self._core, self.columns.mT, upper=False)
        return self.factor * half.square().sum(0) / self._diagonal.square()

    def to_dense(self) -> Tensor:
        return self.factor * (self.columns @ self.columns.mT) + torch.diag(self.values)

    def diagonal(self) -> Tensor:
        return self.factor * self.columns.square().sum(1) + self.values

    def matvec(self, v: Tensor) -> Tensor:
        return self.factor * ((v @ self.columns) @ self.columns.mT) + self.values * v

    def logdet(self) -> Tensor:
        """Return the sum of log d, plus log det C."""
        return self._diagonal.log().sum() + 2 * self._core.diagonal().log().sum()

    def solve(self, v: Tensor) -> Tensor:
        scaled = v / self._diagonal
        correction = self._weights(scaled @ self.columns) @ self.columns.mT
        return scaled - self.factor * correction / self._diagonal

    def sample_from(self, z: Tensor) -> Tensor:
        """Map noise by Matheron's rule: a sample of the diagonal, corrected by its product with the columns."""
        prior = z[..., : self.size] / self._diagonal.sqrt()
        root = square_root(self.factor, z)
        noisy = root * (prior @ self.columns) + z[..., self.size :]
        return prior - root * (self._weights(noisy) @ self.columns.mT) / self._diagonal

    def quadratic(self, jacobian: Tensor, diagonal_only: bool) -> Tensor:
        """Return (J M)(J M)^T with Matheron's map M: a sum of squares, where the difference could turn negative."""
        root = square_root(self.factor, jacobian)
        gain = self._weights(root * ((jacobian / self._diagonal) @ self.columns))
        rest = (jacobian - root * (gain @ self.columns.mT)) / self._diagonal.sqrt()
        return gram(rest, diagonal_only) + gram(gain, diagonal_only)

    def inverse_diagonal(self) -> Tensor:
        """Return diag(A^-1) in O(n R^2), kept above the bound 1 / A_ii, which rounding could undercut."""
        return torch.maximum(1 / self._diagonal - self._leverage(), 1 / self.diagonal())

    def effective_dimension(self, d: Tensor) -> Tensor:
        """Return e / (e + d) + d * leverage for its diagonal e, without a difference of nearly equal numbers."""
        if self.columns.shape[1] >= self.size:
            return DenseOperator(self.to_dense(), "the low-rank matrix").effective_dimension(d)
        total = LowRankOperator(self.columns, self.values + d, self.factor, self.layout)
        return (self.values / total._diagonal + d * total._leverage()).clamp(0, 1)

"""Represent Kronecker eigenvectors with eigenvalues of their own (EKFAC; docs/method/kronecker.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.errors import DataError, ModelMismatchError
from marquis.structures.kronecker_operator import KroneckerOperator
from marquis.structures.layout import Scalar
from marquis.structures.linalg import require_finite
from marquis.structures.operators import Operator
from marquis.structures.pieces import KroneckerPiece, Piece, require_channels


@dataclass(frozen=True, eq=False)
class CorrectedOperator(KroneckerOperator):
    """Represent `(Q (x) R) diag(factor values) (Q (x) R)^T + shift I` per group.

    `left` and `right` hold the eigenvectors Q and R here; everything that a Kronecker product computes from
    eigenvalues is inherited.
    """

    values: Tensor = field(kw_only=True)

    @property
    def bases(self) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.left, self.right

    @property
    def _curvature(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.factor * self.values

    def matvec(self, v: Tensor) -> Tensor:
        return self._from_eigenbasis(self._to_eigenbasis(v) * (self._curvature + self.shift))

    def diagonal(self) -> Tensor:
        return self._spread_squares(self._curvature + self.shift)

    def to_dense(self) -> Tensor:
        return self.matvec(torch.eye(self.size, dtype=self.left.dtype, device=self.left.device))


@dataclass(frozen=True, eq=False)
class CorrectedPiece(Piece):
    """Keep the eigenvectors of a Kronecker piece and the curvature along each, `[g, r, s]`.

    The values are the diagonal of the exact block in the basis `Q (x) R`, so no other values are nearer to it in
    Frobenius norm, plain Kronecker's products of eigenvalues included. Sums add values in the same basis.

    Args:
        left: Q, `[g, r, r]`.
        right: R, `[g, s, s]`.
        values: Summed over the data, `[g, r, s]`.
        channels: How the parameter is ordered, as in `KroneckerPiece`.
    """

    kind: ClassVar[str] = "corrected"
    left: Tensor
    right: Tensor
    values: Tensor
    channels: int = 1

    @classmethod
    def of(cls, piece: KroneckerPiece, name: str) -> Self:
        """Return the piece with the eigenvectors of a Kronecker piece and no curvature yet."""
        (_, left), (_, right) = piece.eigen(name)
        return cls(left, right, left.new_zeros(left.shape[0], left.shape[-1], right.shape[-1]), piece.channels)

    def tensors(self) -> list[Tensor]:
        """Return the values: bases are not added."""
        return [self.values]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return other values in the same basis."""
        (values,) = tensors
        return type(self)(self.left, self.right, values, self.channels)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Return the piece in another dtype or on another device."""
        moved = (t.to(dtype=dtype, device=device) for t in (self.left, self.right, self.values))
        return type(self)(*moved, channels=self.channels)

    def plus(self, other: Piece, name: str) -> Self:
        """Return the sum of both values, which have to be in one basis."""
        same = isinstance(other, CorrectedPiece) and (
            other.left is self.left or (torch.equal(other.left, self.left) and torch.equal(other.right, self.right))
        )
        if not same:
            raise ModelMismatchError(f"parameter {name!r}: corrected curvatures add up only in one eigenbasis.")
        return super().plus(other, name)

    def check(self, name: str, size: int) -> None:
        """Check shapes and finiteness."""
        what = f"corrected curvature of parameter {name!r}"
        g, r, s = self.values.shape
        if g * r * s != size or self.left.shape != (g, r, r) or self.right.shape != (g, s, s):
            raise DataError(f"{what} has shape {tuple(self.values.shape)} for {size} weights; expected [g, r, s].")
        require_channels(self.channels, s, what)
        for tensor in (self.left, self.right, self.values):
            require_finite(tensor, what)

    def operator(self, name: str, scale: Scalar, shift: Tensor) -> Operator:
        """Return the piece as a matrix, with scale and added diagonal."""
        named = f"parameter {name!r}"
        return CorrectedOperator(
            self.left, self.right, _no_eigen, scale, shift, named, self.channels, values=self.values
        )

    accept = KroneckerPiece.accept  # a constant diagonal only, for the same reason


def _no_eigen() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    raise AssertionError("a corrected block has its eigenvectors already")

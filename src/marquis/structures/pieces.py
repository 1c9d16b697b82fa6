"""Hold what a Kronecker structure keeps for one parameter: a pair of factors, a dense block or a diagonal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.structures.kronecker_operator import Eigen, KroneckerOperator
from marquis.structures.layout import Scalar
from marquis.structures.linalg import (
    as_number,
    check_factor,
    convert,
    eigh_psd,
    require_finite,
    require_symmetric,
    square_root,
)
from marquis.structures.operators import DenseOperator, DiagonalOperator, Operator


class KroneckerFactors(NamedTuple):
    """Hold one parameter's matrix `left (x) right + shift I` per group, scale and count already inside left.

    It is for the parameter as `[g, r, s]`; with `channels` i other than 1 that is `[g, i, r, s / i]`, i and r swapped.
    """

    left: Tensor
    right: Tensor
    shift: Tensor
    channels: int = 1


def require_channels(channels: int, side: int, what: str) -> None:
    """Raise unless the inputs' side of a parameter is a whole number of `channels`."""
    if type(channels) is not int or channels < 1 or side % channels:
        raise DataError(f"{what}: {side} inputs are no multiple of {channels} channels")


class Piece(ABC):
    """Hold one parameter's accumulators; `+` is the joint batch, `weighted` is forgetting."""

    kind: ClassVar[str]

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the accumulators; their element-wise sum is the sum of two pieces."""

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same kind of piece with other accumulators, which are all that it is made of."""
        return type(self)(*tensors)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Return the piece in another dtype or on another device; counts stay in float64, being no matrix."""
        matrices = [convert(t, dtype if t.dim() else t.dtype, device, symmetric=True) for t in self.tensors()]
        return self.with_tensors(matrices)

    @abstractmethod
    def check(self, name: str, size: int) -> None:
        """Check shape, symmetry and finiteness."""

    @abstractmethod
    def operator(self, name: str, scale: Scalar, shift: Tensor) -> Operator:
        """Return the matrix scale * piece + diag(shift)."""

    @cached_property
    def _fits(self) -> set[int]:
        """Return the sizes for which the piece was checked already."""
        return set()

    def require_fit(self, name: str, size: int) -> None:
        """Run `check` once: the same piece goes through many scales and priors while these are tuned."""
        if size not in self._fits:
            self.check(name, size)
            self._fits.add(size)

    def skip_check(self, size: int) -> None:
        """Skip `check` for this size: the caller guarantees shape, symmetry and finiteness."""
        self._fits.add(size)

    def accept(self, name: str, diagonal: Tensor) -> Tensor:
        """Return the diagonal in the form that this piece can add, or raise."""
        return diagonal

    def plus(self, other: Piece, name: str) -> Self:
        """Return the piece with the accumulators of both added."""
        tensors, others = self.tensors(), other.tensors()
        if type(other) is not type(self) or [t.shape for t in tensors] != [t.shape for t in others]:
            raise ModelMismatchError(
                f"parameter {name!r} is kept as {self.kind} {[tuple(t.shape) for t in tensors]} and as"
                f" {other.kind} {[tuple(t.shape) for t in others]}: the two were computed differently"
            )
        return self.with_tensors([a + b for a, b in zip(tensors, others, strict=True)])

    def weighted(self, factor: Scalar) -> Self:
        """Return the piece with every accumulator multiplied by a factor."""
        return self.with_tensors([tensor * factor for tensor in self.tensors()])


@dataclass(frozen=True, eq=False)
class KroneckerPiece(Piece):
    """Keep `left (x) right / count` per group, for a row-major parameter `[g, r, s]` (docs/method/kronecker.md).

    A linear layer has one group, r outputs, s inputs; left is the sum of output curvatures, right the sum
    of input products, count the number of terms. A count of 0 is the empty batch: a zero matrix.

    Args:
        left: `[g, r, r]`.
        right: `[g, s, s]`.
        count: Number of terms in the sums.
        channels: Input channels i of a parameter `[g, i, r, s / i]`, where they stand before the r outputs (transposed
            convolutions); 1 for `[g, r, s]`.
    """

    kind: ClassVar[str] = "kronecker"
    left: Tensor
    right: Tensor
    count: float
    channels: int = 1

    def __post_init__(self) -> None:
        """Keep the count as a plain number."""
        object.__setattr__(self, "count", as_number(check_factor(self.count, "count")))

    def tensors(self) -> list[Tensor]:
        """Return left, right and count; the count in float64 where the device has it."""
        wide = torch.float32 if self.left.device.type == "mps" else torch.float64
        return [self.left, self.right, torch.tensor(self.count, dtype=wide, device=self.left.device)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same kind of piece with other accumulators."""
        left, right, count = tensors
        return type(self)(left, right, as_number(count), self.channels)

    def plus(self, other: Piece, name: str) -> Self:
        """Return the piece with the accumulators of both added; both have to order the parameter alike."""
        if isinstance(other, KroneckerPiece) and other.channels != self.channels:
            raise ModelMismatchError(f"parameter {name!r} is kept in two orders: the two were computed differently")
        return super().plus(other, name)

    def check(self, name: str, size: int) -> None:
        """Check shape, symmetry and finiteness."""
        what = f"Kronecker factors of parameter {name!r}"
        left, right = tuple(self.left.shape), tuple(self.right.shape)
        if len(left) != 3 or len(right) != 3 or left[0] != right[0] or left[0] * left[1] * right[1] != size:
            raise DataError(
                f"{what} have shapes {left} and {right}; expected [g, r, r] and [g, s, s] with g r s = {size}"
            )
        require_channels(self.channels, right[1], what)
        for factor in (self.left, self.right):
            require_finite(factor, what)
            require_symmetric(factor, what)

    @cached_property
    def decomposed(self) -> dict[str, Eigen]:
        """Return the eigen-decompositions computed so far, by side; another process may have computed them."""
        return {}

    def decompose(self, name: str, side: str) -> Eigen:
        """Return the eigen-decomposition of one factor, computed once however often scale and diagonal change.

        Args:
            name: That of the parameter, for messages.
            side: "left" or "right".
        """
        if side not in self.decomposed:
            what = f"the {side} Kronecker factor of parameter {name!r}"
            self.decomposed[side] = eigh_psd(getattr(self, side), what)
        return self.decomposed[side]

    def eigen(self, name: str) -> tuple[Eigen, Eigen]:
        """Return the eigen-decompositions of both factors."""
        return self.decompose(name, "left"), self.decompose(name, "right")

    def operator(self, name: str, scale: Scalar, shift: Tensor) -> Operator:
        """Return the eigen-decomposed block."""
        factor = scale / self.count if self.count else 0.0
        eigen = partial(self.eigen, name)
        return KroneckerOperator(self.left, self.right, eigen, factor, shift, f"parameter {name!r}", self.channels)

    def accept(self, name: str, diagonal: Tensor) -> Tensor:
        """Return a constant; anything else would not share the eigenvectors."""
        if diagonal.dim() == 0 or diagonal.numel() == 0:
            return diagonal if diagonal.dim() == 0 else diagonal.new_zeros(())
        lowest, highest = diagonal.detach().aminmax()
        if float(lowest) != float(highest):
            raise UnsupportedOperationError(
                f"the diagonal varies within parameter {name!r}, which is kept as Kronecker factors: their"
                " eigenvectors diagonalise A + d I only for constant d. Give one value per parameter, or use"
                " the structure 'diagonal', 'block', 'lowrank' or 'full'"
            )
        return diagonal[0]

    def damped(self, scale: Scalar, d: Tensor) -> Self:
        """Return (G + sqrt(d) I) (x) (A + sqrt(d) I), scale and 1/count shared equally by G and A."""
        share = square_root(scale / self.count if self.count else 0.0, self.left)

        def shifted(factor: Tensor) -> Tensor:
            identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
            return share * factor + d.sqrt() * identity

        return type(self)(shifted(self.left), shifted(self.right), 1.0, self.channels)


@dataclass(frozen=True, eq=False)
class DensePiece(Piece):
    """Keep a dense `[size, size]` block: biases and other small parameters."""

    kind: ClassVar[str] = "dense"
    matrix: Tensor

    def tensors(self) -> list[Tensor]:
        """Return the matrix."""
        return [self.matrix]

    def check(self, name: str, size: int) -> None:
        """Check shape, symmetry and finiteness."""
        what = f"dense block of parameter {name!r}"
        if tuple(self.matrix.shape) != (size, size):
            raise DataError(f"{what} has shape {tuple(self.matrix.shape)}, expected ({size}, {size})")
        require_finite(self.matrix, what)
        require_symmetric(self.matrix, what)

    @cached_property
    def _eigenvalues(self) -> Tensor:
        return eigh_psd(self.matrix, "a dense block")[0]

    def operator(self, name: str, scale: Scalar, shift: Tensor) -> Operator:
        """Return the block with its diagonal."""
        matrix = self.matrix * scale
        eigenvalues = None
        if shift.dim() == 0 and shift.requires_grad:  # tuned: decomposed once for all values of the shift
            eigenvalues = self._eigenvalues * scale + shift
        return DenseOperator(matrix + torch.diag(shift.expand(matrix.shape[0])), f"parameter {name!r}", eigenvalues)


@dataclass(frozen=True, eq=False)
class DiagonalPiece(Piece):
    """Keep only a diagonal `[size]`: normalisation scales, embeddings."""

    kind: ClassVar[str] = "diagonal"
    values: Tensor

    def __post_init__(self) -> None:
        """Accept the parameter's own shape as well."""
        object.__setattr__(self, "values", self.values.reshape(self.values.numel()))

    def tensors(self) -> list[Tensor]:
        """Return the values."""
        return [self.values]

    def check(self, name: str, size: int) -> None:
        """Check shape, symmetry and finiteness."""
        what = f"diagonal of parameter {name!r}"
        if self.values.numel() != size:
            raise DataError(f"{what} has {self.values.numel()} entries, expected {size}")
        require_finite(self.values, what)

    def operator(self, name: str, scale: Scalar, shift: Tensor) -> Operator:
        """Return the values with the extra diagonal."""
        return DiagonalOperator(self.values * scale + shift, f"parameter {name!r}")

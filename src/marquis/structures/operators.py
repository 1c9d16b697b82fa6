"""Compute with symmetric matrices without names, of which the structures consist.

Index letters: n size of the matrix, o rows of a Jacobian.
Every operator is read as a precision: `solve`, `sample_from` and `quadratic` work with its inverse.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from marquis.errors import NumericalError
from marquis.structures.linalg import cholesky


def as_rows(tensor: Tensor) -> Tensor:
    """Reshape `[..., n]` to `[rows, n]`, also when n is 0."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def gram(half: Tensor, diagonal_only: bool) -> Tensor:
    """Return `half half^T` over the last axis, or only its diagonal."""
    return half.square().sum(-1) if diagonal_only else half @ half.mT


def require_positive(values: Tensor, what: str) -> Tensor:
    """Raise unless every entry is large enough to be inverted."""
    lowest = values.detach().amin() if values.numel() else None
    if lowest is not None and float(lowest) < torch.finfo(values.dtype).tiny:
        count = int((values.detach() < torch.finfo(values.dtype).tiny).sum())
        raise NumericalError(
            f"{what} is singular: {count} of {values.numel()} eigenvalues are not positive"
            f" (smallest {float(lowest):.3g}); add_diagonal (a prior precision) first"
        )
    return values


class Operator(ABC):
    """Represent one symmetric matrix of size n."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Return number of rows."""

    @property
    def noise_dim(self) -> int:
        """Return the number of standard normal numbers that `sample_from` takes."""
        return self.size

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Return the matrix `[n, n]`."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return its diagonal `[n]`."""

    @abstractmethod
    def matvec(self, v: Tensor) -> Tensor:
        """Return A v for `v [..., n]`."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """Return the logarithm of det A."""

    @abstractmethod
    def solve(self, v: Tensor) -> Tensor:
        """Return A^-1 v for `v [..., n]`."""

    @abstractmethod
    def sample_from(self, z: Tensor) -> Tensor:
        """Return the linear map M z with M M^T = A^-1."""

    @abstractmethod
    def quadratic(self, jacobian: Tensor, diagonal_only: bool) -> Tensor:
        """Return J A^-1 J^T for `J [..., o, n]`, or its diagonal `[..., o]`."""

    @abstractmethod
    def inverse_diagonal(self) -> Tensor:
        """Return diag(A^-1)."""

    @abstractmethod
    def effective_dimension(self, d: Tensor) -> Tensor:
        """Return diag(A (A + D)^-1) for D = diag(d), d a scalar or `[n]`."""


@dataclass(frozen=True, eq=False)
class DiagonalOperator(Operator):
    """Represent diag(values). Everything costs O(n), `quadratic` O(o^2 n) or, only its diagonal, O(o n)."""

    values: Tensor
    name: str

    @property
    def size(self) -> int:
        return self.values.shape[0]

    @cached_property
    def _positive(self) -> Tensor:
        """Return the diagonal, if it is positive everywhere."""
        return self._checked(self.values)

    def _checked(self, values: Tensor) -> Tensor:
        """Return a diagonal, if it is positive everywhere."""
        return require_positive(values, self.name)

    def to_dense(self) -> Tensor:
        return torch.diag(self.values)

    def diagonal(self) -> Tensor:
        return self.values

    def matvec(self, v: Tensor) -> Tensor:
        return self.values * v

    def logdet(self) -> Tensor:
        return self._positive.log().sum()

    def solve(self, v: Tensor) -> Tensor:
        return v / self._positive

    def sample_from(self, z: Tensor) -> Tensor:
        return z / self._positive.sqrt()

    def quadratic(self, jacobian: Tensor, diagonal_only: bool) -> Tensor:
        if diagonal_only:
            return (jacobian.square() / self._positive).sum(-1)
        return gram(jacobian / self._positive.sqrt(), False)

    def inverse_diagonal(self) -> Tensor:
        return 1 / self._positive

    def effective_dimension(self, d: Tensor) -> Tensor:
        """Return the ratio values / (values + d): no difference of nearly equal numbers."""
        return self.values / self._checked(self.values + d)


@dataclass(frozen=True, eq=False)
class DenseOperator(Operator):
    """Represent a dense matrix, inverted through one Cholesky factor that is kept: O(n^3) once, then O(n^2).

    Where its eigenvalues are known, log det A is theirs, whose derivative needs no factor.
    """

    matrix: Tensor
    name: str
    eigenvalues: Tensor | None = None

    @property
    def size(self) -> int:
        return self.matrix.shape[0]

    @cached_property
    def _factor(self) -> Tensor:
        """Return the lower Cholesky factor."""
        return cholesky(self.matrix, self.name)

    def _times_root(self, rows: Tensor) -> Tensor:
        """Apply L^-1 to each row, with A = L L^T."""
        half = torch.linalg.solve_triangular(self._factor, as_rows(rows).mT, upper=False)
        return half.mT.reshape(rows.shape)

    def to_dense(self) -> Tensor:
        return self.matrix

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal()

    def matvec(self, v: Tensor) -> Tensor:
        return v @ self.matrix

    def logdet(self) -> Tensor:
        if self.eigenvalues is not None:
            return require_positive(self.eigenvalues, self.name).log().sum()
        return 2 * self._factor.diagonal().log().sum()

    def solve(self, v: Tensor) -> Tensor:
        return torch.cholesky_solve(as_rows(v).mT, self._factor).mT.reshape(v.shape)

    def sample_from(self, z: Tensor) -> Tensor:
        """Return L^-T z."""
        samples = torch.linalg.solve_triangular(self._factor.mT, as_rows(z).mT, upper=True)
        return samples.mT.reshape(z.shape)

    def quadratic(self, jacobian: Tensor, diagonal_only: bool) -> Tensor:
        """Return V^T V with V = L^-1 J^T: never negative."""
        return gram(self._times_root(jacobian), diagonal_only)

    def inverse_diagonal(self) -> Tensor:
        """Return squared column norms of L^-1, O(n^3)."""
        identity = torch.eye(self.size, dtype=self.matrix.dtype, device=self.matrix.device)
        return self._times_root(identity).square().sum(-1)

    def effective_dimension(self, d: Tensor) -> Tensor:
        """Return 1 - d diag((A + D)^-1), kept in [0, 1], which rounding could leave."""
        d = d.expand(self.size)
        total = DenseOperator(self.matrix + torch.diag(d), self.name)
        return (1 - d * total.inverse_diagonal()).clamp(0, 1)

"""Compute with one Kronecker product plus a constant diagonal, through two eigen-decompositions.

Index letters: g groups, r and s the sides of the pair, n = g r s weights, o rows of a Jacobian, i input channels that
stand before the outputs in the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from marquis.structures.layout import Scalar
from marquis.structures.operators import Operator, gram, require_positive

Eigen = tuple[Tensor, Tensor]
"""Eigenvalues `[..., n]` and eigenvectors `[..., n, n]`."""


def fold(v: Tensor, shape: tuple[int, int, int], channels: int = 1) -> Tensor:
    """Return parameters `[..., n]` as `[..., g, r, s]`; row-major, or `[g, i, r, s / i]` with i input channels."""
    g, r, s = shape
    if channels == 1:
        return v.reshape(*v.shape[:-1], g, r, s)
    return v.reshape(*v.shape[:-1], g, channels, r, s // channels).transpose(-3, -2).reshape(*v.shape[:-1], g, r, s)


def unfold(v: Tensor, channels: int = 1) -> Tensor:
    """Return parameters `[..., n]` from `[..., g, r, s]`, the inverse of `fold`."""
    if channels != 1:
        v = v.reshape(*v.shape[:-1], channels, v.shape[-1] // channels).transpose(-3, -2).flatten(-3, -2)
    return v.flatten(-3)


@dataclass(frozen=True, eq=False)
class KroneckerOperator(Operator):
    """Represent factor * left (x) right + shift * I, one such block per group (docs/method/posterior.md).

    With left = Q diag(l) Q^T and right = R diag(m) R^T the eigenvalues are `factor l_i m_j + shift`, the
    eigenvectors Q (x) R; the parameter is the row-major `[g, r, s]`, or `[g, i, r, s / i]` with `channels` i. After
    two eigen-decompositions products and solves cost O(n (r + s)), `logdet` O(n), `to_dense` O(n^2).
    """

    left: Tensor
    right: Tensor
    eigen: Callable[[], tuple[Eigen, Eigen]]
    factor: Scalar
    shift: Tensor
    name: str
    channels: int = 1

    @property
    def size(self) -> int:
        return math.prod(self._shape)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Return g, r and s."""
        return self.left.shape[0], self.left.shape[-1], self.right.shape[-1]

    @cached_property
    def bases(self) -> tuple[Tensor, Tensor]:
        """Return the eigenvectors Q `[g, r, r]` and R `[g, s, s]`."""
        return self.eigen()[0][1], self.eigen()[1][1]

    @cached_property
    def _curvature(self) -> Tensor:
        """Return eigenvalues without the shift, `[g, r, s]`."""
        (left, _), (right, _) = self.eigen()
        return self.factor * left.unsqueeze(-1) * right.unsqueeze(-2)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues with the shift, `[g, r, s]`; all have to be positive."""
        return require_positive(self._curvature + self.shift, self.name)

    def _fold(self, v: Tensor) -> Tensor:
        """Reshape vectors `[..., n]` to `[..., g, r, s]`."""
        return fold(v, self._shape, self.channels)

    def _to_eigenbasis(self, v: Tensor) -> Tensor:
        """Return coordinates in the eigenbasis, `[..., g, r, s]`."""
        return self.bases[0].mT @ self._fold(v) @ self.bases[1]

    def _from_eigenbasis(self, v: Tensor) -> Tensor:
        """Return vectors `[..., n]` from coordinates in the eigenbasis."""
        return unfold(self.bases[0] @ v @ self.bases[1].mT, self.channels)

    def _spread_squares(self, weights: Tensor) -> Tensor:
        """Return diag(Q diag(weights) Q^T) for the joint eigenvectors, `[n]`."""
        return unfold(self.bases[0].square() @ weights @ self.bases[1].square().mT, self.channels)

    def to_dense(self) -> Tensor:
        blocks = [self.factor * torch.kron(a, b) for a, b in zip(self.left, self.right, strict=True)]
        dense = torch.block_diag(*blocks) if blocks else self.left.new_zeros(0, 0)
        if self.channels != 1:
            order = unfold(torch.arange(self.size, device=dense.device).view(self._shape), self.channels)
            dense = dense[order[:, None], order]
        return dense + self.shift * torch.eye(self.size, dtype=self.left.dtype, device=self.left.device)

    def diagonal(self) -> Tensor:
        ends = self.left.diagonal(dim1=-2, dim2=-1), self.right.diagonal(dim1=-2, dim2=-1)
        return unfold(self.factor * ends[0].unsqueeze(-1) * ends[1].unsqueeze(-2), self.channels) + self.shift

    def matvec(self, v: Tensor) -> Tensor:
        """Return A v in O(n (r + s)), from the factors themselves."""
        product = self.factor * (self.left @ self._fold(v) @ self.right)
        return unfold(product, self.channels).reshape(v.shape) + self.shift * v

    def logdet(self) -> Tensor:
        return self.eigenvalues.log().sum()

    def solve(self, v: Tensor) -> Tensor:
        return self._from_eigenbasis(self._to_eigenbasis(v) / self.eigenvalues)

    def sample_from(self, z: Tensor) -> Tensor:
        """Return Q [z / sqrt(eigenvalues)] R^T."""
        return self._from_eigenbasis(self._fold(z) / self.eigenvalues.sqrt())

    def quadratic(self, jacobian: Tensor, diagonal_only: bool) -> Tensor:
        """Return J A^-1 J^T by the eigenbasis: O(o n (r + s)), and O(o^2 n) for the whole matrix."""
        half = self._to_eigenbasis(jacobian) / self.eigenvalues.sqrt()
        return gram(half.reshape(jacobian.shape), diagonal_only)

    def inverse_diagonal(self) -> Tensor:
        return self._spread_squares(1 / self.eigenvalues)

    def effective_dimension(self, d: Tensor) -> Tensor:
        """Return the diagonal with the same eigenvectors and eigenvalues h / (h + d); d has to be a scalar."""
        eigenvalues = self._curvature + self.shift
        return self._spread_squares(eigenvalues / require_positive(eigenvalues + d, self.name))

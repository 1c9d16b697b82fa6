"""Approximate a positive semi-definite matrix by a low-rank one from products, and build a preconditioner from it.

Randomised Nyström (Frangella, Tropp and Udell 2021, algorithm 2.1, and eq. 5.3 for the preconditioner): `rank`
products, `rank` vectors of memory. The eigenvalues are never above the matrix's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.arguments import Positive, checked_methods
from marquis.curvature.linop.iterative import Matvec
from marquis.errors import DataError, NumericalError
from marquis.randomness import device_for


@checked_methods
@dataclass(frozen=True, eq=False)
class Nystrom:
    """Hold `A ≈ Σ_i values_i q_i q_iᵀ`; the rest of the space counts as zero.

    Attributes:
        values: eigenvalues `[r]`, largest first.
        vectors: orthonormal rows `[r, n]`.
    """

    values: Tensor
    vectors: Tensor

    def preconditioner(self, shift: Positive) -> Matvec:
        """Return a function on rows `[k, n]` that applies the inverse of a preconditioner for `A + shift I`.

        The directions that the approximation lacks count as its smallest eigenvalue, so that the preconditioned
        matrix has no gap there.
        """
        weights = (self.values[-1] + shift) / (self.values + shift) - 1

        def apply(rows: Tensor) -> Tensor:
            return rows + ((rows @ self.vectors.T) * weights) @ self.vectors

        return apply

    def scaled(self, factor: float) -> Nystrom:
        """Return the approximation of `factor A`."""
        if not math.isfinite(factor):
            raise DataError(f"factor is {factor}; it has to be finite.")
        return Nystrom(factor * self.values, self.vectors)


def nystrom(
    matvec: Matvec,
    size: int,
    rank: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
    rows_per_product: int = 8,
    advance: Callable[[], None] | None = None,
) -> Nystrom:
    """Approximate a symmetric positive semi-definite matrix by `rank` products with random vectors.

    Raises:
        NumericalError: the matrix is not positive semi-definite, or a product is not finite.
    """
    if not 1 <= rank <= size:
        raise DataError(f"rank is {rank}; a matrix of size {size} has 1 to {size}.")
    gaussian = torch.randn(size, rank, generator=generator, dtype=torch.float64, device=device_for(generator)).to(
        device, dtype
    )
    basis = torch.linalg.qr(gaussian)[0].T.contiguous()  # [rank, n]
    products = []
    for rows in basis.split(rows_per_product):
        products.append(matvec(rows))
        if advance is not None:
            advance()
    image = torch.cat(products)
    if not bool(torch.isfinite(image).all()):
        raise NumericalError("a product with the matrix is not finite; check the model's outputs.")
    # A small multiple of the identity makes the core positive definite in finite precision; it is taken off again.
    shift = float(torch.finfo(dtype).eps * image.norm()) * size**0.5
    image = image + shift * basis
    core = basis @ image.T
    factor, failed = torch.linalg.cholesky_ex((core + core.T) / 2)
    if int(failed):
        raise NumericalError("the matrix is not positive semi-definite; Nyström needs a GGN or Fisher matrix.")
    root = torch.linalg.solve_triangular(factor, image, upper=False)
    _, singular, vectors = torch.linalg.svd(root, full_matrices=False)
    return Nystrom((singular.square() - shift).clamp_min(0.0), vectors)

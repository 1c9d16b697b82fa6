"""Represent a symmetric matrix by its products: algebra, solves, spectrum, trace and log-determinant.

Vectors are rows: `v` has shape `[..., P]`, as in the structures, and several of them share one product.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, Positive, checked_methods
from marquis.curvature.linop import iterative
from marquis.curvature.linop.iterative import Matvec, Spectrum, StochasticEstimate, apply_entrywise
from marquis.curvature.linop.nystrom import Nystrom, nystrom
from marquis.errors import DataError, MemoryBudgetError, NumericalError
from marquis.functional.checks import check_finite
from marquis.structures.layout import Layout

DENSE_LIMIT = 10_000
"""Above this many parameters a dense matrix (0.8 GB in float64) is refused."""


class Solver(Protocol):
    """Describe what can serve as a preconditioner: every structure can."""

    def solve(self, v: Tensor) -> Tensor:
        """Apply the inverse to rows `[..., P]`."""
        ...


@checked_methods
class LinearOperator(ABC):
    """Represent a symmetric `P x P` matrix by its products. A subclass writes `_product`; the rest comes free.

    Attributes:
        layout: names and shapes of the parameters, in the order in which vectors are flattened.
        dtype: type of the products.
        device: where products are computed.
    """

    layout: Layout
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def _product(self, rows: Tensor) -> Tensor:
        """Return the products with rows `[k, P]`, `[k, P]`."""

    @property
    def size(self) -> int:
        """Return P, the number of parameters."""
        return self.layout.total

    @property
    def shape(self) -> tuple[int, int]:
        """Return `(P, P)`."""
        return self.size, self.size

    def matvec(self, v: Tensor) -> Tensor:
        """Return the product with every vector in `v`, `[..., P]` to `[..., P]`."""
        rows = self._rows(v)
        return self._product(rows).reshape(v.shape)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Return `operator @ v` for `v` of shape `[..., P]`: vectors are rows."""
        return self.matvec(v)

    def __add__(self, other: LinearOperator) -> LinearOperator:
        """Return the sum of two operators over the same parameters."""
        return _Sum(self, other) if isinstance(other, LinearOperator) else NotImplemented

    def __mul__(self, factor: float) -> LinearOperator:
        """Return the operator times a number."""
        if not isinstance(factor, (int, float)):
            return NotImplemented
        if not math.isfinite(factor):
            raise DataError(f"the operator times {factor} is no matrix; the factor has to be finite.")
        return _Scaled(self, float(factor))

    __rmul__ = __mul__

    def to_dense(self, *, vectors_per_pass: AtLeastOne = 64) -> Tensor:
        """Return the matrix itself, `[P, P]`, from P products; refused above `DENSE_LIMIT` parameters."""
        if self.size > DENSE_LIMIT:
            raise MemoryBudgetError(
                f"a dense matrix of {self.size} x {self.size} is refused (limit {DENSE_LIMIT}); use products, "
                "solve, spectrum or logdet, or choose fewer parameters."
            )
        dense = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for start in range(0, self.size, vectors_per_pass):
            stop = min(start + vectors_per_pass, self.size)
            rows = torch.zeros(stop - start, self.size, dtype=self.dtype, device=self.device)
            rows[torch.arange(stop - start), torch.arange(start, stop)] = 1
            dense[start:stop] = self._product(rows)
        return dense

    def trace(
        self, probes: AtLeastOne | Tensor = 10, *, generator: torch.Generator | None = None
    ) -> StochasticEstimate:
        """Return the trace by Hutchinson's estimator; unbiased, one product with all probes together.

        Args:
            probes: how many Rademacher probes, or the probes themselves `[k, P]` with `mean(z zᵀ) = I`
                (a Hadamard matrix, or `sqrt(P)` times the identity, makes the estimate exact).
            generator: source of the random signs.
        """
        return iterative.hutchinson_trace(self._product, self.probe_vectors(probes, generator))

    def diagonal(
        self, probes: AtLeastOne | Tensor = 10, *, generator: torch.Generator | None = None
    ) -> StochasticEstimate:
        """Estimate the diagonal by `E[z * (A z)]` with random signs; unbiased, with its standard error per entry."""
        return iterative.hutchinson_diagonal(self._product, self.probe_vectors(probes, generator))

    def spectrum(
        self, steps: AtLeastOne = 30, probes: AtLeastOne | Tensor = 5, *, generator: torch.Generator | None = None
    ) -> Spectrum:
        """Return Ritz values and weights by Lanczos; `.integrate(f)` estimates `tr f(A)`, `.density` the spectrum.

        Costs `steps` products of all probes together and `steps * probes * P` numbers of memory.
        """
        return iterative.spectrum(self._product, self.probe_vectors(probes, generator), steps)

    def logdet(
        self,
        probes: AtLeastOne | Tensor = 10,
        steps: AtLeastOne = 30,
        *,
        shift: float | Tensor = 0.0,
        generator: torch.Generator | None = None,
    ) -> StochasticEstimate:
        """Return `log det(A + shift)` by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017).

        The prior's precision is the natural shift; without one a GGN is singular as a rule and is refused.

        Args:
            probes: how many Rademacher probes, or the probes themselves `[k, P]`.
            steps: Lanczos steps; exact for the probes once they reach the number of distinct eigenvalues.
            shift: a number, or one per parameter `[P]`, added to the diagonal.
            generator: source of the random signs.
        """
        z = self.probe_vectors(probes, generator)
        diagonal = self._shift(shift)
        if diagonal.ndim == 0:
            offset, inner, matvec = float(diagonal), 0.0, self._product
        else:  # log det(A + D) = log det D + log det(I + D^-1/2 A D^-1/2)
            if not bool((diagonal > 0).all()):
                raise DataError("shift has entries that are not positive; a prior precision must be.")
            root = diagonal.rsqrt()
            offset, inner = 1.0, float(diagonal.double().log().sum())

            def matvec(rows: Tensor) -> Tensor:
                return root * self._product(root * rows)

        quadrature = iterative.spectrum(matvec, z, steps)
        counted = quadrature.nodes[quadrature.weights > 1e-12 * self.size] + offset
        floor = 10 * torch.finfo(self.dtype).eps * float(quadrature.nodes.abs().max())
        if not bool((counted > floor).all()):
            raise NumericalError(
                f"the matrix has eigenvalues near {float(counted.min()):.3g} and no log-determinant; pass shift > 0 "
                "(the prior's precision), larger than the most negative eigenvalue if it is a Hessian."
            )
        estimate = quadrature.integrate(lambda nodes: torch.log((nodes + offset).clamp_min(floor)))
        return StochasticEstimate(estimate.value + inner, estimate.standard_error, estimate.probes)

    def solve(
        self,
        v: Tensor,
        *,
        shift: float | Tensor = 0.0,
        tol: Positive = 1e-6,
        max_iterations: AtLeastOne | None = None,
        preconditioner: Solver | Matvec | None = None,
    ) -> Tensor:
        """Return `(A + shift)⁻¹ v` for rows `[..., P]` by conjugate gradients, one product per iteration.

        Args:
            v: right-hand sides.
            shift: a number, or one per parameter `[P]`, added to the diagonal.
            tol: relative residual at which a row is done.
            max_iterations: products to spend at most; by default 1000 (`10 P` if that is less).
            preconditioner: a structure (its `solve` is used) or a function on rows that applies the inverse of an
                approximation of the matrix, shift included.

        Raises:
            NumericalError: not positive definite, or not converged within `max_iterations`.
        """
        diagonal = self._shift(shift)
        inverse = getattr(preconditioner, "solve", preconditioner)
        precondition = None if inverse is None else functools.partial(apply_entrywise, "preconditioner", inverse)
        solution = iterative.conjugate_gradients(
            lambda rows: self._product(rows) + diagonal * rows,
            self._rows(v),
            tol=tol,
            max_iterations=max_iterations,
            preconditioner=precondition,
        )
        if not solution.converged:
            raise NumericalError(
                f"conjugate gradients reached a relative residual of {float(solution.residual.max()):.2g} after "
                f"{solution.iterations} iterations, not tol={tol:.2g}; raise max_iterations or shift, pass a "
                "preconditioner, or compute in float64."
            )
        return solution.x.reshape(v.shape)

    def nystrom(self, rank: AtLeastOne = 100, *, generator: torch.Generator | None = None) -> Nystrom:
        """Return a low-rank approximation from `rank` products, whose preconditioner speeds up `solve`.

        `operator.solve(v, shift=s, preconditioner=operator.nystrom(100).preconditioner(s))`: once the smallest kept
        eigenvalue is below a few times the shift, a handful of iterations is enough. For GGN and Fisher matrices,
        which are positive semi-definite.

        Args:
            rank: number of products and of vectors kept; at most the number of parameters.
            generator: source of the random vectors.

        Raises:
            NumericalError: the matrix is not positive semi-definite.
        """
        return nystrom(
            self._product, self.size, min(rank, self.size), generator=generator, dtype=self.dtype, device=self.device
        )

    def eigsh_top(
        self,
        k: int = 1,
        *,
        tol: Positive | None = None,
        max_iterations: AtLeastOne = 100,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the k largest eigenvalues `[k]`, largest first, and their vectors `[k, P]`, by block Lanczos.

        Memory grows by `2 k P` per iteration. `tol` is relative to the largest eigenvalue's size; by default the
        root of the precision for the residual, which squares in the eigenvalue.
        """
        if not 1 <= k <= self.size:
            raise DataError(f"k is {k}; a matrix of size {self.size} has 1 to {self.size} eigenvalues.")
        accepted = float(torch.finfo(self.dtype).eps ** 0.5) if tol is None else tol
        start = self.probe_vectors(k, generator)
        return iterative.top_eigenpairs(self._product, start, tol=accepted, max_iterations=max_iterations)

    def as_scipy(self) -> Any:
        """Return a `scipy.sparse.linalg.LinearOperator` (vectors are columns there, on the CPU)."""
        from scipy.sparse.linalg import LinearOperator as ScipyOperator

        def product(columns: Any) -> Any:
            rows = torch.as_tensor(columns.T.copy(), device=self.device)
            return self.matvec(rows).cpu().numpy().T

        numpy_type = torch.empty(0, dtype=self.dtype).numpy().dtype
        make: Any = ScipyOperator  # it returns a subclass by way of __new__, which type checkers do not follow
        return make(self.shape, matvec=product, matmat=product, rmatvec=product, dtype=numpy_type)

    def _rows(self, v: Tensor) -> Tensor:
        if v.ndim == 0 or v.shape[-1] != self.size:
            raise DataError(
                f"v has shape {tuple(v.shape)}; its last dimension must be the {self.size} parameters (vectors "
                "are rows, [..., P])."
            )
        check_finite(v, "v")
        return v.reshape(-1, self.size).to(device=self.device, dtype=self.dtype)

    def _shift(self, shift: float | Tensor) -> Tensor:
        """Return the shift as a number or vector of the operator's type, checked."""
        check_finite(shift, "shift")
        diagonal = torch.as_tensor(shift, dtype=self.dtype, device=self.device)
        if diagonal.numel() == 1:
            diagonal = diagonal.reshape(())
        if diagonal.ndim and diagonal.shape != (self.size,):
            raise DataError(f"shift has shape {tuple(diagonal.shape)}; pass a number or [{self.size}] of them.")
        if not bool(((diagonal >= 0) & diagonal.isfinite()).all()):
            raise DataError("shift is negative, infinite or NaN; it is a precision added to the diagonal.")
        return diagonal

    def probe_vectors(self, probes: int | Tensor, generator: torch.Generator | None) -> Tensor:
        """Return random signs `[probes, P]`, or the probes that were passed."""
        if isinstance(probes, Tensor):
            return self._rows(probes)
        if probes < 1:
            raise DataError(f"probes is {probes}; at least one is needed.")
        return iterative.rademacher(probes, self.size, generator=generator, device=self.device, dtype=self.dtype)


class _Sum(LinearOperator):
    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        left.layout.require_same(right.layout)
        self.layout, self.device = left.layout, left.device
        self.dtype = torch.promote_types(left.dtype, right.dtype)
        self._terms = left, right

    def _product(self, rows: Tensor) -> Tensor:
        left, right = (term.matvec(rows).to(self.device, self.dtype) for term in self._terms)
        return left + right

    def probe_vectors(self, probes: int | Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the random probe vectors of the first term."""
        return self._terms[0].probe_vectors(probes, generator).to(self.dtype)


class _Scaled(LinearOperator):
    def __init__(self, operator: LinearOperator, factor: float) -> None:
        self.layout, self.dtype, self.device = operator.layout, operator.dtype, operator.device
        self._operator, self._factor = operator, factor

    def _product(self, rows: Tensor) -> Tensor:
        return self._factor * self._operator._product(rows)

    def probe_vectors(self, probes: int | Tensor, generator: torch.Generator | None) -> Tensor:
        return self._operator.probe_vectors(probes, generator)

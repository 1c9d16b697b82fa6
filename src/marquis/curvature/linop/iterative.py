"""Solve and estimate with products only: systems, eigenvalues, traces and log-determinants of a symmetric matrix.

A matrix is given as `matvec`, a function from rows `[k, P]` to rows `[k, P]`, so that several vectors share
one pass over the data. Memory is `k P` for solves and `k steps P` for Lanczos; time is counted in products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import Positive, checked_methods, describe_value
from marquis.errors import DataError, MarquisError, NumericalError
from marquis.functional.checks import check_finite
from marquis.randomness import device_for

Matvec = Callable[[Tensor], Tensor]


def apply_entrywise(name: str, function: Any, values: Tensor) -> Tensor:
    """Return what a user's function makes of a tensor, which has to be real and of the same shape.

    Raises:
        DataError: It cannot be called, fails, or returns something else.
    """
    try:
        result = function(values)
    except MarquisError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name} fails on a tensor of shape {list(values.shape)}: {reason}.") from error
    if not isinstance(result, Tensor) or result.shape != values.shape:
        raise DataError(
            f"{name} returns {describe_value(result)}; it has to return a tensor of shape {list(values.shape)}."
        )
    return result


@dataclass(frozen=True)
class StochasticEstimate:
    """Hold a stochastic estimate: the mean over probes and its standard error (NaN for one probe)."""

    value: Tensor
    standard_error: Tensor
    probes: int

    @staticmethod
    def from_samples(samples: Tensor) -> StochasticEstimate:
        """Return the mean of one independent estimate per entry of dimension 0."""
        count = samples.shape[0]
        spread = samples.std(dim=0) if count > 1 else torch.full_like(samples[0], float("nan"))
        return StochasticEstimate(samples.mean(dim=0), spread / count**0.5, count)

    def __float__(self) -> float:
        """Return the value alone."""
        return float(self.value)


@dataclass(frozen=True)
class Solution:
    """Hold the result of conjugate gradients; `residual` is relative and recomputed from `x` at the end."""

    x: Tensor  # [k, P]
    residual: Tensor  # [k]
    iterations: int
    converged: bool


@checked_methods
@dataclass(frozen=True)
class Spectrum:
    """Hold a Gauss quadrature of the spectrum: `tr f(A)` is about `sum_i weights_i f(nodes_i)`, per probe.

    Nodes are Ritz values of one Lanczos run each; entries past a run's end (it found an invariant subspace)
    have weight zero. The weights of one probe `z` sum to `|z|²`, which is P for Rademacher probes.
    """

    nodes: Tensor  # [probes, steps], float64 on the CPU
    weights: Tensor  # [probes, steps]

    def integrate(self, function: Callable[[Tensor], Tensor]) -> StochasticEstimate:
        """Estimate the trace of a function of the matrix."""
        used = self.weights > 0
        # A padded node (weight 0) must not produce 0 * inf.
        values = torch.where(used, apply_entrywise("function", function, self.nodes), torch.zeros_like(self.nodes))
        return StochasticEstimate.from_samples((self.weights * values).sum(dim=1))

    def density(self, grid: Tensor, width: Positive) -> Tensor:
        """Return the density of eigenvalues on `grid`, every node blurred by a Gaussian of standard deviation `width`.

        It integrates to one over the real line.
        """
        check_finite(grid, "grid")
        if grid.ndim != 1:
            raise DataError(f"grid has shape {list(grid.shape)}; pass one axis of eigenvalues.")
        distance = (grid.to(self.nodes)[:, None] - self.nodes.reshape(1, -1)) / width
        bumps = torch.exp(-0.5 * distance**2) / (width * (2 * torch.pi) ** 0.5)
        weights = self.weights.reshape(-1)
        return bumps @ (weights / weights.sum())


def rademacher(
    count: int, size: int, *, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return random signs `[count, size]`: the probes of least variance for a trace among those with unit entries.

    The draw is made on the generator's device, so that one seed gives one result wherever the model lives.
    """
    signs = torch.randint(0, 2, (count, size), generator=generator, device=device_for(generator))
    return (2 * signs - 1).to(device=device, dtype=dtype)


def conjugate_gradients(
    matvec: Matvec,
    b: Tensor,
    *,
    tol: float = 1e-6,
    max_iterations: int | None = None,
    preconditioner: Matvec | None = None,
) -> Solution:
    """Solve `A x = b`, A positive definite, for every row of `b` at once (Hestenes and Stiefel 1952).

    Each row has its own step lengths and rests once it has converged, so the rows' solutions do not depend on
    their company. One product per iteration for all rows together.

    Args:
        matvec: rows `[k, P]` to rows `[k, P]`.
        b: right-hand sides `[k, P]`.
        tol: a row is done when `|b - A x| <= tol |b|`.
        max_iterations: by default 1000, or `10 P` if that is less (rounding delays the exact end after P).
        preconditioner: applies the inverse of a positive definite approximation of A to rows.

    Raises:
        NumericalError: A (or the preconditioner) turns out not to be positive definite, or gives NaN.
    """
    limit = min(10 * b.shape[-1], 1000) if max_iterations is None else max_iterations
    target = tol * b.norm(dim=-1)
    x = torch.zeros_like(b)
    residual = b.clone()
    active = residual.norm(dim=-1) > target
    z = preconditioner(residual) if preconditioner else residual
    direction = z.clone()
    rz = (residual * z).sum(dim=-1)
    _require_positive(rz, active, "the preconditioner is")
    iterations = 0
    while bool(active.any()) and iterations < limit:
        product = matvec(direction)
        curvature = (direction * product).sum(dim=-1)
        _require_positive(curvature, active, "the matrix is")
        step = torch.where(active, rz / curvature, torch.zeros_like(rz))[:, None]
        x = x + step * direction
        residual = residual - step * product
        iterations += 1
        active = active & (residual.norm(dim=-1) > target)
        if not bool(active.any()):
            break
        z = preconditioner(residual) if preconditioner else residual
        rz_new = (residual * z).sum(dim=-1)
        _require_positive(rz_new, active, "the preconditioner is")
        momentum = torch.where(active, rz_new / rz, torch.zeros_like(rz))[:, None]
        direction = torch.where(active[:, None], z + momentum * direction, torch.zeros_like(z))
        rz = rz_new
    # The recursion's residual drifts away from the true one; only the true one is reported.
    norm = b.norm(dim=-1)
    true_residual = (b - matvec(x)).norm(dim=-1) if iterations else norm
    relative = torch.where(norm > 0, true_residual / norm, torch.zeros_like(norm))
    # Rounding floor: the true residual may stay a little above a tolerance that the recursion has met.
    reached = not bool(active.any()) and bool((relative <= 10 * tol).all())
    return Solution(x, relative, iterations, reached)


def _require_positive(value: Tensor, active: Tensor, subject: str) -> None:
    """Refuse a matrix for which `vᵀ A v` is not positive."""
    if bool((active & ~(value > 0)).any()):
        worst = value[active].min().item()
        raise NumericalError(
            f"conjugate gradients met v^T A v = {worst:.3g}: {subject} not positive definite. A GGN or "
            "Fisher needs shift > 0 (it is singular in general); a Hessian away from a minimum is indefinite."
        )


def lanczos(matvec: Matvec, start: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run Lanczos with full re-orthogonalisation, one run per row of `start` (Golub and Van Loan, sec. 10.1).

    Costs `steps` products; memory `k steps P` for the basis. A run that exhausts its Krylov space ends early.

    Args:
        matvec: rows `[k, P]` to rows `[k, P]`.
        start: `[k, P]`, any non-zero rows.
        steps: how many steps at most; more than P are not taken.

    Returns:
        The tridiagonal matrices `[k, m, m]` (float64, CPU; zero past a run's end), the bases `[k, m, P]`
        and the number of steps each run took, `[k]`.
    """
    runs, size = start.shape
    steps = min(steps, size)
    if steps < 1:
        raise DataError(f"steps is {steps}; Lanczos needs at least one step.")
    norms = start.norm(dim=-1, keepdim=True)
    if not bool((norms > 0).all()):
        raise DataError("Lanczos was started from a zero vector; pass probes that are not zero.")
    basis = torch.zeros(runs, steps, size, dtype=start.dtype, device=start.device)
    tridiagonal = torch.zeros(runs, steps, steps, dtype=torch.float64)
    lengths = torch.full((runs,), steps)
    alive = torch.ones(runs, dtype=torch.bool, device=start.device)
    scale = torch.zeros(runs, dtype=start.dtype, device=start.device)
    vector = start / norms
    for j in range(steps):
        basis[:, j] = vector
        product = matvec(vector)
        if not bool(torch.isfinite(product).all()):
            raise NumericalError("a product with the matrix is not finite; check the model's outputs.")
        scale = torch.maximum(scale, product.norm(dim=-1))
        tridiagonal[:, j, j] = (vector * product).sum(dim=-1).cpu().double()
        if j + 1 == steps:
            break
        # Twice is enough (Kahan, Parlett): the second sweep removes what rounding left in the first.
        previous = basis[:, : j + 1]
        for _ in range(2):
            product = product - torch.einsum("kmp,km->kp", previous, torch.einsum("kmp,kp->km", previous, product))
        beta = product.norm(dim=-1)
        ended = alive & (beta <= 10 * torch.finfo(start.dtype).eps * scale)
        lengths[ended.cpu()] = j + 1
        alive = alive & ~ended
        if not bool(alive.any()):
            break
        vector = torch.where(alive[:, None], product / beta[:, None], torch.zeros_like(product))
        off = torch.where(alive, beta, torch.zeros_like(beta)).cpu().double()
        tridiagonal[:, j, j + 1] = off
        tridiagonal[:, j + 1, j] = off
    return tridiagonal, basis, lengths


def spectrum(matvec: Matvec, probes: Tensor, steps: int) -> Spectrum:
    """Estimate the spectrum by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017), by products only.

    Exact, for the given probes, for polynomials up to degree `2 steps - 1`, hence for every function once
    `steps` reaches the number of distinct eigenvalues. Costs `steps` products of `[k, P]`.
    """
    tridiagonal, _, lengths = lanczos(matvec, probes, steps)
    nodes = torch.zeros(tridiagonal.shape[:2], dtype=torch.float64)
    weights = torch.zeros_like(nodes)
    squared_norms = probes.cpu().double().square().sum(dim=-1)
    for run, length in enumerate(lengths.tolist()):
        values, vectors = torch.linalg.eigh(tridiagonal[run, :length, :length])
        nodes[run, :length] = values
        weights[run, :length] = squared_norms[run] * vectors[0].square()
    return Spectrum(nodes, weights)


def hutchinson_trace(matvec: Matvec, probes: Tensor) -> StochasticEstimate:
    """Return the trace as the mean of `zᵀ A z` over probes with `E[z zᵀ] = I` (Hutchinson 1990)."""
    return StochasticEstimate.from_samples((probes * matvec(probes)).sum(dim=-1))


def hutchinson_diagonal(matvec: Matvec, probes: Tensor) -> StochasticEstimate:
    """Return the diagonal as the mean of `z * (A z)` over probes with `E[z zᵀ] = I` (Bekas et al. 2007)."""
    return StochasticEstimate.from_samples(probes * matvec(probes))


def top_eigenpairs(
    matvec: Matvec, start: Tensor, *, tol: float = 1e-6, max_iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """Return the algebraically largest eigenvalues and vectors by block Lanczos with full re-orthogonalisation.

    A block as wide as the number of wanted pairs finds eigenvalues of that multiplicity, which a
    single-vector Lanczos run misses. The basis grows by one block per iteration; so do memory (`2 m P`) and time.

    Args:
        matvec: rows `[k, P]` to rows `[k, P]`.
        start: `[k, P]` random rows, k the number of pairs wanted.
        tol: a pair is done when `|A q - value q| <= tol max|value|`.
        max_iterations: blocks to try before giving up.

    Returns:
        Values `[k]`, largest first, and orthonormal vectors `[k, P]`.
    """
    count = start.shape[0]
    eps = torch.finfo(start.dtype).eps
    block = _orthonormal_rows(start, start[:0], 0.0)
    basis, images = start[:0], start[:0]
    for _ in range(max_iterations):
        image = matvec(block)
        if not bool(torch.isfinite(image).all()):
            raise NumericalError("a product with the matrix is not finite; check the model's outputs.")
        basis, images = torch.cat([basis, block]), torch.cat([images, image])
        projected = basis @ images.T
        values, rotation = torch.linalg.eigh((projected + projected.T) / 2)
        values, rotation = values.flip(0)[:count], rotation.flip(1)[:, :count]
        vectors = rotation.T @ basis
        magnitude = torch.linalg.matrix_norm(projected, 2)
        gaps = (rotation.T @ images - values[:, None] * vectors).norm(dim=-1)
        # The next block: what the products add to the known space; nothing left means the space is invariant.
        block = _orthonormal_rows(image, basis, 10 * eps * float(magnitude))
        if bool((gaps <= tol * magnitude).all()) or block.shape[0] == 0:
            return values, vectors
    worst = float(gaps.max() / magnitude)  # pyright: ignore[reportPossiblyUnboundVariable]
    raise NumericalError(
        f"eigenvalues did not converge in {max_iterations} iterations (residual {worst:.2g}, tol {tol:.2g}); "
        "raise max_iterations or tol, or compute in float64."
    )


def _orthonormal_rows(rows: Tensor, basis: Tensor, negligible: float) -> Tensor:
    """Return orthonormal rows for what `rows` add to the orthonormal `basis`, without negligible directions."""
    for _ in range(2):
        rows = rows - (rows @ basis.T) @ basis
    _, lengths, directions = torch.linalg.svd(rows, full_matrices=False)
    directions = directions[lengths > negligible][: rows.shape[1] - basis.shape[0]]
    # Dividing by a small length magnifies what was left of the basis: remove it once more.
    directions = directions - (directions @ basis.T) @ basis
    return torch.linalg.qr(directions.T)[0].T

"""Compute the iterative mode: the posterior by Jacobian products, conjugate gradients and Nyström preconditioning.

Nothing of size `dy²` or `dx²` is stored. A product with `K_yy = A J V Jᵀ Aᵀ + σ² I` costs one vector-Jacobian and one
Jacobian-vector product of the network besides `A` and its adjoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from marquis.curvature.linop.iterative import conjugate_gradients, rademacher
from marquis.curvature.linop.nystrom import Nystrom, nystrom
from marquis.errors import NumericalError
from marquis.progress import ProgressBar
from marquis.tomography.complexity import log_prior_of_variance
from marquis.tomography.evidence import LOG_VARIANCE, TunedPrior, _Problem
from marquis.tomography.operators import Measurement, adjoint_rows, forward_rows, readings
from marquis.tomography.tangent import LinearisedImage

RANK = 350
"""Eigenpairs with which one variance is tuned and solves are preconditioned."""

TOLERANCE = 1e-2
MAX_ITERATIONS = 400
ROWS = 8
"""Vectors that go through the network at a time."""


@dataclass(frozen=True, eq=False)
class DataOperator:
    """Compute products with the prior's covariances for given variances.

    Attributes:
        linearised: the image as a function of weights.
        measurement: the operator A.
        variance: variance of each block's weights `[blocks]`.
        noise_variance: variance of the noise of one reading.
    """

    linearised: LinearisedImage
    measurement: Measurement
    variance: Tensor
    noise_variance: float

    def weight_variances(self) -> Tensor:
        """Return the prior variance of every weight `[P]`."""
        sizes = torch.tensor(self.linearised.sizes)
        return self.variance.to(self.linearised.dtype).repeat_interleave(sizes)

    def to_weights(self, rows: Tensor) -> Tensor:
        """Return `Jᵀ Aᵀ u` for data vectors `[k, dy]`, as `[k, P]`."""
        return self.linearised.vjp(adjoint_rows(self.measurement, rows))

    def to_image(self, rows: Tensor) -> Tensor:
        """Return `K_xy u = J V Jᵀ Aᵀ u` for data vectors `[k, dy]`, as flattened images `[k, dx]`."""
        scale = self.weight_variances()
        return torch.cat([self.linearised.jvp(self.to_weights(part) * scale) for part in rows.split(ROWS)])

    def signal(self, rows: Tensor) -> Tensor:
        """Return `A J V Jᵀ Aᵀ u` for `[k, dy]`."""
        return forward_rows(self.measurement, self.to_image(rows))

    def __call__(self, rows: Tensor) -> Tensor:
        """Return `K_yy u` for `[k, dy]`."""
        return self.signal(rows) + self.noise_variance * rows

    def solve(
        self,
        rows: Tensor,
        approximation: Nystrom | None = None,
        *,
        tol: float = TOLERANCE,
        max_iterations: int = MAX_ITERATIONS,
    ) -> Tensor:
        """Return `K_yy⁻¹ u` for `[k, dy]` by preconditioned conjugate gradients.

        Args:
            rows: right-hand sides.
            approximation: approximation of the signal part, from `approximate`.
            tol: relative residual at which a row is done.
            max_iterations: maximum number of products with the matrix.

        Raises:
            NumericalError: not converged; the message has residual and limit.
        """
        preconditioner = None if approximation is None else approximation.preconditioner(self.noise_variance)
        solution = conjugate_gradients(
            self, rows.to(self.linearised.dtype), tol=tol, max_iterations=max_iterations, preconditioner=preconditioner
        )
        if not solution.converged:
            raise NumericalError(
                f"conjugate gradients reached a relative residual of {float(solution.residual.max()):.2g} after "
                f"{solution.iterations} iterations (limit {max_iterations}, tolerance {tol:g}); raise rank=, or the "
                "limit."
            )
        return solution.x

    def matheron(self, weights: Tensor, noise: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        """Return posterior deviations `[k, dx]` from prior weights `[k, P]` and noise `[k, dy]`.

        `x_s = J θ₀ - K_xy K_yy⁻¹ (A J θ₀ + e)` has exactly the posterior's covariance if `θ₀ ~ N(0, V)` and
        `e ~ N(0, σ² I)` (Matheron's rule; Wilson et al. 2020, eq. 9).
        """
        prior = torch.cat([self.linearised.jvp(part) for part in weights.split(ROWS)])
        observed = forward_rows(self.measurement, prior) + noise
        return prior - self.to_image(solve(observed))

    def sample(self, count: int, solve: Callable[[Tensor], Tensor], generator: torch.Generator | None = None) -> Tensor:
        """Return `count` independent posterior deviations `[count, dx]`."""
        dtype = self.linearised.dtype
        weights = torch.randn(count, self.linearised.weights.numel(), generator=generator, dtype=dtype)
        noise = torch.randn(count, readings(self.measurement), generator=generator, dtype=dtype)
        return self.matheron(weights * self.weight_variances().sqrt(), noise * self.noise_variance**0.5, solve)

    def seconds_per_product(self) -> float:
        """Return the measured time of one product with one vector."""
        row = torch.ones(1, readings(self.measurement), dtype=self.linearised.dtype)
        self.signal(row)  # the first call builds the graph
        started = time.perf_counter()
        self.signal(row)
        return time.perf_counter() - started


def approximate(
    operator: DataOperator, rank: int = RANK, generator: torch.Generator | None = None, progress: bool = False
) -> Nystrom:
    """Return the Nyström approximation of the signal part `A J V Jᵀ Aᵀ`; costs `rank` products."""
    size = readings(operator.measurement)
    rank = min(rank, size)
    with ProgressBar("eigenpairs", math.ceil(rank / ROWS), progress) as bar:
        return nystrom(
            operator.signal,
            size,
            rank,
            generator=generator,
            dtype=operator.linearised.dtype,
            rows_per_product=ROWS,
            advance=bar.advance,
        )


@dataclass(frozen=True, eq=False)
class SpectralData:
    """Compute with `K_yy = v G + σ² I` for one variance, by eigenpairs of G that serve every v and σ².

    Attributes:
        approximation: approximation of `G = A J Jᵀ Aᵀ`.
        size: dy.
    """

    approximation: Nystrom
    size: int

    def logdet_and_quadratic(
        self, variance: Tensor, lengthscale: Tensor | None, noise_variance: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return `log|K_yy|` and `rᵀ K_yy⁻¹ r`; costs the number of eigenpairs."""
        values = variance[0] * self.approximation.values + noise_variance
        rest = self.size - values.numel()
        logdet = values.log().sum() + rest * noise_variance.log()
        if residual is None:
            return logdet, noise_variance.new_zeros(())
        along = (self.approximation.vectors @ residual).square()
        orthogonal = (residual.square().sum() - along.sum()).clamp_min(0.0)
        return logdet, (along / values).sum() + orthogonal / noise_variance


def effective_parameters(operator: DataOperator, probes: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `γ_d = v_d tr(J_dᵀ Aᵀ K_yy⁻¹ A J_d)` per block, from probes `[k, dy]` with `mean(u uᵀ) = I`.

    Two vector-Jacobian products per probe serve all blocks.
    """
    left, right = operator.to_weights(probes), operator.to_weights(solve(probes))
    products = (left * right).mean(dim=0)
    sums = torch.stack([products[part].sum() for part in operator.linearised.slices])
    return operator.variance * sums.to(operator.variance)


def tune_blocks(
    operator: DataOperator,
    problem: _Problem,
    *,
    rate: float | None,
    iterations: int = 8,
    probes: int | Tensor = 8,
    rank: int = 150,
    generator: torch.Generator | None = None,
    tolerance: float = 0.05,
    tol: float = TOLERANCE,
    progress: bool = False,
) -> tuple[TunedPrior, DataOperator, Nystrom]:
    """Tune one variance per block by MacKay's fixed points at the network's weights, in half steps of the logarithm.

    `v_d ← |θ̂_d|² / γ_d`, `σ² ← |y - A x̂|² / (dy - Σ γ)`. The TV-PredCP prior adds the gradient of its log density:
    the fixed point of `½ (|θ̂_d|² / v_d - γ_d) + ∂ log p / ∂ log v_d = 0`.

    Args:
        operator: with the variances to start from.
        problem: from `build_problem`.
        rate: λ of the hyper-prior, or None for none.
        iterations: maximum number of iterations.
        probes: number of Rademacher vectors for the traces, or the vectors `[k, dy]` with `mean(u uᵀ) = I`.
        rank: rank of the preconditioner, rebuilt where variances have changed by more than a factor of two.
        generator: source of the probes.
        tolerance: change of all logarithms at which it is done.
        tol: relative residual of the solves.
        progress: whether to show a progress bar.
    """
    size = readings(operator.measurement)
    dtype = operator.linearised.dtype
    signs = probes
    if isinstance(signs, int):
        signs = rademacher(signs, size, generator=generator, device=torch.device("cpu"), dtype=dtype)
    approximation, built_at = approximate(operator, rank, generator, progress), operator.variance
    change, done = math.inf, 0
    with ProgressBar("variances", iterations, progress) as bar:
        while done < iterations and change > tolerance:
            if float((operator.variance / built_at).log().abs().max()) > math.log(2):
                approximation, built_at = approximate(operator, rank, generator), operator.variance
            gamma = effective_parameters(operator, signs, partial(operator.solve, approximation=approximation, tol=tol))
            logs = operator.variance.log()
            prior = _hyper_gradient(problem, operator.variance, rate)
            target = torch.log(problem.squared_norms / (gamma - 2 * prior).clamp_min(1e-3 * gamma))
            step = 0.5 * (target.clamp(*LOG_VARIANCE) - logs)
            noise = problem.misfit / max(size - float(gamma.sum()), 0.05 * size)
            noise_step = 0.5 * math.log(noise / operator.noise_variance)
            change = max(float(step.abs().max()), abs(noise_step))
            noise_variance = operator.noise_variance * math.exp(noise_step)
            operator = replace(operator, variance=(logs + step).exp(), noise_variance=noise_variance)
            done += 1
            bar.advance()
    hyper_prior = "" if rate is None else ", TV-PredCP on the variance"
    tuned = TunedPrior(
        problem.blocks,
        operator.variance,
        operator.noise_variance,
        lengthscale=None,
        log_evidence=None,
        objective=None,
        residual=problem.misfit / size,
        evaluations=done,
        converged=change <= tolerance,
        method=f"network evidence by MacKay's fixed points, one variance per block{hyper_prior}",
        notes=(f"traces by {len(signs)} random probes",),
    )
    return tuned, operator, approximation


def _hyper_gradient(problem: _Problem, variance: Tensor, rate: float | None) -> Tensor:
    """Return `∂ log p(log v) / ∂ log v` of the TV-PredCP prior per block, zero for blocks of 1 x 1 filters."""
    gradient = torch.zeros_like(variance)
    if rate is None:
        return gradient
    logs = variance[problem.filters].log().requires_grad_()
    prior = log_prior_of_variance(problem.jumps, problem.roughness[problem.filters], logs.exp(), rate).sum()
    gradient[problem.filters] = torch.autograd.grad(prior, logs)[0]
    return gradient

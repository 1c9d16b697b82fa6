"""Compute the expectation of `tune("sampled")`: effective numbers of parameters from posterior samples, or exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.curvature.linop.iterative import Matvec, StochasticEstimate, conjugate_gradients
from marquis.evidence.linear_model import LinearModel
from marquis.evidence.log_evidence import sum_by_group
from marquis.priors import BoundPrior
from marquis.randomness import normal

FEW_WEIGHTS = 512
"""Largest number of weights whose curvature is written out, so that the expectation needs no samples."""
SAMPLES = 8
"""Posterior samples of larger networks: thousands of effective parameters average the noise out."""


@dataclass(frozen=True, eq=False)
class Noise:
    """Hold the random numbers of K posterior samples, the same ones for every iteration.

    Attributes:
        prior: standard normal numbers `[K, P]`.
        data: `sum_n J_n^T L_n^{1/2} e_n`, `[K, P]`, of covariance H.
        diagonal: estimate of the diagonal of H, `[P]`.
    """

    prior: Tensor
    data: Tensor
    diagonal: Tensor

    @staticmethod
    def draw(tangent: LinearModel, samples: int, generator: torch.Generator | None) -> Noise:
        """Draw the random numbers: one pass over the data with `samples` vector-Jacobian products."""
        like = tangent.centre
        data = like.new_zeros(samples, len(like))
        diagonal = torch.zeros_like(like)
        for batch in tangent.batches():
            shape = (samples, len(batch.f), *tangent.likelihood.root_shape(batch.f))
            coefficients = normal(shape, like, generator).to(batch.f)
            part = batch.transposed_times(tangent.likelihood.apply_sqrt(batch.f, coefficients, batch.mask)).to(like)
            data += part
            diagonal += part.square().mean(0)
        return Noise(normal((samples, len(like)), like, generator), data, diagonal)


def posterior_samples(
    product: Matvec,
    precision: Tensor,
    scale: float,
    noise: Noise,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_products: int = 500,
) -> Tensor:
    """Return K samples `[K, P]` from `N(0, (scale H + Delta)^-1)` by sample-then-optimise.

    See docs/method/evidence.md#tuning-by-samples.

    The minimiser of `1/2 |theta - theta_0|^2_Delta + scale/2 sum_n |J_n theta|^2_{L_n}` with
    `theta_0 = Delta^{-1/2} e + Delta^{-1} sum_n J_n^T (scale L_n)^{1/2} e_n` solves `(scale H + Delta) theta =
    Delta theta_0`: exact, up to the tolerance of conjugate gradients, whatever the network.

    Args:
        product: H times rows.
        precision: Delta, `[P]`.
        scale: beta/T or 1/T.
        noise: what the samples are made of.
        start: solutions of a similar problem.
        tolerance: relative residual.
        max_products: maximum number of products with H.
    """
    target = precision.sqrt() * noise.prior + scale**0.5 * noise.data
    diagonal = scale * noise.diagonal + precision

    def matrix(rows: Tensor) -> Tensor:
        return scale * product(rows) + precision * rows

    start_values = torch.zeros_like(target) if start is None else start
    residual = target if start is None else target - matrix(start)
    shrunk = float((target.norm(dim=-1) / residual.norm(dim=-1).clamp_min(1e-300)).min())
    if shrunk * tolerance >= 1:
        return start_values
    solved = conjugate_gradients(
        matrix,
        residual,
        tol=tolerance * shrunk,
        max_iterations=max_products,
        preconditioner=lambda rows: rows / diagonal,
    )
    return start_values + solved.x


def effective_by_samples(prior: BoundPrior, samples: Tensor, products: Tensor) -> Tensor:
    """Return `gamma_g` as the mean of `sum_{p in g} theta_p (H theta)_p` over samples; `products` is H times them.

    Unbiased for each group, since `H Sigma = I - Delta Sigma`; kept between 0 and the size of the group.
    """
    gamma = sum_by_group(prior, (samples * products).mean(0))
    return torch.minimum(gamma.clamp_min(0), prior.sizes.to(gamma))


class Exact:
    """Compute effective parameters `tr_g(H Sigma)` by a factorisation: P products once, then P^3 per call."""

    def __init__(self, tangent: LinearModel) -> None:
        eye = torch.eye(len(tangent.centre), dtype=tangent.centre.dtype, device=tangent.centre.device)
        matrix = tangent.product(eye).double()
        self._matrix = (matrix + matrix.mT) / 2
        self.diagonal = self._matrix.diagonal().to(tangent.centre)

    def __str__(self) -> str:
        """Name the method for the report."""
        return "exact"

    def __call__(self, prior: BoundPrior, precision: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return the effective parameters per group `[G]`, and their standard errors: none.

        Not as `P - delta tr(Sigma)`, which loses all digits where the prior decides.
        """
        curvature = scale * self._matrix
        root = torch.linalg.cholesky(curvature + torch.diag(precision.double()))
        shares = (curvature * torch.cholesky_inverse(root)).sum(1)
        gamma = sum_by_group(prior, shares).clamp_min(0).to(self.diagonal)
        return gamma, torch.zeros_like(gamma)


class Sampled:
    """Estimate effective parameters from K posterior samples, the same random numbers in every call."""

    def __init__(
        self, tangent: LinearModel, samples: int, tolerance: float, max_products: int, generator: torch.Generator | None
    ) -> None:
        self._product, self._noise = tangent.product, Noise.draw(tangent, samples, generator)
        self._tolerance, self._max_products = tolerance, max_products
        self._solutions: Tensor | None = None
        self.samples, self.diagonal = samples, self._noise.diagonal

    def __str__(self) -> str:
        """Name the method for the report."""
        return f"{self.samples} samples"

    def __call__(self, prior: BoundPrior, precision: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return the effective parameters per group `[G]`, and their standard errors (infinite for one sample)."""
        self._solutions = posterior_samples(
            self._product,
            precision,
            scale,
            self._noise,
            start=self._solutions,
            tolerance=self._tolerance,
            max_products=self._max_products,
        )
        products = scale * self._product(self._solutions)
        spread = StochasticEstimate.from_samples(sum_by_group(prior, self._solutions * products)).standard_error
        return effective_by_samples(prior, self._solutions, products), spread.nan_to_num(nan=float("inf"))

"""Tuning without any factorisation: expectation-maximisation with posterior samples found by solving for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marquis.curvature.iterative import conjugate_gradients
from marquis.errors import DataError
from marquis.evidence.log_evidence import sum_by_group
from marquis.evidence.mackay import step_of
from marquis.evidence.problem import EvidenceProblem
from marquis.evidence.tangent import Rows, Tangent
from marquis.evidence.tuned import Step, Tuned, finish, limited
from marquis.priors import BoundPrior

JITTER = 1e-6
"""Added to the mean square per datum of a Jacobian column before the g-prior divides by it (methods.md 5.7)."""


@dataclass(frozen=True, eq=False)
class Noise:
    """Random numbers of K posterior samples, drawn once so that every iteration sees the same ones.

    Attributes:
        prior: standard normal numbers `[K, P]`.
        data: `sum_n J_n^T L_n^{1/2} e_n`, `[K, P]`, of covariance H.
        diagonal: estimate of the diagonal of H, `[P]`.
    """

    prior: Tensor
    data: Tensor
    diagonal: Tensor

    @staticmethod
    def draw(tangent: Tangent, samples: int, generator: torch.Generator | None) -> Noise:
        """One pass over the data with `samples` vector-Jacobian products."""
        like = tangent.centre

        def normal(*shape: int) -> Tensor:
            where = like.device if generator is None else generator.device
            return torch.randn(*shape, generator=generator, dtype=like.dtype, device=where).to(like.device)

        data = like.new_zeros(samples, len(like))
        diagonal = torch.zeros_like(like)
        for batch in tangent.batches():
            coefficients = normal(samples, batch.f.shape[0], *tangent.likelihood.root_shape(batch.f)).to(batch.f)
            part = batch.pull(tangent.likelihood.apply_sqrt(batch.f, coefficients, batch.mask)).to(like)
            data += part
            diagonal += part.square().mean(0)
        return Noise(normal(samples, len(like)), data, diagonal)


def posterior_samples(
    product: Rows,
    precision: Tensor,
    scale: float,
    noise: Noise,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_products: int = 500,
) -> Tensor:
    """K draws `[K, P]` from `N(0, (scale H + Delta)^-1)` by sample-then-optimise (methods.md 5.7).

    The minimiser of `1/2 |theta - theta_0|^2_Delta + scale/2 sum_n |J_n theta|^2_{L_n}` with
    `theta_0 = Delta^{-1/2} e + Delta^{-1} sum_n J_n^T (scale L_n)^{1/2} e_n` solves `(scale H + Delta) theta =
    Delta theta_0`: exact, up to the tolerance of conjugate gradients, whatever the network.

    Args:
        product: H times rows.
        precision: Delta, `[P]`.
        scale: beta/T or 1/T.
        noise: what the draws are made of.
        start: solutions of a similar problem.
        tolerance: relative residual.
        max_products: products with H at most.
    """
    target = precision.sqrt() * noise.prior + scale**0.5 * noise.data
    diagonal = scale * noise.diagonal + precision

    def matrix(rows: Tensor) -> Tensor:
        return scale * product(rows) + precision * rows

    known = torch.zeros_like(target) if start is None else start
    residual = target if start is None else target - matrix(start)
    shrunk = float((target.norm(dim=-1) / residual.norm(dim=-1).clamp_min(1e-300)).min())
    if shrunk * tolerance >= 1:
        return known
    found = conjugate_gradients(
        matrix,
        residual,
        tol=tolerance * shrunk,
        max_iterations=max_products,
        preconditioner=lambda rows: rows / diagonal,
    )
    return known + found.x


def sampled(
    problem: EvidenceProblem,
    *,
    samples: int = 8,
    iterations: int = 10,
    noise: bool = True,
    g_prior: bool = False,
    simplified: bool = False,
    tolerance: float = 1e-3,
    theta_tolerance: float = 1e-3,
    solve_tolerance: float = 1e-4,
    max_products: int = 200,
    generator: torch.Generator | None = None,
) -> Tuned:
    """Tune by expectation-maximisation with posterior samples, through JVP and VJP only (methods.md 5.7).

    E-step: theta-star of the linear model, and K posterior samples. M-step: `gamma_g = mean_k sum_{p in g}
    theta_p (H theta)_p` and `lambda_g = gamma_g / |theta*_g - mu_g|^2`; for a Gaussian the noise as in MacKay's update.
    The same random numbers serve in all iterations, so the iteration settles. No log evidence comes out: that needs a
    determinant. Memory: a few times K vectors of length P. Cost per iteration: some tens of passes over the data.

    Args:
        problem: with model and loader; no curvature is needed.
        samples: K.
        iterations: of expectation and maximisation, at most.
        noise: whether the noise precision is tuned too.
        g_prior: give weight p the precision `lambda_g H_pp / N`, so that weights whose Jacobian columns are large are
            held more tightly. The prior returned has one precision per weight; `effective_parameters` stay those of
            the groups.
        simplified: use `h = J theta`, without the offset.
        tolerance: on the relative change of every lambda and of the noise.
        theta_tolerance: nats that theta-star may be off.
        solve_tolerance: relative residual of the samples.
        max_products: products with the curvature per solve at most.
        generator: of the random numbers.
    """
    if samples < 1 or iterations < 1:
        raise DataError(f"samples={samples} and iterations={iterations} have to be at least 1.")
    prior = problem.grouped_prior
    tangent = Tangent(problem, "sampled", simplified=simplified)
    drawn = Noise.draw(tangent, samples, generator)
    theta = problem.mean.detach()
    weights = torch.ones_like(theta)
    if g_prior:
        weights = drawn.diagonal / problem.statistics.n + JITTER
    here, draws, gamma = problem, None, None
    history: list[Step] = []
    change = float("inf")
    while True:
        delta = here.grouped_prior.vector().to(theta) * weights
        scale = float(here.scale())
        diagonal = scale * drawn.diagonal + delta
        found = tangent.optimum(
            delta,
            prior.mean.to(theta),
            scale,
            theta,
            preconditioner=lambda rows, diagonal=diagonal: rows / diagonal,
            tolerance=theta_tolerance,
            max_products=max_products,
        )
        theta = found.theta
        draws = posterior_samples(
            tangent.product, delta, scale, drawn, start=draws, tolerance=solve_tolerance, max_products=max_products
        )
        gamma = effective_by_samples(here.grouped_prior, draws, scale * tangent.product(draws))
        history.append(step_of(here, None, gamma))
        if change <= tolerance or len(history) > iterations:
            break
        scatter = sum_by_group(prior, weights * (theta - prior.mean.to(theta)).square())
        precision = limited(gamma.double() / scatter.double())
        change = float((precision / here.grouped_prior.precision.double() - 1).abs().max())
        beta = None
        if noise and here.noise is not None and found.statistics.sse is not None:
            free = found.statistics.observed - problem.temperature * gamma.double().sum()
            beta = limited(free.clamp_min(0) / found.statistics.sse.double())
            change = max(change, abs(float(beta) / float(here.noise) - 1))
        here = here.with_hyper(precision, beta)
    notes = [f"effective numbers of parameters are means over {samples} samples."]
    if change > tolerance:
        notes.append(f"after {iterations} iterations the precisions still change by {change:.2g}, relatively.")
    before = problem
    if g_prior:
        lambdas = ", ".join(f"{float(v):.4g}" for v in here.grouped_prior.precision[:6])
        notes.append(f"g-prior: weight p has precision lambda H_pp / N with lambda = {lambdas}.")
        here = replace(here, prior=per_weight(here.grouped_prior, weights))
        before = replace(problem, prior=per_weight(prior, torch.ones_like(weights)))
    return finish(
        before,
        here,
        method=f"sampled EM ({samples} samples)",
        log_evidence=None,
        gamma=gamma,
        history=history,
        notes=notes,
        converged=change <= tolerance,
        theta_star=theta,
    )


def effective_by_samples(prior: BoundPrior, draws: Tensor, images: Tensor) -> Tensor:
    """`gamma_g` as the mean of `sum_{p in g} theta_p (H theta)_p` over samples; `images` is H at its scale times them.

    Unbiased for each group, since `H Sigma = I - Delta Sigma`; kept between 0 and the size of the group.
    """
    gamma = sum_by_group(prior, (draws * images).mean(0))
    return torch.minimum(gamma.clamp_min(0), prior.sizes.to(gamma))


def per_weight(prior: BoundPrior, weights: Tensor) -> BoundPrior:
    """One precision per weight, `lambda_g w_p`."""
    index = torch.arange(prior.layout.total, device=prior.index.device)
    return BoundPrior(prior.layout, index, limited(prior.vector() * weights.to(prior.mean)), prior.mean, None)

"""Tune without any factorisation: by expectation-maximisation with posterior samples from linear solves."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from marquis.choices import choose
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.evidence.expectation import FEW_WEIGHTS, SAMPLES, Exact, Sampled
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.linear_model import LinearModel
from marquis.evidence.log_evidence import sum_by_group
from marquis.evidence.mackay import step_of
from marquis.evidence.tuning_result import Tuned, TuningStep, TuningWarning, finish, limited
from marquis.priors import BoundPrior

JITTER = 1e-6
"""Added to the mean square per sample of a Jacobian column before the g-prior divides by it.

See docs/method/evidence.md#tuning-by-samples.
"""
SMALLEST_STEP, LARGEST_FACTOR = 1 / 8, 10.0
"""Steps in the logarithm are halved, down to this share, when changes grow; none exceeds this factor."""

UNSETTLED = 0.1
"""Relative change after the last iteration from which on there is no result."""

NOISY = 0.1
"""Relative standard error of an effective number of parameters, and so of a precision, from which on we warn."""


def sampled(
    problem: EvidenceProblem,
    *,
    samples: int | None = None,
    iterations: int = 50,
    noise: bool = True,
    g_prior: bool = False,
    simplified: bool = False,
    at: str = "optimum",
    tolerance: float = 1e-3,
    theta_tolerance: float = 1e-3,
    solve_tolerance: float = 1e-4,
    max_products: int = 200,
    generator: torch.Generator | None = None,
) -> Tuned:
    """Tune by expectation-maximisation with posterior samples, through JVP and VJP only.

    See docs/method/evidence.md#tuning-by-samples.

    E-step: theta-star of the linear model, and K posterior samples. M-step: `gamma_g = mean_k sum_{p in g}
    theta_p (H theta)_p` and `lambda_g = gamma_g / |theta*_g - mu_g|^2`; for a Gaussian the noise as in MacKay's update.
    The same random numbers serve in all iterations, so the iteration settles. No log evidence comes out: that needs a
    determinant. Memory: a few times K vectors of length P. Cost per iteration: some tens of passes over the data.

    K samples know `gamma_g` up to a relative error of about `sqrt(2 / (K gamma_g))`: little where the data determine
    thousands of weights, but some tens of per cent in a tiny problem. By default tiny problems therefore need no
    samples: their expectation is exact. Otherwise the error is measured, and warned of.

    Args:
        problem: with model and loader; no curvature is needed.
        samples: K; by default 8, and none for up to 512 weights, whose expectation is exact.
        iterations: maximum number of iterations of expectation and maximisation.
        noise: whether the noise precision is tuned too.
        g_prior: give weight p the precision `lambda_g H_pp / N`, so that weights whose Jacobian columns are large are
            held more tightly. The prior returned has one precision per weight; `effective_parameters` stay those of
            the groups.
        simplified: use `h = J theta`, without the offset.
        at: "optimum" evaluates at theta-star of the linear model, "network" at the network's weights, which saves the
            search for theta-star and does not follow it where groups are many and data are few.
        tolerance: on the relative change of every lambda and of the noise.
        theta_tolerance: nats that theta-star may be off.
        solve_tolerance: relative residual of the samples.
        max_products: maximum number of products with the curvature per solve.
        generator: source of the random numbers.

    Warns:
        TuningWarning: the precisions had not quite settled after so many iterations, or the samples were too few.

    Raises:
        NumericalError: the precisions still change by more than a tenth after so many iterations.
    """
    if (samples is not None and samples < 1) or iterations < 1:
        raise DataError(f"samples={samples} and iterations={iterations} have to be at least 1.")
    at = choose("at", at, ("optimum", "network"), error=DataError)
    if problem.shared:
        raise UnsupportedOperationError(
            "tune('sampled') draws noise for every example, so several processes would not agree with one; use "
            "tune('adapted') or tune('evidence'), or fit and tune in one process (fit(..., distributed=False))."
        )
    prior = problem.grouped_prior
    tangent = LinearModel(problem, "sampled", simplified=simplified)
    if samples is None and len(tangent.centre) <= FEW_WEIGHTS:
        expectation = Exact(tangent)
    else:
        expectation = Sampled(tangent, samples or SAMPLES, solve_tolerance, max_products, generator)
    theta = problem.mean.detach()
    weights = torch.ones_like(theta)
    if g_prior:
        weights = expectation.diagonal / problem.statistics.n + JITTER
    here = problem
    history: list[TuningStep] = []
    change, share = float("inf"), 1.0
    while True:
        delta = here.grouped_prior.vector().to(theta) * weights
        scale = float(here.scale())
        diagonal = scale * expectation.diagonal + delta
        statistics = problem.statistics
        if at == "optimum":
            optimum = tangent.optimum(
                delta,
                prior.mean.to(theta),
                scale,
                theta,
                preconditioner=lambda rows, diagonal=diagonal: rows / diagonal,
                tolerance=theta_tolerance,
                max_products=max_products,
            )
            theta, statistics = optimum.theta, optimum.statistics
        gamma, error = expectation(here.grouped_prior, delta, scale)
        gamma = bounded(gamma, prior, problem.statistics.observed / problem.temperature)
        history.append(step_of(here, None, gamma))
        if change <= tolerance or len(history) > iterations:
            break
        scatter = sum_by_group(prior, weights * (theta - prior.mean.to(theta)).square())
        precision = limited(gamma.double() / scatter.double())
        old = here.grouped_prior.precision.double()
        last, change = change, float((precision / old - 1).abs().max())
        beta = None
        if noise and here.noise is not None and statistics.sse is not None:
            free = statistics.observed - problem.temperature * gamma.double().sum()
            beta = limited(free / statistics.sse.double())
            change = max(change, abs(float(beta) / float(here.noise) - 1))
            beta = here.noise.double().to(beta) * partial_step(beta / here.noise.double().to(beta), share)
        share = max(SMALLEST_STEP, share / 2) if change > last else share
        here = here.with_hyper(old * partial_step(precision / old, share), beta)
    if not change <= UNSETTLED:
        raise NumericalError(
            f"tune('sampled') did not converge: after {iterations} iterations precisions still change by {change:.2g}, "
            "relatively. Raise iterations= or samples=, use fewer prior groups, or at='network', which does not follow "
            "the optimum of the linear model."
        )
    notes = reliability_notes(expectation, gamma, error, prior, iterations, change, tolerance)
    for note in notes:
        warnings.warn(f"tune('sampled'): {note}", TuningWarning, stacklevel=3)
    if isinstance(expectation, Sampled):
        notes.append(f"effective numbers of parameters are means over {expectation}.")
    before = problem
    if g_prior:
        lambdas = ", ".join(f"{float(v):.4g}" for v in here.grouped_prior.precision[:6])
        notes.append(f"g-prior: weight p has precision lambda H_pp / N with lambda = {lambdas}.")
        here = replace(here, prior=per_weight(here.grouped_prior, weights))
        before = replace(problem, prior=per_weight(prior, torch.ones_like(weights)))
    return finish(
        before,
        here,
        method=f"sampled EM ({expectation})",
        log_evidence=None,
        gamma=gamma,
        history=history,
        notes=notes,
        converged=change <= tolerance,
        theta_star=theta if at == "optimum" else None,
    )


def bounded(gamma: Tensor, prior: BoundPrior, observed: float) -> Tensor:
    """Return effective numbers within what they can be: a group's weights each, and all but one observation in all.

    Estimates from samples exceed both where the data determine almost as much as there are labels. Without the bound no
    degree of freedom would be left for the noise, whose precision would fall to its lower limit.
    """
    gamma = torch.minimum(gamma.clamp_min(0), prior.sizes.to(gamma))
    return gamma * min(1.0, max(observed - 1, 0.5 * observed) / max(float(gamma.sum()), 1e-300))


def partial_step(ratio: Tensor, share: float) -> Tensor:
    """Return the ratio of new to old precisions after a share of the step in the logarithm, bounded."""
    return ratio.pow(share).clamp(1 / LARGEST_FACTOR, LARGEST_FACTOR)


def reliability_notes(
    expectation: Exact | Sampled,
    gamma: Tensor,
    error: Tensor,
    prior: BoundPrior,
    iterations: int,
    change: float,
    tolerance: float,
) -> list[str]:
    """Return notes on why the precisions should not be trusted, with what to do; none if they can be."""
    notes = []
    if change > tolerance:
        notes.append(
            f"after {iterations} iterations the precisions still change by {change:.2g}, relatively; raise iterations=."
        )
    relative = torch.where(error > 0, error / gamma.clamp_min(1e-300), torch.zeros_like(error))
    if isinstance(expectation, Sampled) and bool((relative > NOISY).any()):
        worst = int(relative.argmax())
        where = prior.names[worst] if prior.group_names is not None else f"group {worst}"
        advice = "raise samples="
        if len(prior.index) <= FEW_WEIGHTS:
            advice = "leave samples= out: the expectation of so few weights can be exact"
        notes.append(
            f"{expectation} leave a standard error of {100 * float(relative[worst]):.0f} % in the precision of "
            f"{where}; {advice}."
        )
    return notes


def per_weight(prior: BoundPrior, weights: Tensor) -> BoundPrior:
    """Return one precision per weight, `lambda_g w_p`."""
    index = torch.arange(prior.layout.total, device=prior.index.device)
    return BoundPrior(prior.layout, index, limited(prior.vector() * weights.to(prior.mean)), prior.mean, None)

"""Iterate MacKay's fixed points: prior precisions and noise precision at which the evidence is stationary."""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.tuning_result import Maximum, TuningStep, limited


def proposal(problem: EvidenceProblem, gamma: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return MacKay's update, `delta_g = gamma_g / |theta_g - mu_g|^2` and `beta = (N O - T gamma) / SSE`.

    See docs/method/evidence.md#mackay-updates.

    At temperature T the data count 1/T-fold, which turns `N O - gamma` into `N O - T gamma`. Where the structure
    counts more effective parameters than there are labels (a diagonal may), the noise has no fixed point: NaN.
    """
    prior = problem.grouped_prior
    precision = limited(gamma.double() / prior.scatter(problem.mean).double())
    statistics = problem.statistics
    if problem.noise is None or statistics.sse is None:
        return precision, None
    left = statistics.observed - problem.temperature * gamma.double().sum()
    noise = limited(left / statistics.sse.double()) if bool(left > 0) else left * float("nan")
    return precision, noise


def mackay(
    problem: EvidenceProblem, *, noise: bool = True, tolerance: float = 1e-3, max_iterations: int = 100
) -> Maximum:
    """Iterate the fixed points until no precision changes by more than `tolerance`, relatively.

    Steps go half the way in the logarithm. With the weights held fixed, log Z is concave in the logarithms of all
    precisions, and the full step overshoots with slope between -2 and 0 (for the prior precisions, by Gershgorin's
    circles on the Hessian of the log-determinant); the half step contracts by at least 1/2 wherever the full one is
    stable at all. The fixed points are the same. Cost per step: the diagonal of a posterior covariance and a
    log-determinant.
    """
    if not tolerance > 0 or max_iterations < 1:
        raise DataError(f"tolerance={tolerance} and max_iterations={max_iterations} have to be positive.")
    best: Maximum | None = None
    history: list[TuningStep] = []
    with torch.no_grad():
        for iteration in range(max_iterations + 1):
            gamma = effective_parameters(problem)
            value = float(log_evidence(problem))
            history.append(step_of(problem, value, gamma))
            if best is None or value > best.log_evidence:
                best = Maximum(problem, value, False, history, gamma)
            precision, beta = proposal(problem, gamma)
            beta = beta if noise else None
            now = problem.grouped_prior.precision.double()
            changes = (precision / now - 1).abs().max()
            if beta is not None and problem.noise is not None:
                changes = torch.maximum(changes, (beta / problem.noise.double() - 1).abs())
            if bool(changes <= tolerance):
                return Maximum(problem, value, True, history, gamma)
            if iteration == max_iterations or not bool(changes.isfinite()):
                break
            halfway = None if beta is None or problem.noise is None else (beta * problem.noise.double()).sqrt()
            problem = problem.with_hyper((precision * now).sqrt(), halfway)
    assert best is not None
    return best


def step_of(problem: EvidenceProblem, value: float | None, gamma: Tensor | None = None) -> TuningStep:
    """Return a line of the history at the problem's present values."""
    prior = problem.prior
    precision = getattr(prior, "precision", None)
    noise = problem.noise
    return TuningStep(
        value,
        None if precision is None else precision.detach().clone(),
        None if noise is None else float(noise),
        None if gamma is None else gamma.detach(),
    )

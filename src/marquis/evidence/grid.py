"""Choose among a grid of prior precisions by predictions of validation data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch

from marquis.errors import DataError, NumericalError
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters
from marquis.evidence.mackay import step_of
from marquis.evidence.tuning_result import Tuned, TuningStep, finish
from marquis.likelihoods import Likelihood
from marquis.priors import BoundPrior

Score = Callable[[BoundPrior, Likelihood], float]
"""Mean or total log predictive density of validation data under this prior and likelihood; larger is better."""

DEFAULT_GRID = tuple(10.0 ** (k / 5) for k in range(-20, 21))
"""Five values per decade from 1e-4 to 1e4 (docs/method/evidence.md#gradient-and-grid)."""

FLAT = 1e-7
"""Relative spread of the scores below which the objective does not depend on the prior."""


def grid(
    problem: EvidenceProblem,
    score: Score,
    *,
    values: Sequence[float] | None = None,
    relative: bool = False,
) -> Tuned:
    """Choose the prior precision under which validation data are predicted best.

    See docs/method/evidence.md#gradient-and-grid.

    Cost: one call of `score` per value, and one for the present prior.

    Raises:
        NumericalError: all scores are the same, so that they say nothing about the prior, or none is finite.

    Warns:
        UserWarning: the best value is an end of the grid, so the true optimum may be beyond it.
    """
    prior = problem.grouped_prior
    candidates = sorted(float(v) for v in (DEFAULT_GRID if values is None else values))
    if len(set(candidates)) < 2 or not all(0 < v < math.inf for v in candidates):
        raise DataError("a grid needs at least two different values, positive and finite.")
    history: list[TuningStep] = [step_of(problem, float(score(prior, problem.likelihood)))]
    problems: list[EvidenceProblem] = []
    for value in candidates:
        precision = prior.precision.detach() * value if relative else torch.full_like(prior.precision.detach(), value)
        there = problem.with_hyper(precision)
        density = float(score(there.grouped_prior, there.likelihood))
        problems.append(there)
        history.append(step_of(there, density))
    scores = [math.nan if step.log_evidence is None else step.log_evidence for step in history[1:]]
    finite = [s for s in scores if math.isfinite(s)]
    if not finite:
        raise NumericalError("the score is NaN or infinite for every prior precision; check the validation data.")
    if max(finite) - min(finite) <= FLAT * max(1.0, abs(max(finite))):
        raise NumericalError(
            f"the score does not depend on the prior precision (always {max(finite):.6g}), so no grid can choose one. "
            "It has to use the predictive distribution (pred.probs, or mean and variance), not the mean alone."
        )
    notes = []
    if len(finite) < len(scores):
        notes.append(f"{len(scores) - len(finite)} of {len(scores)} scores were NaN or infinite and left out.")
    winner = max(range(len(scores)), key=lambda i: scores[i] if math.isfinite(scores[i]) else -math.inf)
    if winner in (0, len(scores) - 1):
        text = (
            f"the best prior precision, {candidates[winner]:.3g}, is an end of the grid; the optimum may be beyond it: "
            "widen values=."
        )
        warnings.warn(text, UserWarning, stacklevel=3)
        notes.append(text)
    best = problems[winner]
    return finish(
        problem,
        best,
        method="grid (predictive log density of validation data)",
        log_evidence=scores[winner],
        gamma=None if problem.curvature is None else effective_parameters(best).detach(),
        history=history,
        notes=notes,
        value_name="validation log density",
    )

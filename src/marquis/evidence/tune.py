"""One call for every way of choosing prior and noise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from marquis.choices import choose
from marquis.errors import UnsupportedOperationError
from marquis.evidence.adapted import adapted
from marquis.evidence.gradient import ascend
from marquis.evidence.grid import grid
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.maximise import maximise
from marquis.evidence.sampled import sampled
from marquis.evidence.tuning_result import Tuned, finish
from marquis.priors import BoundPrior

METHODS = ("evidence", "gradient", "adapted", "grid", "sampled")


def tune(problem: EvidenceProblem, method: str = "evidence", **options: Any) -> Tuned:
    """Choose prior precisions, and the noise precision of a Gaussian, by the evidence or by validation data.

    Args:
        problem: what the evidence is a function of; see `EvidenceProblem`.
        method: `"evidence"`: MacKay's fixed points, or Adam where they do not converge (options `noise`,
            `tolerance`, `max_iterations`). `"gradient"`: Adam on the logarithms (`noise`, `learning_rate`, `steps`,
            `tolerance`, and `log_prior`, a hyper-prior over the logarithms of the prior precisions).
            `"adapted"`: the evidence of the linearised model at its own optimum, for networks that are not at a mode,
            above all normalised ones (see `adapted`). `"grid"`: predictive log density of validation
            data (`score=` is required; see `grid`). `"sampled"`: without any factorisation (see `sampled`).
        **options: passed on to the method.

    Returns:
        A `Tuned`; print it for a table of what was tuned, from what to what.

    Raises:
        UnsupportedOperationError: the method is not known, or there is nothing to tune.
    """
    method = choose("method", method, METHODS)
    functions = {"evidence": by_evidence, "gradient": by_gradient, "adapted": adapted, "grid": grid, "sampled": sampled}
    known = list(inspect.signature(functions[method]).parameters)[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UnsupportedOperationError(
            f"tune(method={method!r}) has no option {', '.join(map(repr, unknown))}; it has {', '.join(known)}."
        )
    if method == "grid" and "score" not in options:
        raise UnsupportedOperationError(
            "tune(method='grid') needs score=, a function (prior, likelihood) -> log predictive density of "
            "validation data."
        )
    return functions[method](problem, **options)


def by_evidence(
    problem: EvidenceProblem, *, noise: bool = True, tolerance: float = 1e-3, max_iterations: int = 100
) -> Tuned:
    """Tune by MacKay's fixed points, and by Adam on the logarithms where they do not converge.

    See docs/method/evidence.md#mackay-updates.
    """
    if not isinstance(problem.prior, BoundPrior):  # an earlier posterior: only the noise is left
        return by_gradient(problem, noise=noise, steps=500)
    maximum = maximise(problem, noise=noise, tolerance=tolerance, max_iterations=max_iterations)
    return finish(
        problem,
        maximum.problem,
        method=f"evidence ({maximum.by})",
        log_evidence=maximum.log_evidence,
        gamma=maximum.gamma,
        history=maximum.history,
        notes=maximum.notes,
        converged=maximum.converged,
    )


def by_gradient(
    problem: EvidenceProblem,
    *,
    noise: bool = True,
    learning_rate: float = 0.1,
    steps: int = 100,
    tolerance: float = 1e-3,
    log_prior: Callable[[Tensor], Tensor] | None = None,
) -> Tuned:
    """Tune by Adam on the logarithms (docs/method/evidence.md#gradient-and-grid)."""
    ascent = ascend(
        problem, noise=noise, learning_rate=learning_rate, steps=steps, tolerance=tolerance, log_prior=log_prior
    )
    has_groups = isinstance(ascent.problem.prior, BoundPrior)
    return finish(
        problem,
        ascent.problem,
        method="evidence (Adam)",
        log_evidence=float(log_evidence(ascent.problem).detach()),  # without the hyper-prior
        gamma=effective_parameters(ascent.problem).detach() if has_groups else None,
        history=ascent.history,
        notes=ascent.notes,
        converged=ascent.converged,
    )

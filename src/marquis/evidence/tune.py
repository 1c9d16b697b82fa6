"""Choose prior and noise by one call, whatever the method."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import Tensor

from marquis.arguments import checked
from marquis.choices import choose
from marquis.errors import UnsupportedOperationError
from marquis.evidence.adapted import adapted
from marquis.evidence.gradient import ascend, maximise
from marquis.evidence.grid import grid
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.sampled import sampled
from marquis.evidence.tuning_result import Maximum, Tuned, finish
from marquis.priors import BoundPrior

METHODS = ("evidence", "gradient", "adapted", "grid", "sampled")


@checked
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
    names = list(inspect.signature(functions[method]).parameters)[1:]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise UnsupportedOperationError(
            f"tune(method={method!r}) has no option {', '.join(map(repr, unknown))}; it has {', '.join(names)}."
        )
    if method == "grid" and "score" not in options:
        raise UnsupportedOperationError(
            "tune(method='grid') needs score=, a function (prior, likelihood) -> log predictive density of "
            "validation data."
        )
    return functions[method](problem, **options)


@functools.wraps(maximise, assigned=())
def by_evidence(problem: EvidenceProblem, *, noise: bool = True, **options: Any) -> Tuned:
    """Tune by MacKay's fixed points, and by Adam on the logarithms where they do not converge.

    See docs/method/evidence.md#mackay-updates.
    """
    if not isinstance(problem.prior, BoundPrior):  # an earlier posterior: only the noise is left
        return by_gradient(problem, noise=noise, steps=500)
    maximum = maximise(problem, noise=noise, **options)
    return _tuned(problem, maximum, maximum.log_evidence, maximum.gamma)


@functools.wraps(ascend, assigned=())
def by_gradient(problem: EvidenceProblem, **options: Any) -> Tuned:
    """Tune by Adam on the logarithms (docs/method/evidence.md#gradient-and-grid)."""
    maximum = ascend(problem, **options)
    has_groups = isinstance(maximum.problem.prior, BoundPrior)
    value = float(log_evidence(maximum.problem).detach())  # without the hyper-prior
    return _tuned(problem, maximum, value, effective_parameters(maximum.problem).detach() if has_groups else None)


def _tuned(problem: EvidenceProblem, maximum: Maximum, value: float, gamma: Tensor | None) -> Tuned:
    """Return a maximum as the result of tuning, with its table."""
    return finish(
        problem,
        maximum.problem,
        method=f"evidence ({maximum.by})",
        log_evidence=value,
        gamma=gamma,
        history=maximum.history,
        notes=maximum.notes,
        converged=maximum.converged,
    )

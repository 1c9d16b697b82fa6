"""Hold the results of tuning: the new prior and noise, and a table of what changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from marquis.evidence.inputs import EvidenceProblem
from marquis.likelihoods import Likelihood
from marquis.notebook import ShownAsText
from marquis.priors import BoundPrior, StructuredPrior

LOWEST, HIGHEST = 1e-8, 1e8
"""Limits of every tuned precision: beyond them the evidence asks for none or for infinity.

See docs/method/evidence.md#mackay-updates.
"""

SHOWN = 12
"""Groups that the table lists one by one; of more, it shows the range."""


class TuningWarning(UserWarning):
    """Warn that the tuned values should not be trusted as they are; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class TuningStep:
    """Hold one iteration of tuning.

    Attributes:
        log_evidence: at these values; a validation score for method "grid"; None where it is not known.
        precision: prior precision per group `[G]`.
        noise_precision: noise precision of a Gaussian with one noise precision, else None.
        effective_parameters: per group `[G]`, where the method computes them.
    """

    log_evidence: float | None
    precision: Tensor | None
    noise_precision: float | None = None
    effective_parameters: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Maximum:
    """Hold the best point that a method reached, how it got there, and notes for the report.

    Attributes:
        problem: with the precisions of that point.
        log_evidence: there, with the hyper-prior where there is one.
        converged: whether the method's own stopping rule was met.
        history: every step.
        gamma: effective parameters per prior group there, where the method computes them.
        by: name of the method.
        notes: what a user should know.
    """

    problem: EvidenceProblem
    log_evidence: float
    converged: bool
    history: list[TuningStep]
    gamma: Tensor | None = None
    by: str = "MacKay"
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Tuned(ShownAsText):
    """Hold the outcome of `tune`.

    Attributes:
        prior: with the tuned precisions.
        likelihood: with the tuned noise.
        log_evidence: at these values (at theta-star for method "adapted"); None where the method has no
            log-determinant ("sampled").
        effective_parameters: per prior group `[G]`; None where nothing says it.
        history: one entry per iteration, the first at the values before tuning.
        method: how it was tuned.
        notes: what a user should know: limits reached, fall-backs taken.
        theta_star: optimum of the linear model, for methods "adapted" and "sampled"; predictions keep the network's
            own mean.
        converged: whether the method's own stopping rule was met.
        report: the table.
        held_out: densities of unseen examples before and after (`laplace.held_out.HeldOut`), where they were computed.
    """

    prior: BoundPrior | StructuredPrior
    likelihood: Likelihood
    log_evidence: float | None
    effective_parameters: Tensor | None
    history: tuple[TuningStep, ...]
    method: str
    notes: tuple[str, ...] = ()
    theta_star: Tensor | None = None
    converged: bool = True
    report: str = field(default="")
    held_out: Any = None

    def __str__(self) -> str:
        """Return the table."""
        return self.report


def limited(precision: Tensor) -> Tensor:
    """Return precisions within the limits; NaN (0/0, where neither data nor weights matter) is the upper limit."""
    return torch.nan_to_num(precision, nan=HIGHEST, posinf=HIGHEST).clamp(LOWEST, HIGHEST)


def limit_notes(prior: BoundPrior) -> list[str]:
    """Return notes on the groups whose precision stopped at a limit."""
    notes = []
    for limit, meaning in (
        (HIGHEST, "their weights are pinned to the prior mean"),
        (LOWEST, "the data hardly depend on their weights, so the prior there is all but flat"),
    ):
        # Within a per cent: an iteration that stops at a tolerance is near its limit, not on it.
        at = ((prior.precision / limit - 1).abs() < 1e-2).nonzero().flatten().tolist()
        if at:
            names = ", ".join(prior.names[i] for i in at[:4]) + (", ..." if len(at) > 4 else "")
            notes.append(f"{len(at)} prior precision(s) stopped at the limit {limit:.0e} ({names}): {meaning}.")
    return notes


def finish(
    before: EvidenceProblem,
    after: EvidenceProblem,
    *,
    method: str,
    log_evidence: float | None,
    gamma: Tensor | None,
    history: list[TuningStep],
    notes: list[str],
    converged: bool = True,
    theta_star: Tensor | None = None,
    value_name: str = "log evidence",
) -> Tuned:
    """Detach the tuned values, add notes on limits, and write the table."""
    prior, likelihood = after.prior, after.likelihood
    if isinstance(prior, BoundPrior):
        prior = prior.with_precision(prior.precision.detach().clone())
        notes = [*notes, *limit_notes(prior)]
    beta = likelihood.scalar_noise_precision
    if beta is not None and (float(beta) >= 0.99 * HIGHEST or float(beta) <= 1.01 * LOWEST):
        notes = [*notes, f"the noise precision stopped at its limit, {float(beta):.0e}; check the scale of the labels."]
    steps, remarks = tuple(history), tuple(notes)
    tuned = Tuned(prior, likelihood, log_evidence, gamma, steps, method, remarks, theta_star, converged)
    return replace(tuned, report=table(before, tuned, value_name))


def table(before: EvidenceProblem, tuned: Tuned, value_name: str) -> str:
    """Return a table of what was tuned, from which to which value, with effective parameters."""
    rows: list[tuple[str, ...]] = []
    prior, gamma, total = tuned.prior, tuned.effective_parameters, tuned.prior.layout.total
    if isinstance(prior, BoundPrior):
        old = before.grouped_prior.precision.detach()
        if prior.group_names is not None and len(prior.precision) <= SHOWN:
            for i, name in enumerate(prior.names):
                shown = "" if gamma is None else f"{float(gamma[i]):.1f}"
                size = f"{int(prior.sizes[i])}"
                label = "prior precision" if len(prior.names) == 1 else f"prior precision, {name}"
                rows.append((label, _number(old[i if len(old) > 1 else 0]), _number(prior.precision[i]), size, shown))
        else:
            shown = "" if gamma is None else f"{float(gamma.sum()):.1f}"
            label = f"prior precision, {len(prior.precision)} groups"
            rows.append((label, _range(old), _range(prior.precision), f"{total}", shown))
    old_noise, new_noise = before.likelihood.scalar_noise_precision, tuned.likelihood.scalar_noise_precision
    if old_noise is not None and new_noise is not None:
        rows.append(("noise precision", _number(old_noise), _number(new_noise), "", ""))
    first = tuned.history[0].log_evidence if tuned.history else None
    if tuned.log_evidence is not None:
        rows.append((value_name, "" if first is None else f"{first:.3f}", f"{tuned.log_evidence:.3f}", "", ""))
    if gamma is not None:
        rows.append(("all weights", "", "", f"{total}", f"{float(gamma.sum()):.1f}"))
    head = ("tuned", "from", "to", "weights", "effective")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: tuple[str, ...]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    steps = max(len(tuned.history) - 1, 0)
    lines = [f"tuned by {tuned.method}, {steps} iteration{'' if steps == 1 else 's'}", line(head)]
    lines += [line(tuple("-" * w for w in widths)), *map(line, rows)]
    return "\n".join([*lines, *(f"note: {note}" for note in tuned.notes)])


def _number(value: Tensor | float) -> str:
    """Format a number for the table."""
    return f"{float(value):.4g}"


def _range(values: Tensor) -> str:
    """Format the smallest and the largest value."""
    low, high = float(values.min()), float(values.max())
    return _number(low) if low == high else f"{_number(low)} .. {_number(high)}"

"""The maximum of the evidence at fixed weights: MacKay's fixed points, and Adam where they do not converge."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marquis.evidence.gradient import ascend
from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters
from marquis.evidence.mackay import mackay
from marquis.evidence.tuning_result import Step


@dataclass(frozen=True, eq=False)
class Maximum:
    """The problem at its best precisions, the effective parameters there, and how it was found."""

    problem: EvidenceProblem
    log_evidence: float
    gamma: Tensor
    converged: bool
    by: str
    history: list[Step]
    notes: list[str]


def maximise(
    problem: EvidenceProblem,
    *,
    noise: bool = True,
    tolerance: float = 1e-3,
    max_iterations: int = 100,
    steps: int = 500,
) -> Maximum:
    """Iterate MacKay's fixed points; if they do not converge, go on with up to `steps` steps of Adam."""
    fixed = mackay(problem, noise=noise, tolerance=tolerance, max_iterations=max_iterations)
    if fixed.converged:
        return Maximum(fixed.problem, fixed.log_evidence, fixed.gamma, True, "MacKay", fixed.history, [])
    ascent = ascend(fixed.problem, noise=noise, steps=steps)
    notes = [f"MacKay's fixed points did not converge in {len(fixed.history) - 1} iterations; Adam continued."]
    notes += ascent.notes
    return Maximum(
        ascent.problem,
        ascent.log_evidence,
        effective_parameters(ascent.problem).detach(),
        ascent.converged,
        "MacKay, then Adam",
        [*fixed.history, *ascent.history[1:]],
        notes,
    )

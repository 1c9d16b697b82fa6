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
    """MacKay first; if it does not settle, up to `steps` of Adam from its best point, the best iterate kept."""
    found = mackay(problem, noise=noise, tolerance=tolerance, max_iterations=max_iterations)
    if found.converged:
        return Maximum(found.problem, found.log_evidence, found.gamma, True, "MacKay", found.history, [])
    climbed = ascend(found.problem, noise=noise, steps=steps)
    notes = [f"MacKay's fixed points did not converge in {len(found.history) - 1} iterations; Adam went on from there."]
    notes += climbed.notes
    return Maximum(
        climbed.problem,
        climbed.log_evidence,
        effective_parameters(climbed.problem).detach(),
        climbed.converged,
        "MacKay, then Adam",
        [*found.history, *climbed.history[1:]],
        notes,
    )

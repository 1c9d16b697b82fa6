"""How probable the data are under prior and noise, and which prior and noise make them most probable.

`log_evidence(problem)` is the number, `tune(problem, method)` the choice, `train(...)` both at once while a network
trains. All take an `EvidenceProblem`, which `Laplace` builds.
"""

from __future__ import annotations

from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import EvidenceTerms, effective_parameters, evidence_terms, log_evidence
from marquis.evidence.statistics import Statistics
from marquis.evidence.training import Epoch, Trained, number_of_updates, train
from marquis.evidence.tune import tune
from marquis.evidence.tuning_result import Step, Tuned, TuningWarning

__all__ = [
    "Epoch",
    "EvidenceProblem",
    "EvidenceTerms",
    "Statistics",
    "Step",
    "Trained",
    "Tuned",
    "TuningWarning",
    "effective_parameters",
    "evidence_terms",
    "log_evidence",
    "number_of_updates",
    "train",
    "tune",
]

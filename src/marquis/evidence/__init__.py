"""Compute how probable the data are under prior and noise, and choose the prior and noise that maximise this.

`log_evidence(problem)` is the number, `tune(problem, method)` the choice, `train(...)` both at once while a network
trains. All take an `EvidenceProblem`, which `Laplace` builds.
"""

from __future__ import annotations

from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.statistics import Statistics
from marquis.evidence.training import EvidenceTraining, train
from marquis.evidence.tune import tune
from marquis.evidence.tuning_result import Tuned, TuningWarning
from marquis.lazy import lazy_names

__all__ = [
    "EvidenceProblem",
    "EvidenceTraining",
    "Statistics",
    "Tuned",
    "TuningWarning",
    "effective_parameters",
    "log_evidence",
    "train",
    "tune",
]

# Internals, which were public once.
__getattr__ = lazy_names(
    __name__,
    {
        "Epoch": "training",
        "EvidenceTerms": "log_evidence",
        "EvidenceTraining": "training",
        "TuningStep": "tuning_result",
        "evidence_terms": "log_evidence",
        "number_of_updates": "training",
    },
    {"Step": "TuningStep", "Trained": "EvidenceTraining"},
)

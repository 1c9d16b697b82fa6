"""How probable the data are under prior and noise, and which prior and noise make them most probable.

`log_evidence(problem)` is the number, `tune(problem, method)` the choice, `train(...)` both at once while a network
trains. All take an `EvidenceProblem`, which `Laplace` builds.
"""

from __future__ import annotations

from marquis.evidence.inputs import EvidenceProblem
from marquis.evidence.log_evidence import effective_parameters, log_evidence
from marquis.evidence.statistics import Statistics
from marquis.evidence.training import Trained, train
from marquis.evidence.tune import tune
from marquis.evidence.tuning_result import Tuned, TuningWarning
from marquis.lazy import lazy_names

__all__ = [
    "EvidenceProblem",
    "Statistics",
    "Trained",
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
        "Step": "tuning_result",
        "evidence_terms": "log_evidence",
        "number_of_updates": "training",
    },
)

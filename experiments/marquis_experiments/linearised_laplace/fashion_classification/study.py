"""`fashion-classification`: a CNN on Fashion-MNIST, Kronecker Laplace over all weights, outliers from MNIST.

Accuracy, NLL, calibration and the detection of MNIST's digits for MAP, networks with sampled weights and the
linearised network, beside temperature scaling and a deep ensemble. Weight decay is chosen on validation rows; the
prior of the posterior by the evidence (and, for comparison, by validation). Test rows and MNIST choose nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from marquis_experiments.common.study import Run, Study
from marquis_experiments.linearised_laplace.fashion_classification.methods import Experiment
from marquis_experiments.linearised_laplace.fashion_classification.page import draw, values
from marquis_experiments.linearised_laplace.weight_decay import cases


def measure(run: Run) -> dict[str, Any]:
    """Score every method, cheap ones first."""
    case = cases(run.size)["fashion-mnist-cnn"]
    experiment = Experiment(run, case)
    rows = {}
    for name, method in experiment.methods().items():
        rows[name] = method()
        run.say(f"{name}: NLL {rows[name]['nll']:.4f}, AUROC {rows[name]['auroc']:.4f}")
    return {
        "settings": run.settings.plain(),
        "study": asdict(case),
        **experiment.named,
        "weights": sum(weight.numel() for weight in experiment.chosen.network.parameters()),
        "grid": experiment.chosen.grid,
        "precision": experiment.chosen.precision,
        "rows": rows,
    }


# `outside`: test images of MNIST; `samples`: networks with sampled weights; `validation`: rows that choose multiples of
# the evidence's precisions; `draws`: samples of the logits for the Monte-Carlo link.
# fmt: off
STUDY = Study(
    "fashion-classification", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "outside": 10_000, "samples": 20, "validation": 1_000, "multiples": (0.3, 1.0, 3.0, 10.0, 30.0),
        "sampled_multiples": (1.0, 10.0, 100.0, 1_000.0), "draws": 200,
    },
    quick={
        "outside": 64, "samples": 4, "validation": 32, "multiples": (0.3, 1.0, 3.0),
        "sampled_multiples": (1.0, 100.0),
    },
    full={"samples": 100, "validation": 5_000},
)
# fmt: on

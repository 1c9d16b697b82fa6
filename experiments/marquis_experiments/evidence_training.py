"""`evidence-training`: weight decay by cross-validation against precisions by the evidence while training.

An MLP and a CNN on MNIST and Fashion-MNIST (Immer et al. 2021, as the tutorial quotes it). Cross-validation trains one
network per weight decay and keeps the best on validation rows; `mq.evidence.train` trains one network and updates one
precision per layer from training rows alone. Temperature scaling and a deep ensemble of the validated network beside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis_experiments.cells import timed_from_now, write_json
from marquis_experiments.classifiers import ImageData, ensemble_probs, fitted_temperature, logits
from marquis_experiments.evidence_training_report import write_report
from marquis_experiments.metrics import classification_scores
from marquis_experiments.trained import shared_networks
from marquis_experiments.weight_decay import Study, ensemble, studies, validated, with_evidence


def run(
    size: str = "default",
    out: str | Path = "runs/evidence-training",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page, study by study; networks are kept, and shared with other experiments."""
    folder, shared = Path(out) / size, shared_networks(out)
    timed = timed_from_now(say)
    results: dict[str, Any] = {"size": size, "planned": list(studies(size)), "studies": {}}

    def save(name: str, found: dict[str, Any]) -> None:
        results["studies"][name] = found
        write_json(folder / "results.json", results)

    try:
        for name, study in studies(size).items():
            data = study.load(data_dir, or_digits=size == "quick")
            one_study(shared, data, study, timed, lambda found, name=name: save(name, found))
    finally:  # a run that is stopped shows what it has
        page = write_report(folder, results)
    return page


def one_study(
    shared: Path,
    data: ImageData,
    study: Study,
    say: Callable[[str], None],
    save: Callable[[dict[str, Any]], None],
) -> None:
    """All rows of one network on one data set; `save` gets what there is after each stage."""
    test, held_back = data.test, data.validation
    chosen = validated(shared, data, study, say)
    network, history = with_evidence(shared, data, study)
    outputs = logits(chosen.network, test.x)
    temperature = fitted_temperature(logits(chosen.network, held_back.x), held_back.y)
    rows = {
        "validated": scored(outputs.softmax(1), test.y),
        "evidence": scored(logits(network, test.x).softmax(1), test.y),
        "temperature": scored((outputs / temperature).softmax(1), test.y),
    }
    say(f"{study.name}: log-likelihood {-rows['validated']['nll']:.4f} -> {-rows['evidence']['nll']:.4f}")
    found = {
        "study": asdict(study),
        "data": data.name,
        "weights": sum(weight.numel() for weight in network.parameters()),
        "grid": chosen.grid,
        "precision": chosen.precision,
        "temperature": temperature,
        "evidence_validation": scored(logits(network, held_back.x).softmax(1), held_back.y),
        "history": {key: history[key] for key in ("epoch", "groups", "precision", "epochs")},
        "rows": rows,
    }
    save(found)
    members = ensemble(shared, data, study, chosen.precision, say)
    rows["ensemble"] = scored(ensemble_probs(members, test.x), test.y)
    save(found)


def scored(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores, with the standard error of the NLL over rows."""
    right = probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    losses = -right.clamp_min(torch.finfo(probs.dtype).tiny).log()
    return {**classification_scores(probs, labels), "nll_error": float(losses.std() / len(losses) ** 0.5)}

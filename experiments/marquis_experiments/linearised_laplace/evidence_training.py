"""`evidence-training`: weight decay by validation against prior precisions by the evidence while training.

An MLP and a CNN on MNIST and Fashion-MNIST (Immer et al. 2021, as the tutorial quotes it). Cross-validation trains one
network per weight decay and keeps the best on validation rows; `mq.evidence.train` trains one network and updates one
precision per layer from training rows alone. Temperature scaling and a deep ensemble of the validated network beside.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure
from marquis_experiments.common.images import ensemble_probs, fitted_temperature, logits
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.page import verdict
from marquis_experiments.common.study import Run, Study
from marquis_experiments.linearised_laplace.weight_decay import Case, cases, ensemble, validated, with_evidence

LABELS = {
    "validated": "weight decay by validation",
    "evidence": "precisions by evidence",
    "temperature": "weight decay by validation, temperature-scaled",
    "ensemble": "deep ensemble of the first",
}
PAPER = {
    "mnist-mlp": {"validated": (98.22, -0.061), "evidence": (98.38, -0.053)},
    "mnist-cnn": {"validated": (99.40, -0.017), "evidence": (99.46, -0.016)},
    "fashion-mnist-mlp": {"validated": (88.09, -0.347), "evidence": (89.83, -0.305)},
    "fashion-mnist-cnn": {"validated": (91.39, -0.258), "evidence": (92.06, -0.233)},
}
"""The tutorial's table: accuracy in percent and log-likelihood per test row."""
TITLES = {
    "mnist-mlp": "MNIST, MLP",
    "mnist-cnn": "MNIST, CNN",
    "fashion-mnist-mlp": "Fashion-MNIST, MLP",
    "fashion-mnist-cnn": "Fashion-MNIST, CNN",
}
COLOURS = (BLUE, ORANGE, GREEN, GREY, PURPLE)
MOST_CURVES = len(COLOURS)


def measure(run: Run) -> dict[str, Any]:
    """Train and score every case; networks are shared with other studies."""
    made = cases(run.size)
    return {"planned": list(made), "studies": {name: one_case(run, case) for name, case in made.items()}}


def one_case(run: Run, case: Case) -> dict[str, Any]:
    """Return all rows of one network on one data set."""
    data = case.load(run.data_dir, or_digits=run.size == "quick")
    test, held_out = data.test, data.validation
    chosen = validated(run.shared, data, case, run.say)
    network, history = with_evidence(run.shared, data, case)
    members = ensemble(run.shared, data, case, chosen.precision, run.say)
    outputs = logits(chosen.network, test.x)
    temperature = fitted_temperature(logits(chosen.network, held_out.x), held_out.y)
    rows = {
        "validated": scored(outputs.softmax(1), test.y),
        "evidence": scored(logits(network, test.x).softmax(1), test.y),
        "temperature": scored((outputs / temperature).softmax(1), test.y),
        "ensemble": scored(ensemble_probs(members, test.x), test.y),
    }
    run.say(f"{case.name}: log-likelihood {-rows['validated']['nll']:.4f} -> {-rows['evidence']['nll']:.4f}")
    return {
        "study": asdict(case),
        "data": data.name,
        "weights": sum(weight.numel() for weight in network.parameters()),
        "grid": chosen.grid,
        "precision": chosen.precision,
        "temperature": temperature,
        "evidence_validation": scored(logits(network, held_out.x).softmax(1), held_out.y),
        "history": {key: history[key] for key in ("epoch", "groups", "precision", "epochs")},
        "rows": rows,
    }


def scored(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return scores, with the standard error of the NLL over rows."""
    chosen = probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    losses = -chosen.clamp_min(torch.finfo(probs.dtype).tiny).log()
    return {**classification_scores(probs, labels), "nll_error": float(losses.std() / len(losses) ** 0.5)}


# --- page --------------------------------------------------------------------------------------------------


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables; evidence must be better than validation and reach the tutorial's figures."""
    done = {TITLES[name]: {**part, "name": name} for name, part in results["studies"].items()}
    gains, within, reached, methods = {}, 0, 0, {}
    for title, part in done.items():
        rows, paper = part["rows"], PAPER[part["name"]]
        gains[title] = rows["validated"]["nll"] - rows["evidence"]["nll"]
        within += abs(gains[title]) < max(rows["validated"]["nll_error"], rows["evidence"]["nll_error"])
        accuracy, log_likelihood = paper["evidence"]
        reached += 100 * rows["evidence"]["accuracy"] >= accuracy and -rows["evidence"]["nll"] >= log_likelihood
        for method, label in LABELS.items():
            row = rows[method]
            beside = "{:.2f} / {:.3f}".format(*paper[method]) if method in paper else ""
            shown = {"percent": 100 * row["accuracy"], "log_likelihood": -row["nll"], "beside": beside}
            methods[f"{title}: {label}"] = {**row, **shown}
    return {
        "methods": methods,
        "done": done,
        "gains": gains,
        "better": sum(gain > 0 for gain in gains.values()),
        "within": within,
        "reached": reached,
        "networks": len(done),
        "digits": any(part["data"] == "digits" for part in done.values()),
        "verdict": verdict(all(gain > 0 for gain in gains.values()), reached == len(done)),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw log evidence (above) and precisions (below) along the epochs, one column per network."""
    from matplotlib.ticker import MaxNLocator

    done = results["studies"]
    columns = len(done)
    figure = Figure(2 * columns, columns, width=3.3, height=2.6)
    for column, (name, part) in enumerate(done.items()):
        above, below = figure.axes[column], figure.axes[columns + column]
        history, rows = part["history"], part["study"]["train"]
        updates = [(k, e) for k, e in enumerate(history["epochs"], 1) if e["log_evidence"] is not None]
        above.plot([k for k, _ in updates], [e["log_evidence"] / rows for _, e in updates], "o-", color=BLUE, ms=4)
        above.set(title=TITLES[name], xlim=(0.5, len(history["epochs"]) + 0.5))
        draw_precisions(below, [epoch["precision"] for epoch in history["epochs"]])
        below.axhline(part["precision"], color="black", ls="--", lw=1)
        below.set(xlabel="epoch", yscale="log", xlim=(0.5, len(history["epochs"]) + 0.5))
        below.legend(fontsize=6, frameon=False, ncols=2, loc="best")
        for axis in (above, below):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if column == 0:
            above.set_ylabel("log evidence per row")
            below.set_ylabel("prior precision")
    figure.save(folder / "evidence-training.png", dpi=110)


def draw_precisions(axis: Any, history: list[list[float]]) -> None:
    """Draw the precisions `[epoch][layer]`: of more than five layers the first, the last and the range of all."""
    layers, x = len(history[0]), range(1, len(history) + 1)
    few = layers <= MOST_CURVES
    for place, layer in enumerate(range(layers) if few else (0, layers - 1)):
        values = [precisions[layer] for precisions in history]
        axis.plot(x, values, color=COLOURS[place], lw=1.4, label=f"layer {layer + 1}")
    if not few:
        low, high = [min(precisions) for precisions in history], [max(precisions) for precisions in history]
        axis.fill_between(x, low, high, color="#dddddd", lw=0, label=f"all {layers} layers")


STUDY = Study("evidence-training", Path(__file__).with_suffix(".md"), measure, values, draw)

"""`evidence-training`: weight decay by validation against prior precisions by the evidence while training.

An MLP and a CNN on MNIST and Fashion-MNIST (Immer et al. 2021, as the tutorial quotes it). Cross-validation trains one
network per weight decay and keeps the best on validation rows; `mq.evidence.train` trains one network and updates one
precision per layer from training rows alone. Temperature scaling and a deep ensemble of the validated network beside.
Further seeds train the first two again, with the weight decay that the first seed chose; networks whose updates begin
later are also trained with updates from the first epoch on.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from torch import nn

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure
from marquis_experiments.common.images import ImageData, ensemble_probs, fitted_temperature, logits
from marquis_experiments.common.metrics import with_error_of_nll
from marquis_experiments.common.page import Mean, verdict
from marquis_experiments.common.study import Run, Study
from marquis_experiments.linearised_laplace.classifiers import (
    Case,
    cases,
    ensemble,
    trained_map,
    validated,
    with_evidence,
)

LABELS = {
    "validated": "weight decay by validation",
    "evidence": "precisions by evidence",
    "early": "the same, updates from the first epoch",
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
    """Train and score every case, the first seed of all before the others; networks are shared with other studies."""
    made = cases(run.size)
    data = {case.name: case.load(run.data_dir, or_digits=run.size == "quick") for case in made.values()}
    studies = [first_seed(run, case, data[case.name]) for case in made.values()]
    seeds = []
    for seed in range(run.settings.seeds):
        for study in studies:
            case = made[study["name"]]
            repeated = ["validated", "evidence"] if seed else []
            early = ["early"] if (case.burn_in, case.every) != (1, 1) else []
            for method in repeated + early:
                seeds.append(one_training(run, case, data[case.name], study["precision"], method, seed))
    return {"settings": run.settings.plain(), "planned": list(made), "studies": studies, "seeds": seeds}


def first_seed(run: Run, case: Case, data: ImageData) -> dict[str, Any]:
    """Return all rows of one network on one data set."""

    def compute() -> dict[str, Any]:
        test, held_out = data.test, data.validation
        chosen = validated(run.shared, data, case, run.say)
        network, history = with_evidence(run.shared, data, case)
        members = ensemble(run.shared, data, case, chosen.precision, run.say)
        outputs = logits(chosen.network, test.x)
        temperature = fitted_temperature(logits(chosen.network, held_out.x), held_out.y)
        rows = {
            "validated": with_error_of_nll(outputs.softmax(1), test.y),
            "evidence": with_error_of_nll(logits(network, test.x).softmax(1), test.y),
            "temperature": with_error_of_nll((outputs / temperature).softmax(1), test.y),
            "ensemble": with_error_of_nll(ensemble_probs(members, test.x), test.y),
        }
        run.say(f"{case.name}: log-likelihood {-rows['validated']['nll']:.4f} -> {-rows['evidence']['nll']:.4f}")
        return {
            "data": data.name,
            "weights": sum(weight.numel() for weight in network.parameters()),
            "grid": chosen.grid,
            "precision": chosen.precision,
            "temperature": temperature,
            "evidence_validation": with_error_of_nll(logits(network, held_out.x).softmax(1), held_out.y),
            "history": {key: history[key] for key in ("epoch", "groups", "precision", "epochs")},
            "rows": rows,
        }

    return run.cell(case.name, {"name": case.name, "study": asdict(case)}, compute, "studies")


def one_training(run: Run, case: Case, data: ImageData, precision: float, method: str, seed: int) -> dict[str, Any]:
    """Return the scores of one network: "validated" has the weight decay given, "early" updates in every epoch."""
    if method == "early":
        case = replace(case, burn_in=1, every=1)
    described = {"name": case.name, "study": asdict(case), "method": method, "seed": seed}
    described |= {"precision": precision} if method == "validated" else {}

    def network() -> tuple[nn.Module, dict[str, Any]]:
        if method == "validated":
            return trained_map(run.shared, case.kind, data, precision, case.recipe, seed, case.shape), {}
        made, history = with_evidence(run.shared, data, case, seed, f"-{method}-s{seed}")
        return made, {"epoch": history["epoch"], "precisions": history["precision"]}

    def compute() -> dict[str, Any]:
        made, chosen = network()
        scores = {
            name: with_error_of_nll(logits(made, part.x).softmax(1), part.y)
            for name, part in (("test", data.test), ("validation", data.validation))
        }
        run.say(f"{case.name}, {method}, seed {seed}: log-likelihood {-scores['test']['nll']:.4f}")
        return {"data": data.name, **scores, **chosen}

    return run.cell(f"{case.name}-{method}-s{seed}", described, compute, "seeds")


# --- page --------------------------------------------------------------------------------------------------


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables; evidence must be better than validation and reach the tutorial's figures."""
    done = {TITLES[part["name"]]: part for part in results["studies"]}
    gains, early, within, reached, methods = {}, {}, 0, 0, {}
    for title, part in done.items():
        rows, paper = by_seed(part, results["seeds"]), PAPER[part["name"]]
        error = max(rows[way][0]["nll_error"] for way in ("validated", "evidence"))
        gains[title] = paired(rows, "evidence")
        within += abs(mean(gains[title])) < error
        if rows["early"]:
            early[title] = paired(rows, "early")
        accuracy, log_likelihood = paper["evidence"]
        best = {key: mean(row[key] for row in rows["evidence"].values()) for key in ("accuracy", "nll")}
        reached += 100 * best["accuracy"] >= accuracy and -best["nll"] >= log_likelihood
        for method, label in LABELS.items():
            if rows[method]:
                key = f"{title}: {label}"
                methods[key] = shown(rows[method])
                methods[key]["beside"] = "{:.2f} / {:.3f}".format(*paper[method]) if method in paper else ""
    trained = {len(seeds) for seeds in gains.values()}
    return {
        "methods": methods,
        "done": done,
        "gains": gains,
        "early": early,
        "counts": " to ".join(map(str, sorted({min(trained), max(trained)}))),
        "better": sum(mean(gain) > 0 for gain in gains.values()),
        "within": within,
        "reached": reached,
        "networks": len(done),
        "digits": any(part["data"] == "digits" for part in done.values()),
        "verdict": verdict(all(mean(gain) > 0 for gain in gains.values()), reached == len(done)),
    }


def by_seed(part: dict[str, Any], seeds: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, float]]]:
    """Return test scores of one network on one data set, by method and seed."""
    rows = {method: {0: part["rows"][method]} if method in part["rows"] else {} for method in LABELS}
    for row in seeds:
        if row["name"] == part["name"]:
            rows[row["method"]][row["seed"]] = row["test"]
    return rows


def paired(rows: dict[str, dict[int, dict[str, float]]], method: str) -> Mean:
    """Return by how much a method's log-likelihood is above that of weight decay by validation, seed by seed."""
    both = sorted(rows[method].keys() & rows["validated"].keys())
    return Mean(rows["validated"][seed]["nll"] - rows[method][seed]["nll"] for seed in both)


def shown(seeds: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Return the entries of a row of the table."""
    every = [*seeds.values()]
    return {
        "count": len(every),
        "percent": Mean(100 * row["accuracy"] for row in every),
        "log_likelihood": Mean(-row["nll"] for row in every),
        "nll_error": mean(row["nll_error"] for row in every),
        "ece": mean(row["ece"] for row in every),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw log evidence (above) and precisions (below) along the epochs, one column per network."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    columns = len(results["studies"])
    figure = Figure(2 * columns, columns, width=3.3, height=2.6)
    for column, part in enumerate(results["studies"]):
        above, below = figure.axes[column], figure.axes[columns + column]
        history, rows = part["history"], part["study"]["train"]
        updates = [(k, e) for k, e in enumerate(history["epochs"], 1) if e["log_evidence"] is not None]
        above.plot([k for k, _ in updates], [e["log_evidence"] / rows for _, e in updates], "o-", color=BLUE, ms=4)
        above.set(title=TITLES[part["name"]], xlim=(0.5, len(history["epochs"]) + 0.5))
        draw_precisions(below, [epoch["precision"] for epoch in history["epochs"]])
        below.axhline(part["precision"], color="black", ls="--", lw=1, label="by validation")
        below.set(xlabel="epoch", yscale="log", xlim=(0.5, len(history["epochs"]) + 0.5))
        below.legend(fontsize=6, frameon=False, ncols=2, loc="best")
        below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        below.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        below.yaxis.set_minor_locator(NullLocator())
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


# fmt: off
STUDY = Study(
    "evidence-training", Path(__file__).with_suffix(".md"), measure, values, draw,
    default={"seeds": 3}, quick={"seeds": 2},
)
# fmt: on

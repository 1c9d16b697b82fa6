"""Tables and the reliability diagrams of the page of `imputation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, GREY, Figure
from marquis_experiments.common.page import Row, judged, table, with_error
from marquis_experiments.laplacian_autoencoder.describe import failures, label, training
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import WEIGHTED

MAIN = "online-sketched"
PAPER = {
    "vae": (0.22, 0.18, 0.34, 0.19),
    "dropout": (0.45, 0.28, 0.38, 0.29),
    "ensemble": (0.53, 0.12, 0.20, 0.13),
    "posthoc-sketched": (0.51, 0.16, 0.27, 0.18),
    MAIN: (0.53, 0.12, 0.16, 0.13),
}
"""LAE Table 3: accuracy, ECE, MCE, RMSCE."""
SCORES = {"accuracy": "accuracy", "ece": "ECE", "mce": "MCE", "rmsce": "RMSCE"}
FIRST = {"published": ("accuracy", "ece", "mce", "rmsce"), "weighted": ("accuracy", "ece")}
"""Columns of the first table; the other scores are in the second."""
RIVALS = ("vae", "dropout", "posthoc-sketched")
"""Models of the paper's table that the online model is claimed to be better calibrated than; the ensemble is level."""
WAYS: dict[str, Callable[[Row], Row]] = {
    "published": lambda row: row["published"]["reconstructions"],
    "weighted": lambda row: row["weighted"]["first"],
}
"""Classification scores of a row, by procedure; all on the same test images."""
DRAWN = ("ae", "vae", "posthoc-sketched", MAIN)
"""Models of the reliability diagrams."""


def of(rows: list[Row], key: str) -> list[Row]:
    """Return the finished trainings of one model."""
    return [row for row in rows if row["key"] == key and not row["failed"]]


def average(rows: list[Row], key: str, way: str, score: str) -> float:
    """Compute the mean over trainings of a classification score."""
    return mean(WAYS[way](row)[score] for row in of(rows, key))


def reached(score: str, value: float) -> bool:
    """Return whether a score equals or improves on that of the paper's online model."""
    goal = PAPER[MAIN][list(SCORES).index(score)]
    return value >= goal if score == "accuracy" else value <= goal


def mce_by_chance(bins: Mapping[str, Any], draws: int = 2000) -> float:
    """Compute the expected MCE of a perfectly calibrated classifier with as many images in every bin.

    Each image is correct with the mean confidence of its bin; mean of the largest gap over seeded draws.
    """
    held = [(count, sure) for count, sure in zip(bins["count"], bins["confidence"], strict=True) if count]
    counts, sure = (np.array(values) for values in zip(*held, strict=True))
    right = np.random.default_rng(0).binomial(counts, np.clip(sure, 0, 1), (draws, len(counts))) / counts
    return float(np.abs(right - sure).max(1).mean())


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs; the claim is scored by the published procedure alone."""
    rows, settings, references = results["rows"], results["settings"], results["references"]
    keys = [key for key in settings["keys"] if of(rows, key)]
    ours = {way: {score: average(rows, MAIN, way, score) for score in SCORES} for way in WAYS}
    plain = {score: average(rows, "ae", "weighted", score) for score in SCORES}
    targets = {way: [reached(score, value) for score, value in one.items()] for way, one in ours.items()}
    rivals = [key for key in RIVALS if key in keys]
    calibrated = all(ours["published"]["ece"] < average(rows, key, "published", "ece") for key in rivals)
    simple = {name: one["accuracy"] for name, one in references.items() if "lower halves" in name or "nearest" in name}
    ways = {str(number): f"{number} round{'s' * (number != 1)}" for number in settings["rounds"]} | {WEIGHTED: "codes"}
    return {
        "training": training(settings["recipe"]),
        "ours": ours,
        "reached": {way: sum(one) for way, one in targets.items()},
        "rivals": ", ".join(f"{label(key)} {average(rows, key, 'published', 'ece'):.2f}" for key in rivals),
        "plain_reached": sum(reached(score, value) for score, value in plain.items()),
        **judged({**dict(zip(SCORES, targets["published"], strict=True)), "calibrated": calibrated}),
        "table": main_table(rows, keys),
        "simple": {"name": max(simple, key=lambda name: simple[name]), "accuracy": max(simple.values())},
        "best": max(average(rows, key, "weighted", "accuracy") for key in keys),
        "complete": references["classifier, complete image"]["accuracy"],
        "chance": mean(mce_by_chance(WAYS["weighted"](row)["bins"]) for row in of(rows, MAIN)),
        "option": next(option for option in settings["options"] if option["start"] == WEIGHTED),
        "details": details_table(results, keys, ways),
        "test_error": (0.25 / settings["test"]) ** 0.5,
        "failed": failures(rows),
    }


def main_table(rows: list[Row], keys: list[str]) -> str:
    """Return the published procedure, the paper's numbers in brackets, and importance weights on the same images."""
    body = []
    for key in keys:
        cells = []
        for way, scores in FIRST.items():
            for place, score in enumerate(scores):
                theirs = f" ({PAPER[key][place]:.2f})" if key in PAPER and way == "published" else ""
                cells.append(with_error([WAYS[way](row)[score] for row in of(rows, key)], 2) + theirs)
        body.append([label(key), *cells])
    return table(["model", *(f"{way}: {SCORES[score]}" for way, scores in FIRST.items() for score in scores)], body)


def details_table(results: dict[str, Any], keys: list[str], ways: Mapping[str, str]) -> str:
    """Return what limits the rows, and the entropy in bits of the classes of generated images."""
    body = []
    for key in keys:
        rows = of(results["rows"], key)
        cells = [with_error([row["complete"]["accuracy"] for row in rows], 2)]
        cells += [with_error([WAYS["weighted"](row)[score] for row in rows], 2) for score in ("mce", "rmsce")]
        cells.append((results["chosen"][key]["weighted"] or "–").rpartition(" ")[2])
        cells.append(f"{mean(row['weighted']['coverage'] for row in rows):.2f}")
        cells += [with_error([row["generated"][way]["entropy_bits"] for row in rows], 2) for way in ways]
        body.append([label(key), *cells])
    head = ["model", "accuracy, complete image", "weighted: MCE", "weighted: RMSCE", "exponent", "coverage, weighted"]
    return table([*head, *(f"entropy, {text}" for text in ways.values())], body)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw accuracy against confidence in bins, pooled over seeds; the area of a point is its share of the images."""
    keys = [key for key in DRAWN if of(results["rows"], key)]
    figure = Figure(len(keys), len(keys), 2.6, 2.7, share=True)
    for axis, key in zip(figure.axes, keys, strict=True):
        axis.plot([0, 1], [0, 1], color="black", lw=0.8, ls=":")
        for way, colour, style in zip(WAYS, (GREY, BLUE), ("--", "-"), strict=True):
            confidence, accuracy, share = pooled([WAYS[way](row)["bins"] for row in of(results["rows"], key)])
            axis.plot(confidence, accuracy, color=colour, ls=style, lw=1.3, label=way)
            axis.scatter(confidence, accuracy, s=[4 + 120 * value for value in share], color=colour)
        axis.set(xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axis.set_title(label(key), fontsize=9)
    figure.axes[0].set_ylabel("accuracy")
    figure.legend()
    figure.save(folder / "imputation-reliability.png")


def pooled(seeds: Sequence[dict[str, Any]]) -> tuple[list[float], list[float], list[float]]:
    """Compute confidence, accuracy and share of the images of every bin that has any, pooled over seeds."""
    total = sum(sum(bins["count"]) for bins in seeds)
    bins_of_all: tuple[list[float], list[float], list[float]] = ([], [], [])
    for place in range(len(seeds[0]["count"])):
        count = sum(bins["count"][place] for bins in seeds)
        if count:
            for values, name in zip(bins_of_all, ("confidence", "accuracy"), strict=False):
                values.append(sum(bins["count"][place] * (bins[name][place] or 0) for bins in seeds) / count)
            bins_of_all[2].append(count / total)
    return bins_of_all

"""Tables and the reliability diagrams of the page of `imputation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.common.page import table, verdict, with_error
from marquis_experiments.laplacian_autoencoder.describe import label, training, yes
from marquis_experiments.laplacian_autoencoder.table3_imputation.pictures import draw_reliability
from marquis_experiments.laplacian_autoencoder.table3_imputation.procedures import WEIGHTED

Row = dict[str, Any]
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
RIVALS = ("vae", "dropout", "posthoc-sketched")
"""Models of the paper's table that the online model is claimed to be better calibrated than; the ensemble is level."""
WAYS: dict[str, Callable[[Row], Row]] = {
    "published": lambda row: row["published"]["reconstructions"],
    "put back": lambda row: row["published"]["put_back"],
    "two stages": lambda row: row["own"]["put_back"],
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
    rows, settings = results["rows"], results["settings"]
    keys = [key for key in settings["keys"] if of(rows, key)]
    ours = {way: {score: average(rows, MAIN, way, score) for score in SCORES} for way in WAYS}
    plain = {way: {score: average(rows, "ae", way, score) for score in SCORES} for way in WAYS}
    targets = {way: [reached(score, value) for score, value in one.items()] for way, one in ours.items()}
    rivals = [key for key in RIVALS if key in keys]
    calibrated = all(ours["published"]["ece"] < average(rows, key, "published", "ece") for key in rivals)
    wide = [row["weighted"]["put_back"] for row in of(rows, MAIN)]
    simple = max(results["references"], key=lambda name: simple_accuracy(results["references"], name))
    return {
        "training": training(settings["recipe"]),
        "ours": ours,
        "plain": plain,
        "reached": {way: sum(one) for way, one in targets.items()},
        "plain_reached": sum(reached(score, value) for score, value in plain["weighted"].items()),
        "calibrated": yes(calibrated),
        "verdict": verdict(*targets["published"], calibrated),
        "table": main_table(results, keys),
        "simple": {"name": simple, "accuracy": results["references"][simple]["accuracy"]},
        "best": max(average(rows, key, "weighted", "accuracy") for key in keys),
        "complete": results["references"]["classifier, complete image"]["accuracy"],
        "chance": mean(mce_by_chance(WAYS["weighted"](row)["bins"]) for row in of(rows, MAIN)),
        "wide": {score: mean(one[score] for one in wide) for score in SCORES},
        "option": next(option for option in settings["options"] if option["start"] == WEIGHTED),
        "details": details_table(results, keys),
        "references": reference_table(results["references"]),
        "generation": generation_table(rows, keys, settings["rounds"]),
        "failed": "; ".join(f"{label(row['key'])}: {row['failed']}" for row in rows if row["failed"]),
    }


def simple_accuracy(references: Mapping[str, Row], name: str) -> float:
    """Return the accuracy of a method that sees the observed half and no autoencoder, else 0."""
    return references[name]["accuracy"] if "lower halves" in name or "nearest" in name else 0.0


def scored(rows: list[Row], key: str, way: str, score: str) -> str:
    """Return a score as mean ± standard error over trainings."""
    return with_error([WAYS[way](row)[score] for row in of(rows, key)], 2)


def main_table(results: dict[str, Any], keys: list[str]) -> str:
    """Return the published procedure, the paper's numbers in brackets, and importance weights on the same images."""
    rows, body = results["rows"], []
    for key in keys:
        cells = []
        for place, score in enumerate(SCORES):
            theirs = f" ({PAPER[key][place]:.2f})" if key in PAPER else ""
            cells.append(scored(rows, key, "published", score) + theirs)
        body.append([label(key), *cells, *(scored(rows, key, "weighted", score) for score in SCORES)])
    head = [f"published: {text}" for text in SCORES.values()] + [f"weighted: {text}" for text in SCORES.values()]
    return table(["model", *head], body)


def details_table(results: dict[str, Any], keys: list[str]) -> str:
    """Return what the other procedures give, and what limits the rows."""
    rows, body = results["rows"], []
    for key in keys:
        chosen = results["chosen"][key]
        complete = with_error([row["complete"]["accuracy"] for row in of(rows, key)], 2)
        pairs = [f"{average(rows, key, way, 'accuracy'):.2f} / {average(rows, key, way, 'ece'):.2f}" for way in
                 ("put back", "two stages")]  # fmt: skip
        several = [f"{mean(row[way]['put_back']['several_classes'] for row in of(rows, key)):.2f}" for way in
                   ("published", "weighted")]  # fmt: skip
        coverage = f"{mean(row['weighted']['coverage'] for row in of(rows, key)):.2f}"
        exponent = (chosen["weighted"] or "–").rpartition(" ")[2]
        body.append([label(key), complete, *pairs, chosen["own"] or "–", exponent, *several, coverage])
    head = ["model", "accuracy, complete image", "put back: accuracy / ECE", "chosen two stages: accuracy / ECE"]
    head += ["chosen", "exponent", "several classes, published", "several classes, weighted", "coverage, weighted"]
    return table(head, body)


def reference_table(references: Mapping[str, Row]) -> str:
    """Return the scores of methods without an autoencoder."""
    body = [[name, *(f"{one[score]:.3f}" for score in SCORES)] for name, one in references.items()]
    return table(["without an autoencoder", *SCORES.values()], body)


def generation_table(rows: list[Row], keys: list[str], rounds: list[int]) -> str:
    """Return the entropy of the classes of generated images, in bits."""
    ways = {str(number): f"{number} round{'s' * (number != 1)}" for number in rounds} | {WEIGHTED: "codes"}
    body = [
        [label(key), *(with_error([row["generated"][way]["entropy_bits"] for row in of(rows, key)], 2) for way in ways)]
        for key in keys
    ]
    return table(["model", *ways.values()], body)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw reliability diagrams of three procedures, all on the same test images."""
    rows = results["rows"]
    panels = {
        key: {way: [WAYS[way](row)["bins"] for row in of(rows, key)] for way in ("published", "two stages", "weighted")}
        for key in DRAWN
        if of(rows, key)
    }
    draw_reliability(folder / "imputation-reliability.png", panels)

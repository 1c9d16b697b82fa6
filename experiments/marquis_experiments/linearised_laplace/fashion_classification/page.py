"""Tables and figures of `fashion-classification`, from its results alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, LIGHT_BLUE, LIGHT_GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error_of_auroc
from marquis_experiments.common.page import Row, judged

LABELS = {
    "map": "MAP",
    "temperature": "MAP, temperature-scaled",
    "ensemble": "deep ensemble",
    "sampled": "sampled networks, prior by evidence",
    "sampled-grid": "sampled networks, prior by validation",
    "linearised": "linearised, prior by evidence, probit",
    "linearised-mc": "linearised, prior by evidence, Monte-Carlo",
    "linearised-grid": "linearised, prior and link by validation",
    "evidence-map": "trained with evidence: MAP",
    "evidence-linearised": "trained with evidence: linearised, probit",
    "evidence-linearised-mc": "trained with evidence: linearised, Monte-Carlo",
}
PAPER = {
    "map": "91.39 / 0.258 / 0.017 / 0.864",
    "sampled-grid": "84.42 / 0.942 / 0.411 / 0.945",
    "linearised-grid": "92.25 / 0.244 / 0.012 / 0.955",
}
"""The tutorial's table (its prior was tuned on validation data): accuracy in percent, NLL, ECE, AUROC."""
NLL, AUROC = 0.244, 0.955
"""The tutorial's linearised network."""
DRAWN = {
    "map": ("MAP", GREY),
    "sampled": ("sampled, evidence", ORANGE),
    "linearised": ("linearised, evidence, probit", BLUE),
    "linearised-grid": ("linearised, validation", LIGHT_BLUE),
    "ensemble": ("ensemble", GREEN),
}


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables and whether the tutorial's comparisons and figures are reached."""
    rows: dict[str, Row] = results["rows"]
    single = [name for name in rows if "linearised" in name]
    both = {
        key: [LABELS[name] for name in single if rows[name]["nll"] <= NLL and rows[name][key] >= AUROC]
        for key in ("auroc", "auroc_entropy")
    }
    point, sampled, linearised = rows["map"], rows["sampled-grid"], rows["linearised-grid"]
    grid = [row["precision"] for row in results["grid"]]
    return {
        "methods": {
            label: {
                **(row := rows[name]),
                "percent": 100 * row["accuracy"],
                "beside": PAPER.get(name, ""),
                "minus": {key: row[key] - point[key] for key in ("nll", "auroc")},
            }
            for name, label in LABELS.items()
        },
        "map": point,
        "sampled": sampled,
        "sampled_by_evidence": rows["sampled"],
        "linearised": linearised,
        "both": {key: ", ".join(names) or "none" for key, names in both.items()},
        "auroc_error": standard_error_of_auroc(
            min(row["auroc"] for row in rows.values()), results["settings"]["outside"]
        ),
        "edge": results["precision"] in (min(grid), max(grid)),
        "temperature": rows["temperature"]["temperature"],
        "multiples": {**linearised["validation"], "sampled": rows["sampled-grid"]["validation"]},
        "substitutes": results["data"] != "fashion-mnist" or results["outside_data"] != "mnist",
        **judged(
            {
                "nll": linearised["nll"] < point["nll"],
                "sampled": sampled["nll"] > point["nll"],
                "auroc": linearised["auroc"] > point["auroc"],
                "both": linearised["nll"] <= NLL and linearised["auroc_entropy"] >= AUROC,
            }
        ),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw reliability, ROC curves, and the confidence of MAP and the linearised network in and out of distribution."""
    rows: dict[str, Row] = results["rows"]
    figure = Figure(3, 3, width=4.0, height=3.5)
    calibration, roc, confidence = figure.axes
    calibration.plot([0, 1], [0, 1], color=LIGHT_GREY, lw=1)
    roc.plot([0, 1], [0, 1], color=LIGHT_GREY, lw=1)
    for name, (label, colour) in DRAWN.items():
        bins = rows[name]["reliability"]
        calibration.plot([b[0] for b in bins], [b[1] for b in bins], "o-", color=colour, ms=3, lw=1.3, label=label)
        points = rows[name]["roc"]
        at = [k / (len(points) - 1) for k in range(len(points))]
        roc.plot(at, points, color=colour, lw=1.5, label=f"{label}: {rows[name]['auroc']:.3f}")
        if name in ("map", "linearised"):
            for where, style in (("inside", "-"), ("outside", "--")):
                counts = rows[name][f"histogram_{where}"]
                shares = [100 * count / sum(counts) for count in counts]
                edges = [k / len(counts) for k in range(len(counts) + 1)]
                data = "Fashion" if where == "inside" else "MNIST"
                confidence.stairs(shares, edges, color=colour, ls=style, lw=1.4, label=f"{label.split(',')[0]}, {data}")
    whole = {"xlim": (0, 1), "ylim": (0, 1.01)}
    calibration.set(xlabel="confidence", ylabel="accuracy", title="Reliability, Fashion-MNIST", **whole)
    flagged = "share of {} flagged"
    roc.set(xlabel=flagged.format("Fashion-MNIST"), ylabel=flagged.format("MNIST"), title="ROC by probability", **whole)
    confidence.set(xlabel="maximum probability", ylabel="% of images (log)", title="Confidence", yscale="log")
    confidence.set(xlim=(0, 1), ylim=(0.05, 900))
    for axis, where in ((calibration, "lower right"), (roc, "lower right"), (confidence, "upper left")):
        axis.legend(fontsize=7, loc=where, frameon=False)
    figure.save(folder / "fashion-classification.png", dpi=110)

"""Tables and figures of `adapted-evidence`, from its results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import Mean, Row, verdict

POINT = ("MAP", "MAP, temperature")
NAIVE, ADAPTED, MOVED = "naive", "adapted", "adapted, Hessian at theta-star"
KINDS = ("single", "multiple")
WIDE = (*POINT, *(f"{way}, {kind}" for kind in KINDS for way in (NAIVE, ADAPTED)))
"""Columns of the table of wide networks."""
LIMIT = 0.99e8
"""Precisions from here on are at their upper limit."""


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables and for how many networks the naive evidence is worse by three standard errors."""
    rows, wide = by_network(results["rows"]), by_network(results.get("wide", []))

    def difference(seeds: list[Row], one: str, other: str) -> Mean:
        return Mean(nll(row, one) - nll(row, other) for row in seeds)

    worse = {k: [difference(seeds, f"naive, {k}", f"adapted, {k}") for seeds in rows.values()] for k in KINDS}
    against = {k: [mean(difference(seeds, f"adapted, {k}", "MAP")) for seeds in rows.values()] for k in KINDS}
    methods = [*POINT, *results["rows"][0]["tuned"]]
    return {
        "names": list(rows),
        "nll": {way: {"each": [Mean(nll(row, way) for row in seeds) for seeds in rows.values()]} for way in methods},
        "accuracies": [mean(row["point"]["MAP"]["accuracy"] for row in seeds) for seeds in rows.values()],
        "weights": [seeds[0]["weights"] for seeds in rows.values()],
        "differences": {
            name: {"each": [difference(seeds, f"naive, {k}", f"{a}, {k}") for k in KINDS for a in (ADAPTED, MOVED)]}
            for name, seeds in rows.items()
        },
        "against": {
            name: {"each": [difference(seeds, f"adapted, {k}", way) for k in KINDS for way in POINT]}
            for name, seeds in rows.items()
        },
        "groups": {
            f"{n}: {way}": groups(seeds[0], tuned)
            for n, seeds in rows.items()
            for way, tuned in seeds[0]["tuned"].items()
        },
        "gaps": [
            {**row, "gap": row["tuned"][ADAPTED]["log_evidence"] - row["tuned"][NAIVE]["log_evidence"]}
            for row in results["path"]
        ],
        "wide": {
            name: {
                "weights": seeds[0]["weights"],
                "seeds": len(seeds),
                "each": [Mean(nll(row, way) for row in seeds) for way in WIDE],
                "gains": [difference(seeds, f"naive, {k}", f"adapted, {k}") for k in KINDS],
            }
            for name, seeds in wide.items()
        },
        "wide_worse": {
            k: sum(mean(difference(s, f"naive, {k}", f"adapted, {k}")) > 0 for s in wide.values()) for k in KINDS
        },
        "moved": max(row["moved"] for row in results["scales"]),
        "spread": {
            way: {"percent": 100 * spread([row["tuned"][way]["variance"] for row in results["scales"]])}
            for way in results["scales"][0]["tuned"]
        },
        "networks": len(rows),
        "naive_worse": {kind: sum(map(clear, worse[kind])) for kind in KINDS},
        "laplace_worse": {kind: sum(value > 0 for value in against[kind]) for kind in KINDS},
        "minutes": sum(row["cpu_seconds"] for row in results["rows"]) / 60,
        "verdict": verdict(*(all(map(clear, worse[kind])) for kind in KINDS)),
    }


def by_network(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of every network, one per seed."""
    return {name: [row for row in rows if row["network"] == name] for name in dict.fromkeys(r["network"] for r in rows)}


def nll(row: Row, way: str) -> float:
    """Return the test NLL of the network itself or of a tuned posterior."""
    return (row["point"][way] if way in POINT else row["tuned"][way])["nll"]


def clear(differences: Sequence[float]) -> bool:
    """Return whether the mean is above three standard errors; one seed shows nothing."""
    return len(differences) > 1 and mean(differences) > 3 * standard_error(differences)


def spread(numbers: Sequence[float]) -> float:
    """Return the range relative to the first number."""
    return (max(numbers) - min(numbers)) / abs(numbers[0])


def groups(row: Row, tuned: dict[str, Any]) -> dict[str, Any]:
    """Return what was tuned, with the precisions below the limit and the number of groups at it."""
    free = [f"{g} {p:.2g}" for g, p in zip(tuned["groups"], tuned["precision"], strict=True) if p < LIMIT]
    shown = ", ".join(free[:6]) + (", ..." if len(free) > 6 else "")
    count = len(tuned["precision"])
    return {**tuned, "shown": shown, "limited": count - len(free), "count": count, "weights": row["weights"]}


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the evidences along training and against the scale of a normalised layer."""
    draw_path(folder / "adapted-evidence-training.png", results["path"])
    draw_scales(folder / "adapted-evidence-scale.png", results["scales"])


def draw_path(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw evidences above and test scores below, one column per network."""
    names = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(2 * len(names), len(names), width=4.2, height=2.8)
    for i, name in enumerate(names):
        seeds = [row for row in rows if row["network"] == name]
        epochs = [row["stopped"] for row in seeds]
        evidence, score = figure.axes[i], figure.axes[len(names) + i]
        for method, colour in ((NAIVE, ORANGE), (ADAPTED, BLUE)):
            evidence.plot(epochs, [row["tuned"][method]["log_evidence"] for row in seeds], "o-", color=colour, ms=4)
            score.plot(epochs, [row["tuned"][method]["nll"] for row in seeds], "o-", color=colour, ms=4, label=method)
        score.plot(epochs, [row["MAP"]["nll"] for row in seeds], "o:", color=GREY, ms=4, label="MAP")
        low = [row["tuned"][NAIVE]["log_evidence"] for row in seeds]
        high = [row["tuned"][ADAPTED]["log_evidence"] for row in seeds]
        evidence.fill_between(epochs, low, high, color=GREY, alpha=0.15, lw=0, label="gap")
        evidence.set_title(name, fontsize=10)
        for axis, label in ((evidence, "log evidence, maximised"), (score, "test NLL")):
            axis.set_xscale("log")
            axis.set_xticks(epochs, [str(e) for e in epochs])
            axis.minorticks_off()
            axis.set_ylabel(label)
        score.set_xlabel("epochs of training")
    figure.axes[0].legend(fontsize=8)
    figure.axes[len(names)].legend(fontsize=8)
    figure.save(path)


def draw_scales(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw evidence and variance against k for four ways of tuning."""
    figure = Figure(2, 2, width=4.4, height=3.2)
    ks = [row["k"] for row in rows]
    styles = {
        "naive, single": (ORANGE, "o-"),
        "naive, normalised": (ORANGE, "s--"),
        "adapted, single": (BLUE, "o-"),
        "adapted, normalised": (GREEN, "s--"),
    }
    for axis, quantity, label in zip(
        figure.axes,
        ("log_evidence", "variance"),
        ("log evidence, maximised", "mean variance of test logits"),
        strict=True,
    ):
        for way, (colour, style) in styles.items():
            axis.plot(ks, [row["tuned"][way][quantity] for row in rows], style, color=colour, ms=4, label=way)
        axis.set_xscale("log")
        axis.set_xticks(ks, [f"{k:g}" for k in ks])
        axis.minorticks_off()
        axis.set_xlabel("k, factor on one normalised layer")
        axis.set_ylabel(label)
    figure.axes[1].set_yscale("log")
    figure.axes[0].legend(fontsize=8)
    figure.save(path)

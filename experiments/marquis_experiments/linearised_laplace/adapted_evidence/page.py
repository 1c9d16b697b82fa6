"""Tables and figures of `adapted-evidence`, from its results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import formatted, table, verdict, with_error

POINT = ("MAP", "MAP, temperature")
NAIVE, ADAPTED, MOVED = "naive", "adapted", "adapted, Hessian at theta-star"
KINDS = ("single", "multiple")
LIMIT = 0.99e8
"""Precisions from here on are at their upper limit."""


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the page's tables and for how many networks the naive evidence is worse by three standard errors."""
    names = list(dict.fromkeys(row["network"] for row in results["rows"]))
    rows = {name: [row for row in results["rows"] if row["network"] == name] for name in names}

    def differences(name: str, one: str, other: str) -> list[float]:
        return [nll(row, one) - nll(row, other) for row in rows[name]]

    worse = {kind: [differences(name, f"{NAIVE}, {kind}", f"{ADAPTED}, {kind}") for name in names] for kind in KINDS}
    against = {kind: [mean(differences(name, f"{ADAPTED}, {kind}", "MAP")) for name in names] for kind in KINDS}
    return {
        "main": scores_table(results, rows),
        "differences": table(
            ["naive minus", *(f"{other}, {kind}" for kind in KINDS for other in (ADAPTED, MOVED))],
            [
                [name]
                + [
                    with_error(differences(name, f"{NAIVE}, {kind}", f"{other}, {kind}"))
                    for kind in KINDS
                    for other in (ADAPTED, MOVED)
                ]
                for name in names
            ],
        ),
        "against": table(
            ["difference of test NLL", *(f"adapted, {kind} - {way}" for kind in KINDS for way in POINT)],
            [
                [name, *(with_error(differences(name, f"{ADAPTED}, {kind}", way)) for kind in KINDS for way in POINT)]
                for name in names
            ],
        ),
        "groups": groups_table(rows),
        "scales": scale_table(results["scales"]),
        "gaps": table(
            ["adapted minus naive log evidence", "network", "epochs"],
            [[f"{gap(row['tuned']):.0f}", *formatted(row, "network", "stopped")] for row in results["path"]],
        ),
        "moved": max(row["moved"] for row in results["scales"]),
        "spread": {
            way.replace(", ", "_"): 100 * spread([row["tuned"][way]["variance"] for row in results["scales"]])
            for way in results["scales"][0]["tuned"]
        },
        "networks": len(names),
        "naive_worse": {kind: sum(map(clear, worse[kind])) for kind in KINDS},
        "laplace_worse": {kind: sum(value > 0 for value in against[kind]) for kind in KINDS},
        "minutes": sum(row["cpu_seconds"] for row in results["rows"]) / 60,
        "verdict": verdict(*(all(map(clear, worse[kind])) for kind in KINDS)),
    }


def nll(row: dict[str, Any], way: str) -> float:
    """Return the test NLL of the network itself or of a tuned posterior."""
    return (row["point"][way] if way in POINT else row["tuned"][way])["nll"]


def gap(tuned: dict[str, Any]) -> float:
    """Return how much larger the adapted evidence is than the naive one."""
    return tuned[ADAPTED]["log_evidence"] - tuned[NAIVE]["log_evidence"]


def clear(differences: Sequence[float]) -> bool:
    """Return whether the mean is above three standard errors; one seed shows nothing."""
    return len(differences) > 1 and mean(differences) > 3 * standard_error(differences)


def spread(numbers: Sequence[float]) -> float:
    """Return the range relative to the first number."""
    return (max(numbers) - min(numbers)) / abs(numbers[0])


def scores_table(results: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> str:
    """Return the test NLL of every method and network."""
    ensembles = {row["network"]: row for row in results["ensembles"]}
    members = results["settings"]["seeds"]
    lines = [[way, *(with_error([nll(row, way) for row in own]) for own in rows.values())] for way in POINT]
    lines.append([f"deep ensemble of {members}", *(f"{ensembles[name]['nll']:.3f}" for name in rows)])
    for way in results["rows"][0]["tuned"]:
        lines.append([way, *(with_error([nll(row, way) for row in own]) for own in rows.values())])
    accuracies = [mean(row["point"]["MAP"]["accuracy"] for row in own) for own in rows.values()]
    lines.append(["*accuracy of MAP*", *(f"{accuracy:.3f}" for accuracy in accuracies)])
    lines.append(["*weights*", *(own[0]["weights"] for own in rows.values())])
    return table(["test NLL", *rows], lines)


def groups_table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Return precisions, effective parameters and groups at the limit, for the first seed."""
    lines = []
    for name, own in rows.items():
        for way, tuned in own[0]["tuned"].items():
            free = [f"{g} {p:.2g}" for g, p in zip(tuned["groups"], tuned["precision"], strict=True) if p < LIMIT]
            steps = f"{tuned['alternations']}" + ("" if tuned["converged"] else " (not converged)")
            lines.append(
                [
                    f"{name}: {way}",
                    ", ".join(free[:6]) + (", ..." if len(free) > 6 else ""),
                    f"{len(tuned['precision']) - len(free)} of {len(tuned['precision'])}",
                    f"{tuned['effective']:.0f} of {own[0]['weights']}",
                    *formatted(tuned, "log_evidence:.0f", "variance:.3g"),
                    steps,
                ]
            )
    head = ["seed 0", "precisions", "at the limit", "effective", "log evidence", "variance of logits", "iterations"]
    return table(head, lines)


def scale_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return evidence, variance and NLL at every scale k."""
    ways = list(rows[0]["tuned"])
    lines = [
        [f"k = {row['k']:g}"]
        + [" / ".join(formatted(row["tuned"][way], "log_evidence:.1f", "variance:.3f", "nll:.3f")) for way in ways]
        for row in rows
    ]
    return table(["log evidence / variance of logits / test NLL", *ways], lines)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the evidences along training and against the scale of a normalised layer."""
    draw_path(folder / "adapted-evidence-training.png", results["path"])
    draw_scales(folder / "adapted-evidence-scale.png", results["scales"])


def draw_path(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw evidences above and test scores below, one column per network."""
    names = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(2 * len(names), len(names), width=4.2, height=2.8)
    for i, name in enumerate(names):
        own = [row for row in rows if row["network"] == name]
        epochs = [row["stopped"] for row in own]
        evidence, score = figure.axes[i], figure.axes[len(names) + i]
        for method, colour in ((NAIVE, ORANGE), (ADAPTED, BLUE)):
            evidence.plot(epochs, [row["tuned"][method]["log_evidence"] for row in own], "o-", color=colour, ms=4)
            score.plot(epochs, [row["tuned"][method]["nll"] for row in own], "o-", color=colour, ms=4, label=method)
        score.plot(epochs, [row["MAP"]["nll"] for row in own], "o:", color=GREY, ms=4, label="MAP")
        low = [row["tuned"][NAIVE]["log_evidence"] for row in own]
        high = [row["tuned"][ADAPTED]["log_evidence"] for row in own]
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

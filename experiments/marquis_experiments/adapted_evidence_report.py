"""The page of `adapted-evidence`: one table of test scores, differences with their errors, and two pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from marquis_experiments.adapted_evidence_words import (
    AGAINST_NOTE,
    CUT_NOTE,
    DIFFERENCES_NOTE,
    GROUPS_NOTE,
    INTRODUCTION,
    PATH_NOTE,
    SCALE_NOTE,
    SCORES_NOTE,
)
from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture, command, table, with_error, write_page

POINT = ("MAP", "MAP, temperature")
NAIVE, ADAPTED, MOVED = "naive", "adapted", "adapted, Hessian at theta-star"
LIMIT = 0.99e8
"""A precision from here on is at its upper limit."""


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """The page with what has run so far."""
    names = list(dict.fromkeys(row["network"] for row in results["rows"]))
    pieces = [INTRODUCTION.format(command=command("adapted-evidence", results["size"]), **sizes(results))]
    pieces += ["## Test scores", scores(results, names), SCORES_NOTE]
    pieces += ["## Naive against adapted", differences(results, names), DIFFERENCES_NOTE]
    pieces += ["## Against the network itself", against_point(results, names), AGAINST_NOTE]
    pieces += ["## What the precisions became", groups(results, names), GROUPS_NOTE]
    if results["path"]:
        draw_path(folder / "adapted-evidence-training.png", results["path"])
        pieces += ["## Along training", "![Evidence and test scores](adapted-evidence-training.png)"]
        pieces += [path_note(results["path"])]
    if len(results["scales"]) > 1:
        draw_scales(folder / "adapted-evidence-scale.png", results["scales"])
        pieces += ["## Scale of a normalised layer", "![Dependence on k](adapted-evidence-scale.png)"]
        pieces += [scale_table(results["scales"]), scale_note(results["scales"])]
    pieces += ["## What was cut", cut(results)]
    return write_page(folder / "adapted-evidence.md", pieces)


# --- tables --------------------------------------------------------------------------------------------------


def scores(results: dict[str, Any], names: Sequence[str]) -> str:
    """Test NLL of every way, per network."""
    rows = results["rows"]

    def of(name: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["network"] == name]

    lines = [[way, *(with_error([row["point"][way]["nll"] for row in of(name)]) for name in names)] for way in POINT]
    ensembles = {row["network"]: row for row in results["ensembles"]}
    if ensembles:
        members = next(iter(ensembles.values()))["members"]
        cells = [f"{ensembles[name]['nll']:.3f}" if name in ensembles else "" for name in names]
        lines.append([f"deep ensemble of {members}", *cells])
    for way in rows[0]["tuned"]:
        lines.append([way, *(with_error([row["tuned"][way]["nll"] for row in of(name)]) for name in names)])
    lines.append(["*accuracy of MAP*", *(f"{mean(r['point']['MAP']['accuracy'] for r in of(n)):.3f}" for n in names)])
    lines.append(["*weights*", *(of(name)[0]["weights"] for name in names)])
    return table(["test NLL", *names], lines)


def differences(results: dict[str, Any], names: Sequence[str]) -> str:
    """Naive minus adapted, paired by seed."""
    lines = []
    for name in names:
        rows = [row["tuned"] for row in results["rows"] if row["network"] == name]
        for kind in ("single", "multiple"):
            for other in (ADAPTED, MOVED):
                each = [row[f"{NAIVE}, {kind}"]["nll"] - row[f"{other}, {kind}"]["nll"] for row in rows]
                lines.append([f"{name}, {kind}: naive - {other}", with_error(each), verdict(each)])
    return table(["difference of test NLL", "value", "naive worse by three standard errors"], lines)


def verdict(differences: Sequence[float]) -> str:
    """Whether the mean is above three standard errors, in words that claim no more than the numbers do."""
    if len(differences) < 2:
        return "one seed only"
    error = stdev(differences) / len(differences) ** 0.5
    if mean(differences) > 3 * error:
        return "yes"
    if mean(differences) < -3 * error:
        return "no: better by as much"
    return f"no ({mean(differences) / error:.1f} standard errors)" if error > 0 else "no"


def against_point(results: dict[str, Any], names: Sequence[str]) -> str:
    """Adapted evidence minus the network's own prediction, paired by seed."""
    lines = []
    for name in names:
        rows = [row for row in results["rows"] if row["network"] == name]
        cells = []
        for kind in ("single", "multiple"):
            for way in POINT:
                each = [row["tuned"][f"{ADAPTED}, {kind}"]["nll"] - row["point"][way]["nll"] for row in rows]
                cells.append(with_error(each))
        lines.append([name, *cells])
    head = [f"adapted, {kind} - {way}" for kind in ("single", "multiple") for way in POINT]
    return table(["difference of test NLL", *head], lines)


def groups(results: dict[str, Any], names: Sequence[str]) -> str:
    """Single precision, effective parameters, and which groups the evidence sent to the limit; first seed."""
    lines = []
    for name in names:
        row = next(row for row in results["rows"] if row["network"] == name)
        for way, found in row["tuned"].items():
            free = [f"{g} {p:.2g}" for g, p in zip(found["groups"], found["precision"], strict=True) if p < LIMIT]
            pinned = len(found["precision"]) - len(free)
            shown = ", ".join(free[:6]) + (", ..." if len(free) > 6 else "")
            steps = f"{found['alternations']}" + ("" if found["converged"] else " (not converged)")
            lines.append(
                [
                    f"{name}: {way}",
                    shown,
                    f"{pinned} of {len(found['precision'])}",
                    f"{found['effective']:.0f} of {row['weights']}",
                    f"{found['log_evidence']:.0f}",
                    f"{found['variance']:.3g}",
                    steps,
                    f"{found['tune_seconds']:.1f}",
                ]
            )
    head = [
        "seed 0",
        "precisions",
        "at the limit",
        "effective",
        "log evidence",
        "variance of logits",
        "iterations",
        "CPU s",
    ]
    return table(head, lines)


def scale_table(rows: Sequence[dict[str, Any]]) -> str:
    """Every quantity at every k."""
    ways = list(rows[0]["tuned"])
    lines = []
    for row in rows:
        found = row["tuned"]
        cells = [f"{found[w]['log_evidence']:.1f} / {found[w]['variance']:.3f} / {found[w]['nll']:.3f}" for w in ways]
        lines.append([f"k = {row['k']:g}", *cells])
    return table(["log evidence / variance of logits / test NLL", *ways], lines)


# --- pictures ------------------------------------------------------------------------------------------------


def draw_path(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Evidences above, test scores below, one column per network."""
    names = list(dict.fromkeys(row["network"] for row in rows))
    picture = Picture(2 * len(names), len(names), width=4.2, height=2.8)
    for i, name in enumerate(names):
        mine = [row for row in rows if row["network"] == name]
        epochs = [row["stopped"] for row in mine]
        evidence, score = picture.axes[i], picture.axes[len(names) + i]
        for method, colour in ((NAIVE, ORANGE), (ADAPTED, BLUE)):
            evidence.plot(epochs, [row["tuned"][method]["log_evidence"] for row in mine], "o-", color=colour, ms=4)
            score.plot(epochs, [row["tuned"][method]["nll"] for row in mine], "o-", color=colour, ms=4, label=method)
        score.plot(epochs, [row["MAP"]["nll"] for row in mine], "o:", color=GREY, ms=4, label="MAP")
        low = [row["tuned"][NAIVE]["log_evidence"] for row in mine]
        high = [row["tuned"][ADAPTED]["log_evidence"] for row in mine]
        evidence.fill_between(epochs, low, high, color=GREY, alpha=0.15, lw=0, label="gap")
        evidence.set_title(name, fontsize=10)
        for axis, label in ((evidence, "log evidence, maximised"), (score, "test NLL")):
            axis.set_xscale("log")
            axis.set_xticks(epochs, [str(e) for e in epochs])
            axis.minorticks_off()
            axis.set_ylabel(label)
        score.set_xlabel("epochs of training")
    picture.axes[0].legend(fontsize=8)
    picture.axes[len(names)].legend(fontsize=8)
    picture.save(path)


def draw_scales(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Evidence and variance against k for four ways of tuning."""
    picture = Picture(2, 2, width=4.4, height=3.2)
    ks = [row["k"] for row in rows]
    styles = {
        "naive, single": (ORANGE, "o-"),
        "naive, normalised": (ORANGE, "s--"),
        "adapted, single": (BLUE, "o-"),
        "adapted, normalised": (GREEN, "s--"),
    }
    for axis, quantity, label in zip(
        picture.axes,
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
    picture.axes[1].set_yscale("log")
    picture.axes[0].legend(fontsize=8)
    picture.save(path)


# --- words ---------------------------------------------------------------------------------------------------


def sizes(results: dict[str, Any]) -> dict[str, Any]:
    """Numbers for the introduction."""
    settings = results["settings"]
    seeds = len({row["seed"] for row in results["rows"]})
    recipe = settings["recipe"]
    return {
        "data": {"mnist": "MNIST"}.get(results["data"], results["data"]),
        "train": settings["train"],
        "test": settings["test"],
        "epochs": recipe["epochs"],
        "batch": recipe["batch"],
        "seeds": seeds,
    }


def path_note(rows: Sequence[dict[str, Any]]) -> str:
    """How the gap between the two evidences changes along training, measured."""
    parts = []
    for name in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == name]
        gaps = [row["tuned"][ADAPTED]["log_evidence"] - row["tuned"][NAIVE]["log_evidence"] for row in mine]
        shown = ", ".join(f"{gap:.0f}" for gap in gaps)
        parts.append(f"{name} {shown} after {', '.join(str(row['stopped']) for row in mine)} epochs")
    return f"{PATH_NOTE.strip()} Gaps in nats: {'; '.join(parts)}."


def scale_note(rows: Sequence[dict[str, Any]]) -> str:
    """What is constant in k, measured."""

    def spread(way: str, quantity: str) -> float:
        values = [row["tuned"][way][quantity] for row in rows]
        return (max(values) - min(values)) / abs(values[0])

    changes = [f"{way} {100 * spread(way, 'variance'):.2g} %" for way in rows[0]["tuned"]]
    return SCALE_NOTE.format(moved=max(row["moved"] for row in rows), changes=", ".join(changes))


def cut(results: dict[str, Any]) -> str:
    """What was planned and what has run."""
    settings = results["settings"]
    planned = len(settings["networks"]) * settings["seeds"]
    minutes = sum(row["cpu_seconds"] for row in results["rows"]) / 60
    counts = {"done": len(results["rows"]), "path": len(results["path"]), "scales": len(results["scales"])}
    return CUT_NOTE.format(planned=planned, minutes=minutes, **counts)

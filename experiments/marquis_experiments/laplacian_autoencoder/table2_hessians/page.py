"""Tables and the chart of the page of `hessians`, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.page import table, verdict
from marquis_experiments.laplacian_autoencoder.describe import label, training, yes

Row = dict[str, Any]

PAPER = {
    "posthoc-kronecker": (9683.9, 121.6),
    "posthoc-exact": (283.3, 27.1),
    "posthoc-approximate": (232.0, 26.6),
    "online-exact": (25.8, 25.7),
    "online-approximate": (25.9, 25.8),
}
"""LAE Table 2: "-log p" and MSE. Its last "-log p" is misprinted ("256.9+04")."""
MAIN = (
    *("ae", "posthoc-kronecker-unit-noise", "posthoc-exact-unit-noise", "posthoc-approximate-unit-noise"),
    *("posthoc-kronecker", "posthoc-exact", "online-exact", "online-approximate", "online-sketched"),
    *("online-exact-paper-code", "online-exact-paper"),
)
"""Rows of the first table; the others are below "Details"."""
COLOURS = {"ae": GREY, "posthoc": ORANGE, "online": BLUE}
CLOSE = 0.02
"""The online claim holds if sampled networks are at most this share worse than their mean."""


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs."""
    rows, settings = results["rows"], results["settings"]
    names = list(dict.fromkeys(row["name"] for row in rows if not row["failed"]))
    paper = PAPER if settings["recipe"]["data"] == "mnist" else {}  # other data do not compare
    posthoc, online, sketched, plain = (
        averages(rows, name) for name in ("posthoc-exact-unit-noise", "online-exact", "online-sketched", "ae")
    )
    gap = posthoc["nlp"] > 2 * posthoc["mse"]
    closed = online["nlp"] < (1 + CLOSE) * online["mse"]
    level = bool(paper) and online["nlp"] <= PAPER["online-exact"][0] + 0.2
    planned = {tuple(job) for job in results["planned"]} - {(row["name"], row["seed"]) for row in rows}
    return {
        "training": training(settings["recipe"]),
        "posthoc": posthoc,
        "learnt": averages(rows, "posthoc-exact"),
        "online": online,
        "sketched": sketched,
        "plain": plain,
        "verdict": verdict(gap, closed, level),
        "holds": {"gap": yes(gap), "closed": yes(closed), "level": yes(level)},
        "table": first_table(rows, [name for name in MAIN if name in names], paper),
        "densities": density_table(rows, names),
        "failed": "; ".join(f"{label(row['name'])}: {row['failed']}" for row in rows if row["failed"]),
        "missing": ", ".join(f"{label(name)} (seed {seed})" for name, seed in sorted(planned)),
        "minutes": (sum(row["train_seconds"] + row.get("evaluation_seconds", 0) for row in rows)) / 60,
    }


def averages(rows: list[Row], name: str) -> dict[str, float]:
    """Return the means over seeds of a row's numbers."""
    chosen = [row for row in rows if row["name"] == name and not row["failed"]]
    return {key: mean(row[key] for row in chosen) for key in ("nlp", "mse", "variance", "log_p_refitted")}


def shown(rows: list[Row], name: str, key: str, digits: int = 1) -> str:
    """Return mean ± standard deviation over seeds."""
    numbers = [row[key] for row in rows if row["name"] == name and not row["failed"]]
    digits = 0 if abs(mean(numbers)) >= 1000 else digits
    return f"{mean(numbers):,.{digits}f}" + (f" ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else "")


def first_table(rows: list[Row], names: list[str], paper: Mapping[str, tuple[float, float]]) -> str:
    """Return the errors of sampled networks and of their mean, with the paper's beside."""
    lines = []
    for name in names:
        base = name.removesuffix("-unit-noise").removesuffix("-code").removesuffix("-paper")
        theirs = "{:,g} / {:,g}".format(*paper[base]) if base in paper else ""
        variance = f"{averages(rows, name)['variance']:,.3g}"
        seeds = sum(row["name"] == name for row in rows)
        lines.append([row_label(name), seeds, shown(rows, name, "nlp"), shown(rows, name, "mse"), variance, theirs])
    head = ["model", "seeds", 'sampled networks ("-log p")', "their mean (MSE)", "variance", "paper: -log p / MSE"]
    return table(head, lines)


def row_label(name: str) -> str:
    """Return the label of a row; that of a post-hoc row says which noise it has."""
    noise = ", noise learnt" if name.startswith("posthoc") and not name.endswith("-unit-noise") else ""
    return label(name) + noise


def density_table(rows: list[Row], names: list[str]) -> str:
    """Return normalised log densities, noise, temperature and cost of every row."""
    lines = []
    for name in names:
        first = next(row for row in rows if row["name"] == name and not row["failed"])
        numbers = [first["noise_precision"], first["temperature"], first["prior_precision"], first["train_seconds"]]
        cells = ["" if number is None else f"{number:.3g}" for number in numbers]
        lines.append([row_label(name), *(shown(rows, name, key) for key in ("nlp", "log_p", "log_p_refitted")), *cells])
    return table(["model", "sampled", "log p(x)", "β refitted", "β", "T", "prior", "CPU s"], lines)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the errors of the main rows on a logarithmic axis, the paper's as diamonds."""
    rows = results["rows"]
    names = [name for name in MAIN if any(row["name"] == name and not row["failed"] for row in rows)]
    paper = PAPER if results["settings"]["recipe"]["data"] == "mnist" else {}
    figure = Figure(1, 1, 8.2, 0.9 + 0.32 * len(names))
    (axis,) = figure.axes
    for place, name in enumerate(reversed(names)):
        found, colour = averages(rows, name), COLOURS[name.partition("-")[0]]
        axis.plot([found["mse"], found["nlp"]], [place, place], color=colour, lw=1.2, alpha=0.6)
        axis.plot([found["mse"]], [place], "o", mfc="white", mec=colour, ms=7, label=None if place else "mean (MSE)")
        axis.plot([found["nlp"]], [place], "o", color=colour, ms=5, label=None if place else "sampled networks")
        known = paper.get(name.removesuffix("-unit-noise").removesuffix("-code").removesuffix("-paper"))
        if known is not None:
            axis.plot([known[1]], [place], "D", mfc="none", mec=GREEN, ms=5)
            axis.plot([known[0]], [place], "D", color=GREEN, ms=4)
    if paper:
        axis.plot([], [], "D", color=GREEN, ms=4, label="paper: -log p")
        axis.plot([], [], "D", mfc="none", mec=GREEN, ms=5, label="paper: MSE")
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000) if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set_yticks(range(len(names)), [row_label(name) for name in reversed(names)], fontsize=8)
    axis.set_xlabel("squared error per image (logarithmic)", fontsize=8)
    axis.grid(axis="x", color="#dddddd", lw=0.6)
    figure.figure.legend(fontsize=8, loc="outside upper center", ncols=4, frameon=False)
    figure.save(folder / "hessians.png")

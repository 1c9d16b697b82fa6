"""Tables and figures of `toy-regression`, from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure, band
from marquis_experiments.common.page import judged

PLACES = (1.0, 0.0, 2.8)
"""Inputs at, between and away from the data."""
SAMPLING = {"linearised": "linearised functions", "sampled": "networks with sampled weights"}


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables and which of the tutorial's claims hold."""
    sizes, depths, sampling = results["sizes"]["rows"], results["depths"], results["sampling"]
    structures = {name: with_std(results["structures"][name]) for name in ("kronecker", "diagonal", "full")}
    precisions = {name: with_std(part) for name, part in results["precisions"].items() if is_curve(part)}
    regularised = results["regularised"]["rows"]
    better = sum(row["test_with"] < row["test_without"] for row in regularised)
    at, between, away = structures["full"]["std"]
    widths = [part["std"][1] for part in precisions.values()]
    subnetworks = {name: results[f"subnetwork-{name}"] for name in ("tanh", "relu")}
    cases = {
        name: {key: of_case(case, part) for key, case in part["cases"].items()} for name, part in subnetworks.items()
    }
    claims = {
        "bars": between > at and away > at,
        "structures": structures["full"]["log_evidence"]
        > structures["kronecker"]["log_evidence"]
        > structures["diagonal"]["log_evidence"],
        "precisions": widths == sorted(widths),
        "regularised": better == len(regularised),
        "sizes": sizes[-1]["effective"] <= 1.1 * max(row["effective"] for row in sizes[:-1]),
        "sampling": sampling["linearised"]["log_likelihood"] > sampling["sampled"]["log_likelihood"],
        "subnetwork": all(
            each["full, 3% by SWAG"]["ratio"] > each["diagonal, all weights"]["ratio"] for each in cases.values()
        ),
    }
    return {
        **judged(claims),
        "curves": structures,
        "swept": precisions,
        "best_precision": max(precisions, key=lambda name: precisions[name]["log_evidence"]),
        "rmse": {key: mean(row[key] for row in regularised) for key in regularised[0]},
        "better": better,
        "datasets": len(regularised),
        "widest": sizes[-1],
        "networks": {
            name: {**part, "std": list(part["regions"].values())} for name, part in depths.items() if " x " in name
        },
        "cases": cases,
        "swag": {name: each["full, 3% by SWAG"]["ratio"] for name, each in cases.items()},
        "diagonal": {name: each["diagonal, all weights"]["ratio"] for name, each in cases.items()},
        "ranks": {
            name: {
                "prior": part["ranks"]["at the prior"],
                "influence": part["ranks"]["influence"],
                "swag": part["ranks"]["swag"],
                "chosen": part["cases"]["full, 3% by Laplace variance"]["influence"],
            }
            for name, part in subnetworks.items()
        },
    }


def is_curve(part: Any) -> bool:
    """Return whether a part of a cell is a curve with error bars, not settings or data."""
    return isinstance(part, dict) and "sd" in part


def with_std(curve: dict[str, Any]) -> dict[str, Any]:
    """Return a curve with the standard deviations of the function at `PLACES`."""
    return {**curve, "std": [float(np.interp(x, curve["x"], curve["sd"])) for x in PLACES]}


def of_case(case: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return a posterior over a part of the network: how much of the standard deviation between the data it keeps."""
    at, between, _ = std = list(case["regions"].values())
    whole = part["cases"]["full, all weights"]["regions"]["between"]
    return {**case, "std": std, "kept": between / whole, "ratio": between / at if at > 1e-6 else float("nan")}


# --- figures -----------------------------------------------------------------------------------------------


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw all figures of the page."""
    bands(folder, "structures", results["structures"], {n: n for n in ("kronecker", "diagonal", "full")}, 3, 4.0)
    part = results["precisions"]
    swept = {n: f"prior precision {n}" for n in part if is_curve(part[n])}
    bands(folder, "precisions", part, swept, 4, 4.0, width=2.7)
    depths = results["depths"]
    bands(folder, "depths", depths, {n: n for n in depths if n.startswith(("1 x", "2 x"))}, 2, 5.0, width=3.6)
    for name in ("tanh", "relu"):
        part = results[f"subnetwork-{name}"]
        cases = {"data": part["data"], **part["cases"]}
        named = {case: case for case in part["cases"]}
        bands(folder, f"subnetwork-{name}", cases, named, 4, 4.0, width=2.9, height=2.5, dpi=80)
    draw_regularised(folder, results["regularised"])
    draw_sizes(folder, results["sizes"]["rows"])
    draw_sampling(folder, results["sampling"])


def bands(
    folder: Path,
    name: str,
    part: dict[str, Any],
    titles: dict[str, str],
    columns: int,
    limit: float,
    width: float = 3.2,
    height: float = 2.6,
    dpi: int = 100,
) -> None:
    """Draw one panel of error bars per posterior."""
    figure = Figure(len(titles), columns, width, height, share=True)
    for axis, (key, title) in zip(figure.axes, titles.items(), strict=True):
        draw_band(axis, part[key], part["data"], title)
        axis.set_ylim(-limit, limit)
    figure.save(folder / f"toy-regression-{name}.png", dpi)


def draw_band(axis: Any, curve: dict[str, Any], data: dict[str, Any], title: str) -> None:
    """Draw error bars and the data."""
    x, centre, std = (np.array(curve[key]) for key in ("x", "mean", "sd"))
    band(axis, x, centre, std, curve["noise"])
    axis.plot(data["x"], data["y"], ".", color="k", ms=3)
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=7)


def draw_regularised(folder: Path, part: dict[str, Any]) -> None:
    """Draw the 1-6-1 network without and with evidence."""
    figure = Figure(2, 2, 3.6, share=True)
    without, tuned = figure.axes
    without.plot(part["with"]["x"], part["without"], color=ORANGE)
    without.plot(part["data"]["x"], part["data"]["y"], ".", color="k", ms=5)
    without.set_title("without regularisation", fontsize=9)
    without.tick_params(labelsize=7)
    draw_band(tuned, part["with"], part["data"], "prior and noise by evidence")
    x = np.array(part["with"]["x"])
    for axis in (without, tuned):
        axis.plot(x, np.sin(np.pi * x), "--", color=GREY, lw=1)
        axis.set_ylim(-2.2, 2.2)
    figure.save(folder / "toy-regression-1-6-1.png")


def draw_sizes(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Draw effective parameters and evidence against the number of hidden units."""
    figure = Figure(2, 2, 3.6)
    left, right = figure.axes
    widths = [row["width"] for row in rows]
    left.plot(widths, [row["weights"] for row in rows], "--", color=GREY, label="weights")
    left.plot(widths, [row["effective"] for row in rows], "o-", color=BLUE, label="effective parameters")
    left.set(xscale="log", yscale="log", xlabel="hidden units")
    left.legend(fontsize=8)
    right.plot(widths, [row["log_evidence"] for row in rows], "o-", color=BLUE)
    right.set(xscale="log", xlabel="hidden units", ylabel="log evidence")
    figure.save(folder / "toy-regression-sizes.png")


def draw_sampling(folder: Path, part: dict[str, Any]) -> None:
    """Draw linearised functions and networks with sampled weights."""
    figure = Figure(2, 2, 3.6, share=True)
    for axis, (name, title) in zip(figure.axes, SAMPLING.items(), strict=True):
        for function in part[name]["draws"]:
            axis.plot(part["x"], function, color=BLUE, lw=0.6, alpha=0.5)
        axis.plot(part["x"], part[name]["mean"], color=ORANGE, lw=1.8, label="average")
        axis.plot(part["x"], part["map"], color="k", lw=1.2, ls="--", label="MAP")
        axis.plot(part["data"]["x"], part["data"]["y"], ".", color="k", ms=3)
        axis.set_ylim(-6, 6)
        axis.set_title(title, fontsize=9)
    figure.axes[0].legend(fontsize=7, loc="lower right")
    figure.save(folder / "toy-regression-sampling.png")

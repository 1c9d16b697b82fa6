"""Tables and figures of `toy-regression`, from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, ORANGE, Figure, band
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
    at, between, far = structures["full"]["std"]
    evidence = [part["log_evidence"] for part in structures.values()]
    widths = [part["std"][1] for part in precisions.values()]
    subnetworks = {name: results[f"subnetwork-{name}"] for name in ("tanh", "relu")}
    cases = {
        name: {key: of_case(case, part) for key, case in part["cases"].items()} for name, part in subnetworks.items()
    }
    claims = {
        "bars": between > at and far > at,
        "structures": evidence[2] > evidence[0] > evidence[1],
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
                **part["ranks"],
                "prior": part["ranks"]["at the prior"],
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
    structures = {name: results["structures"][name] for name in ("kronecker", "diagonal", "full")}
    bands(folder, "structures", structures, results["structures"]["data"], 3, 3.2)
    precisions = {f"prior precision {name}": part for name, part in results["precisions"].items() if is_curve(part)}
    bands(folder, "precisions", precisions, results["precisions"]["data"], 4, 2.7)
    for name in ("tanh", "relu"):
        part = results[f"subnetwork-{name}"]
        bands(folder, f"subnetwork-{name}", part["cases"], part["data"], 3, 2.9)
    draw_sampling(folder, results["sampling"])


def bands(folder: Path, name: str, curves: dict[str, Any], data: dict[str, Any], columns: int, width: float) -> None:
    """Draw one panel of error bars per posterior."""
    figure = Figure(len(curves), columns, width, share=True)
    for axis, (title, curve) in zip(figure.axes, curves.items(), strict=True):
        x, centre, std = (np.array(curve[key]) for key in ("x", "mean", "sd"))
        band(axis, x, centre, std, curve["noise"])
        axis.plot(data["x"], data["y"], ".", color="k", ms=3)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_ylim(-4, 4)
    figure.save(folder / f"toy-regression-{name}.png", 80)


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

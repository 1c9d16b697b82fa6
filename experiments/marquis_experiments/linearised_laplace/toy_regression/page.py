"""Tables and figures of `toy-regression`, from its results alone."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure, band
from marquis_experiments.common.page import formatted, judged, table

PLACES = (1.0, 0.0, 2.8)
"""Inputs at, between and away from the data."""
SAMPLING = {"linearised": "linearised functions", "sampled": "networks with sampled weights"}
LAST = ("effective parameters", "estimated noise std")
RMSE = ("train_without", "test_without", "train_with", "test_with", "effective", "noise_sd")


def std_at(curve: dict[str, Any]) -> list[float]:
    """Return the standard deviation of the function at `PLACES`."""
    return [float(np.interp(x, curve["x"], curve["sd"])) for x in PLACES]


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the page's tables and which of the tutorial's claims hold."""
    structures, sizes, depths = results["structures"], results["sizes"]["rows"], results["depths"]
    precisions = {name: part for name, part in results["precisions"].items() if isinstance(part, dict) and "sd" in part}
    regularised, sampling = results["regularised"]["rows"], results["sampling"]
    subnetworks = {name: results[f"subnetwork-{name}"] for name in ("tanh", "relu")}
    average = {key: mean(row[key] for row in regularised) for key in RMSE}
    better = sum(row["test_with"] < row["test_without"] for row in regularised)
    at, between, away = std_at(structures["full"])
    evidence = [structures[name]["log_evidence"] for name in ("full", "kronecker", "diagonal")]
    between_by_precision = [std_at(part)[1] for part in precisions.values()]
    networks = {name: part for name, part in depths.items() if name.startswith(("1 x", "2 x"))}
    by_swag = {name: shape(part["cases"]["full, 3% by SWAG"]) for name, part in subnetworks.items()}
    diagonal = {name: shape(part["cases"]["diagonal, all weights"]) for name, part in subnetworks.items()}
    claims = {
        "bars": between > at and away > at,
        "structures": evidence == sorted(evidence, reverse=True),
        "precisions": between_by_precision == sorted(between_by_precision),
        "regularised": better == len(regularised),
        "sizes": sizes[-1]["effective"] <= 1.1 * max(row["effective"] for row in sizes[:-1]),
        "sampling": sampling["linearised"]["log_likelihood"] > sampling["sampled"]["log_likelihood"],
        "subnetwork": all(by_swag[name] > diagonal[name] for name in subnetworks),
    }
    return {
        **judged(claims),
        "std": {"at": at, "between": between, "away": away},
        "evidence": dict(zip(("full", "kronecker", "diagonal"), evidence, strict=True)),
        "between": between_by_precision,
        "rmse": average,
        "better": better,
        "datasets": len(regularised),
        "widest": sizes[-1],
        "swag": by_swag,
        "diagonal": diagonal,
        "structures_table": table(
            ["structure", "log evidence", "std at the data (x = 1)", "between (0)", "away (2.8)"],
            [[name, *of_curve(structures[name])] for name in ("kronecker", "diagonal", "full")],
        ),
        "precisions_table": table(
            ["prior precision", "log evidence", "std at x = 1", "at 0", "at 2.8", "effective parameters"],
            [[name, *of_curve(part), f"{part['effective']:.1f}"] for name, part in precisions.items()],
        ),
        "best_precision": max(precisions, key=lambda name: precisions[name]["log_evidence"]),
        "regularised_table": table(
            ["data set", *(f"{part} RMSE {how}" for how in ("without", "with") for part in ("train", "test")), *LAST],
            [
                [name, *(f"{row[key]:.3f}" for key in RMSE)]
                for name, row in [*enumerate(regularised), ("mean", average)]
            ],
        ),
        "sizes_table": table(
            ["hidden units", "weights", "effective", "log evidence"],
            [formatted(row, "width", "weights", "effective:.1f", "log_evidence:.1f") for row in sizes],
        ),
        "depths_table": table(
            ["network", "weights", "effective", "noise std (true 0.1)", "std at the data", "between", "away"],
            [
                [name, *formatted(part, "weights", "effective:.1f", "noise_sd:.3f"), *of_regions(part)]
                for name, part in networks.items()
            ],
        ),
        "sampling_table": table(
            ["prediction", "RMSE of the average at the data", "log-likelihood of the data per point"],
            [[label, *formatted(sampling[name], "rmse:.3f", "log_likelihood:.2f")] for name, label in SAMPLING.items()],
        ),
        "ranks": {
            name: {
                "prior": part["ranks"]["at the prior"],
                "influence": part["ranks"]["influence"],
                "swag": part["ranks"]["swag"],
                "chosen": part["cases"]["full, 3% by Laplace variance"]["influence"],
            }
            for name, part in subnetworks.items()
        },
        "tanh_table": subnetwork_table(subnetworks["tanh"]["cases"]),
        "relu_table": subnetwork_table(subnetworks["relu"]["cases"]),
    }


def of_curve(curve: dict[str, Any]) -> list[str]:
    """Return cells of a table: evidence and standard deviations."""
    return [f"{curve['log_evidence']:.1f}", *(f"{std:.3f}" for std in std_at(curve))]


def of_regions(part: dict[str, Any]) -> list[str]:
    """Return cells of a table: standard deviations at, between and away from the data."""
    return [f"{std:.3f}" for std in part["regions"].values()]


def shape(case: dict[str, Any]) -> float:
    """Return how much wider error bars are between the data than at them; 0 without any at the data."""
    at, between = case["regions"]["at the data"], case["regions"]["between"]
    return between / at if at > 1e-6 else 0.0


def subnetwork_table(cases: dict[str, Any]) -> str:
    """Return the table of posteriors over parts of the network."""
    whole = next(iter(cases.values()))["regions"]["between"]
    rows = []
    for name, case in cases.items():
        kept = f"{case['regions']['between'] / whole:.0%}"
        ratio = f"{shape(case):.1f}" if shape(case) else "none at the data"
        rows.append(
            [name, case["weights"], *of_regions(case), kept, ratio, *formatted(case, "curvature:.2g", "influence:.2g")]
        )
    head = ["posterior", "weights", "std at the data", "between", "away", "between, of the full one's"]
    return table([*head, "between / at the data", "median curvature", "influence"], rows)


# --- figures -----------------------------------------------------------------------------------------------


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw all figures of the page."""
    bands(folder, "structures", results["structures"], {n: n for n in ("kronecker", "diagonal", "full")}, 3, 4.0)
    part = results["precisions"]
    swept = {n: f"prior precision {n}" for n in part if isinstance(part[n], dict) and "sd" in part[n]}
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

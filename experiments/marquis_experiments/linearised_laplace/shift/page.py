"""Tables and figures of `shift`, from its results alone."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean
from typing import Any

from marquis_experiments.common.figure import BLUE, GREEN, GREY, LIGHT_GREY, ORANGE, PURPLE, Figure
from marquis_experiments.common.page import Mean, Row, judged

SCORES = {"nll": "NLL", "ece": "ECE", "accuracy": "Accuracy"}
SHOWN = (0, 60, 120, 180)
"""Degrees in the tables."""
FAR = 60
"""From this angle on digits count as shifted."""
CHEAP = 0.02
"""Nats on upright digits that count as a small price."""
UNIFORM = math.log(10)
"""NLL of equal probabilities for ten classes."""
SMALL = "subnetwork 0.4 % by SWAG, evidence"
"""The tutorial's share of the weights."""
CRUDER = ("diagonal, evidence", "last layer, evidence", "SWAG, diagonal", "MC dropout", "deep ensemble")
COLOURS = {
    "diagonal, evidence": GREEN,
    "last layer, evidence": PURPLE,
    SMALL: BLUE,
    "MC dropout": GREY,
    "deep ensemble": ORANGE,
}
"""Lines of the figure; other shares, choices of a prior precision and rankings are in the tables."""


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables; the small subnetwork must beat cruder methods on rotated digits."""
    rows, angles = rows_of(results), list(range(0, 181, results["settings"]["step"]))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    upright = {m: mean(scores(rows, m, 0, angles, "nll")) for m in methods}
    shifted = {m: mean(far_away(rows, m, angles, "nll")) for m in methods}
    errors = {m: mean(far_away(rows, m, angles, "ece")) for m in methods}
    order = sorted(methods, key=shifted.__getitem__)
    cheap = [m for m in order if upright[m] <= upright["MAP"] + CHEAP]
    small = SMALL if SMALL in methods else next(m for m in methods if m.endswith("by SWAG, evidence"))
    better = [m for m in CRUDER if shifted[m] < shifted[small]]
    return {
        "order": {
            m: {"upright": upright[m], "nll": shifted[m], "ece": errors[m], "gain": against_map(rows, m, angles)}
            for m in order
            if not m.endswith("validation")
        },
        "angles": [angle for angle in SHOWN if angle in angles],
        "tables": {
            label: {
                "rows": {
                    m: {"at": [Mean(scores(rows, m, angle, angles, score)) for angle in SHOWN if angle in angles]}
                    for m in methods
                }
            }
            for score, label in SCORES.items()
        },
        "chosen": {
            m: {"each": chosen}
            for m in methods
            if (chosen := [r["chosen"] for r in rows if r["method"] == m and "chosen" in r])
        },
        "map": {"upright": upright["MAP"], "shifted": shifted["MAP"]},
        "best": {"name": order[0], "upright": upright[order[0]], "shifted": shifted[order[0]]},
        "cheap": {"name": cheap[0], "shifted": shifted[cheap[0]]},
        "small": {"name": small, "gain": shifted[small] - shifted["MAP"], "shifted": shifted[small]},
        "better": "; ".join(better) or "none",
        "uniform": sum(shifted[m] < UNIFORM for m in methods),
        "methods": len(methods),
        "networks": len({row["seed"] for row in rows}),
        "temperature": {"worse": shifted["MAP, temperature"] > shifted["MAP"], "nll": shifted["MAP, temperature"]},
        **judged(
            {
                "map": shifted[small] < shifted["MAP"] and upright[small] < upright["MAP"] + CHEAP,
                "others": not better,
            }
        ),
    }


def rows_of(results: dict[str, Any]) -> list[Row]:
    """Return the rows of all cells: one method and seed each."""
    return [row for cell in results["cells"] for row in cell["rows"]]


def scores(rows: list[Row], method: str, angle: int, angles: list[int], score: str) -> list[float]:
    """Return a method's score at an angle, one number per seed."""
    return [row["scores"][angles.index(angle)][score] for row in rows if row["method"] == method]


def far_away(rows: list[Row], method: str, angles: list[int], score: str) -> list[float]:
    """Return the average over the angles that count as shifted, one number per seed."""
    per_angle = [scores(rows, method, angle, angles, score) for angle in angles if angle >= FAR]
    return [mean(seed) for seed in zip(*per_angle, strict=True)]


def against_map(rows: list[Row], method: str, angles: list[int]) -> Mean:
    """Return differences to MAP, paired by network; the ensemble is compared with the average network."""
    theirs, base = far_away(rows, method, angles, "nll"), far_away(rows, "MAP", angles, "nll")
    if len(theirs) != len(base):
        return Mean([mean(theirs) - mean(base)])
    return Mean(a - b for a, b in zip(theirs, base, strict=True))


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw each score minus that of MAP against the angle, one line per method."""
    rows, angles = rows_of(results), list(range(0, 181, results["settings"]["step"]))
    figure = Figure(3, 3, 4.0, 3.6)
    shown = [method for method in COLOURS if any(row["method"] == method for row in rows)]
    for axis, (score, label) in zip(figure.axes, SCORES.items(), strict=True):
        for method in shown:
            pairs = [[mean(scores(rows, name, angle, angles, score)) for name in (method, "MAP")] for angle in angles]
            line = [ours - point for ours, point in pairs]
            axis.plot(angles, line, "o-", color=COLOURS[method], ms=3, lw=1.5, label=method)
        axis.axhline(0, color=LIGHT_GREY, lw=1)
        axis.set(title=f"{label} minus that of MAP", xlabel="rotation (degrees)")
        axis.set_xticks(range(0, 181, 60))
        axis.grid(alpha=0.25)
    figure.legend(columns=5)
    figure.save(folder / "shift.png")

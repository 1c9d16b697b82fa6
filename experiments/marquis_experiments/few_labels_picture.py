"""The picture of the page of `few-labels`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from marquis_experiments.few_labels_rows import DEFAULT, LABELS, TEMPERATURES, Rows
from marquis_experiments.pages import BLUE, GREEN, GREY, ORANGE, Picture

STYLES = {
    "pixels": ("black", ":"),
    "ae": (BLUE, "-"),
    "vae": ("#8a6fb0", "-."),
    "dropout": (GREEN, "--"),
    "posthoc-sketched": ("#c9a227", "--"),
    DEFAULT: (ORANGE, "-"),
    next(iter(TEMPERATURES)): ("black", "-"),
    "online-sketched-temperature-0.1": ("#e39a6b", "-"),
    "online-sketched-paper-code": ("#9c2f4f", "--"),
    "online-sketched-paper": (GREY, "-."),
}


def draw(path: Path, rows: Rows) -> None:
    """Accuracy of the rows, and what copies add."""
    picture = Picture(2, 2, 5.2, 4.6)
    left, right = picture.axes
    for name, (colour, line) in STYLES.items():
        if name in rows.by_name:
            curve(left, rows.per_class, rows.accuracy(name), colour, line, LABELS[name])
    left.set(xscale="log", xlabel="labels per class", ylabel="accuracy, per cent", title="k nearest codes")
    own = [name for name in (DEFAULT, *TEMPERATURES) if name in rows.by_name]
    for name, colour in zip(own, (ORANGE, BLUE, GREEN, GREY, "#8a6fb0"), strict=False):
        for way, line in (("codes", "--"), ("data", "-")):
            label = "as trained, " if name == DEFAULT else f"linearised at {TEMPERATURES[name]:g}, "
            label += "k counts codes" if way == "codes" else "k counts images"
            curve(right, rows.per_class, rows.difference(name, name, way, "mean"), colour, line, label)
    if rows.has(DEFAULT, "widths"):
        chosen = rows.difference(DEFAULT, DEFAULT, "widths", "mean")
        curve(right, rows.per_class, chosen, "black", "-", "width chosen by the labels, k counts images")
    right.axhline(0, color="black", lw=0.8)
    right.set(xscale="log", xlabel="labels per class", ylabel="percentage points")
    right.set_title("Our default: copies minus mean codes")
    for axis in picture.axes:
        axis.set_xticks(rows.per_class, [str(n) for n in rows.per_class])
        axis.minorticks_off()
        axis.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
        axis.grid(alpha=0.3)
    picture.save(path, dpi=110)


def curve(axis: Any, x: list[int], values: tuple[np.ndarray, np.ndarray], colour: str, line: str, label: str) -> None:
    """A line with a band of two standard errors."""
    mean, error = 100 * values[0], 100 * np.nan_to_num(values[1])
    axis.fill_between(x, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, lw=0)
    axis.plot(x, mean, color=colour, ls=line, lw=1.5, marker="o", ms=3, label=label)

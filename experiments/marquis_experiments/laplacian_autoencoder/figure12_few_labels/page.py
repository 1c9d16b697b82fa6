"""Rows, tables and the picture of the page of `few-labels`: accuracies by name and seed, compared in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, GOLD, GREY, ORANGE, PURPLE, Figure
from marquis_experiments.common.page import table, verdict, yes
from marquis_experiments.laplacian_autoencoder.codes import by_name_and_seed, exceeds, mean_and_error, paired, points
from marquis_experiments.laplacian_autoencoder.describe import failures, label, training

DEFAULT, PIXELS = "online-sketched", "pixels"
RIVALS = ("ae", "vae", "dropout", "posthoc-sketched")
"""Models of the paper's figure that the online model is claimed to beat."""
FEW = 20
"""The claim is about at most this many labels per class."""
SHOWN = (1, 2, 4, 10, 25, 100)
"""Numbers of labels per class in the first table."""


def accuracies(row: dict[str, Any], way: str = "codes") -> np.ndarray:
    """Return accuracies `[numbers of labels, repetitions]`; a row without samples has one way only."""
    return np.array(row["ways"].get(way, row["ways"]["mean"])["accuracy"])


class Rows:
    """Hold the finished rows, by name and seed."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.per_class: list[int] = list(results["settings"]["per_class"])
        known = (PIXELS, *results["settings"]["models"])
        self.by_name = by_name_and_seed(row for row in results["rows"] if row["name"] in known)
        self.few = [place for place, number in enumerate(self.per_class) if number <= FEW]
        self.many = [place for place, number in enumerate(self.per_class) if number > FEW]

    def accuracy(self, name: str, way: str = "codes") -> tuple[np.ndarray, np.ndarray]:
        """Compute mean and standard error for each number of labels."""
        return mean_and_error([*self._by_seed(name, way).values()])

    def difference(
        self, name: str, other: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute mean and standard error of the difference on the same labelled images, for each number of labels."""
        return mean_and_error(self._differences(name, other, way, other_way))

    def mean_difference(
        self, places: list[int], name: str, other: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[float, float]:
        """Compute the difference averaged over some numbers of labels before the standard error is taken."""
        each = [values[places].mean(0, keepdims=True) for values in self._differences(name, other, way, other_way)]
        mean, error = mean_and_error(each)
        return float(mean[0]), float(error[0])

    def _differences(self, name: str, other: str, way: str, other_way: str) -> list[np.ndarray]:
        return paired(self._by_seed(name, way), self._by_seed(other, other_way))

    def _by_seed(self, name: str, way: str) -> dict[int, np.ndarray]:
        return {seed: accuracies(row, way) for seed, row in self.by_name[name].items()}


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs; only the default is compared, not the best of several rows."""
    rows, settings = Rows(results), results["settings"]
    gaps = {name: rows.mean_difference(rows.few, DEFAULT, name) for name in RIVALS}
    holds = {name: exceeds(*gap) for name, gap in gaps.items()}
    last = settings["first"] + settings["held"]
    return {
        "training": training(settings["recipe"]),
        "rows": f"{settings['first']:,} to {last:,}",
        "gaps": {name: points(*gap, sign=True) for name, gap in gaps.items()},
        "holds": {name: yes(better) for name, better in holds.items()},
        "pixels": points(*rows.mean_difference(rows.few, DEFAULT, "pixels"), sign=True),
        "ensemble": points(*rows.mean_difference(rows.few, DEFAULT, "ensemble"), sign=True),
        "verdict": verdict(*holds.values()),
        "table": accuracy_table(rows),
        "samples": samples_table(rows),
        "failed": failures(results["rows"], "name"),
    }


def accuracy_table(rows: Rows) -> str:
    """Return accuracies in per cent by the published way, and the mean difference to the autoencoder."""
    places = [place for place, number in enumerate(rows.per_class) if number in SHOWN]
    body = []
    for name in rows.by_name:
        mean, error = rows.accuracy(name)
        gap = "–" if name == "ae" else points(*rows.mean_difference(rows.few, name, "ae"), sign=True)
        cells = [points(float(mean[place]), float(error[place])) for place in places]
        body.append([label(name), len(rows.by_name[name]), *cells, gap])
    head = ["labels per class", "seeds", *(str(rows.per_class[place]) for place in places)]
    return table([*head, f"up to {FEW}, minus autoencoder"], body)


def samples_table(rows: Rows) -> str:
    """Return what sampled codes add to mean codes, for few and many labels and both ways to count neighbours."""
    columns = {"few": rows.few, "many": rows.many}
    body = []
    for name, seeds in rows.by_name.items():
        if all("codes" in row["ways"] for row in seeds.values()):
            gaps = [
                points(*rows.mean_difference(places, name, name, way, "mean"), sign=True) if places else "–"
                for places in columns.values()
                for way in ("codes", "data")
            ]
            body.append([label(name), f"{np.mean([row['width'] for row in seeds.values()]):.3f}", *gaps])
    head = [f"{text}, k counts {way}" for text in columns for way in ("codes", "images")]
    return table(["model", "width", *head], body)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw differences to the autoencoder, and what samples of the default add to its mean codes."""
    rows = Rows(results)
    figure = Figure(2, 2, 5.2, 4.2)
    left, right = figure.axes
    curves = {PIXELS: "black", "ensemble": GOLD, "dropout": PURPLE, "posthoc-sketched": ORANGE, DEFAULT: BLUE}
    for name, colour in curves.items():
        if name in rows.by_name:
            curve(left, rows.per_class, rows.difference(name, "ae"), colour, "-", label(name))
    left.set_title("accuracy minus that of the autoencoder")
    for way, text, colour in (("codes", "k counts codes, as published", GREY), ("data", "k counts images", BLUE)):
        curve(right, rows.per_class, rows.difference(DEFAULT, DEFAULT, way, "mean"), colour, "-", text)
    right.set_title("LAE online, default: sampled minus mean codes")
    for axis in figure.axes:
        axis.axhline(0, color="0.7", lw=0.8)
        axis.set(xscale="log", xlabel="labels per class", ylabel="percentage points")
        axis.set_xticks(rows.per_class, [str(number) for number in rows.per_class])
        axis.minorticks_off()
        axis.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
        axis.grid(alpha=0.3)
    figure.save(folder / "few-labels.png", dpi=110)


def curve(axis: Any, x: list[int], scores: tuple[np.ndarray, np.ndarray], colour: str, style: str, text: str) -> None:
    """Draw a line with a band of two standard errors."""
    mean, error = 100 * scores[0], 100 * np.nan_to_num(scores[1])
    axis.fill_between(x, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, lw=0)
    axis.plot(x, mean, color=colour, ls=style, lw=1.5, marker="o", ms=3, label=text)

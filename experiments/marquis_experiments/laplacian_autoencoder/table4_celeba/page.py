"""Tables and the bar chart of the page of `celeba`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.page import judged, table
from marquis_experiments.laplacian_autoencoder.codes import (
    by_name_and_seed,
    exceeds,
    mean_and_error,
    paired,
    points,
    samples_table,
)
from marquis_experiments.laplacian_autoencoder.describe import label, training

LABELS_ONLY, LAE = "labels", "online-sketched"
RIVALS = ("ae", "vae", "dropout")
PAPER = {
    "Arched_Eyebrows": (0.50, 0.52, 0.55, 0.60),
    "Attractive": (0.52, 0.50, 0.49, 0.53),
    "Bald": (0.98, 0.98, 0.98, 0.98),
    "Wearing_Lipstick": (0.52, 0.49, 0.50, 0.54),
    "Heavy_Makeup": (0.45, 0.52, 0.49, 0.56),
    "overall": (0.73, 0.72, 0.73, 0.74),
}
"""LAE Table 4: AE, VAE, MC-AE, LAE online."""
COLUMNS = ("ae", "vae", "dropout", LAE)
"""Our rows that stand for the paper's."""
WAYS = {"codes": "k counts codes, as published", "data": "k counts images"}
COLOURS = {"pixels": GREY, "ae": BLUE, "vae": "#8a6fb0", "dropout": GREEN, LAE: ORANGE}


class Faces:
    """Hold the finished rows, by name and seed."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.shown = list(results["shown"])
        self.by_name = by_name_and_seed(results["rows"])

    def values(self, name: str, what: str, way: str = "codes") -> dict[int, np.ndarray]:
        """Return accuracies of "overall", "balanced" or an attribute, `[1, repetitions]` by seed."""
        by_seed = {}
        for seed, row in self.by_name[name].items():
            scores = row["ways"].get(way, row["ways"]["mean"])
            by_seed[seed] = np.array([scores[what] if what in scores else scores["attributes"][what]])
        return by_seed

    def score(self, name: str, what: str, way: str = "codes") -> tuple[float, float]:
        """Compute mean and standard error of an accuracy."""
        mean, error = mean_and_error(list(self.values(name, what, way).values()))
        return float(mean[0]), float(error[0])

    def difference(
        self, name: str, other: str, what: str, way: str = "codes", other_way: str = "codes"
    ) -> tuple[float, float]:
        """Compute mean and standard error of the difference of two rows on the same labelled images."""
        mean, error = mean_and_error(paired(self.values(name, what, way), self.values(other, what, other_way)))
        return float(mean[0]), float(error[0])

    def gain(self, name: str, what: str, way: str) -> str:
        """Return what samples add to an accuracy of mean codes."""
        return points(*self.difference(name, name, what, way, "mean"), sign=True)

    def majority(self, what: str) -> float:
        """Return the accuracy of always guessing each attribute's more common value among the evaluated images."""
        if what == "balanced":
            return 0.5
        scores = next(iter(next(iter(self.by_name.values())).values()))["ways"]["mean"]["majority"]
        return float(np.mean(list(scores.values()))) if what == "overall" else scores[what]


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs."""
    faces, settings = Faces(results), results["settings"]
    gaps = {name: faces.difference(LAE, name, "overall") for name in RIVALS}
    better = {name: exceeds(*gap) for name, gap in gaps.items()}
    single = [what for what in faces.shown if all(exceeds(*faces.difference(LAE, name, what)) for name in RIVALS)]
    models = [name for name in faces.by_name if name != LABELS_ONLY]
    below = [name for name in models if faces.score(name, "overall")[0] < faces.majority("overall")]
    errors = [
        f"{label(name)} {np.mean([row['squared_error'] for row in rows.values()]):.4f}"
        for name, rows in faces.by_name.items()
        if all("squared_error" in row for row in rows.values())
    ]
    return {
        "training": training(settings["recipe"]),
        "seeds": len({row["seed"] for row in results["rows"]}),
        "gaps": {name: points(*gap, sign=True) for name, gap in gaps.items()},
        "single": len(single),
        "attributes": len(faces.shown),
        "majority": 100 * faces.majority("overall"),
        "image_error": 50 / results["settings"]["test"] ** 0.5,
        "lae": points(*faces.score(LAE, "overall")),
        "below": len(below),
        "models": len(models),
        **judged({"overall": all(better.values()), "single": bool(single), "majority": LAE not in below}),
        "table": accuracy_table(faces, "codes"),
        "images": accuracy_table(faces, "data"),
        "samples": samples_table(faces.by_name, ("overall", "balanced"), faces.gain),
        "errors": ", ".join(errors),
        "faces": settings["recipe"]["data"] == "celeba",
        "failed": "; ".join(f"{label(row['name'])}: {row['failed']}" for row in results["rows"] if row["failed"]),
    }


def accuracy_table(faces: Faces, way: str) -> str:
    """Return accuracies in per cent, a row for each model, the paper's in brackets; the majority guess first."""
    columns = ["overall", "balanced", *faces.shown]
    body = [["majority guess", *(f"{100 * faces.majority(what):.1f}" for what in columns)]]
    for name in faces.by_name:
        cells = []
        for what in columns:
            known = name in COLUMNS and what in PAPER and set(PAPER) - {"overall"} <= set(faces.shown)
            theirs = f" ({100 * PAPER[what][COLUMNS.index(name)]:.0f})" if known else ""
            cells.append(points(*faces.score(name, what, way)) + theirs)
        body.append(["majority of the ten labels" if name == LABELS_ONLY else label(name), *cells])
    return table(["", *(what.replace("_", " ") for what in columns)], body)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw bars of accuracy minus the majority guess, for each attribute and both ways to count neighbours."""
    faces = Faces(results)
    names = [name for name in COLOURS if name in faces.by_name]
    what = [*faces.shown, "overall", "balanced"]
    figure = Figure(len(WAYS), 1, 10, 2.9, share=True)
    step = 0.8 / len(names)
    for axis, (way, text) in zip(figure.axes, WAYS.items(), strict=True):
        for number, name in enumerate(names):
            scores = [faces.score(name, each, way) for each in what]
            x = np.arange(len(what)) - 0.4 + (number + 0.5) * step
            height = [100 * (mean - faces.majority(each)) for each, (mean, _) in zip(what, scores, strict=True)]
            error = np.nan_to_num([200 * error_of_mean for _, error_of_mean in scores])
            axis.bar(x, height, step * 0.9, yerr=error, color=COLOURS[name], label=label(name), error_kw={"lw": 0.8})
        axis.axhline(0, color="black", lw=1)
        axis.set_xticks(range(len(what)), [each.replace("_", "\n") for each in what])
        axis.set(ylabel="percentage points")
        axis.set_title(f"accuracy minus majority guess, {text} (whiskers: two standard errors)", fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=8, frameon=False)
    figure.save(folder / "celeba.png", dpi=110)

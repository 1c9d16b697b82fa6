"""The study `few-labels`: nearest neighbours on codes, 1 to 100 labels per class (LAE Figure 12; docs/method/tasks.md).

MNIST, dense 784-512-256-2 and back. Labelled and evaluated images come from the last 5,000 training rows, on which no
model was trained. All models use the same labelled images. A labelled image is embedded by many posterior samples;
there are three ways to use them: `codes` (the published one: k counts codes), `data` (k counts images, so that samples
of one image do not crowd out votes of several images) and `mean` (the mean code only).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.data import Data
from marquis.data import load as load_data
from marquis.errors import DataError
from marquis.tasks.semi_supervised import PER_CLASS, evaluate_codes
from marquis_experiments.common.cells import cell, stored
from marquis_experiments.common.figure import BLUE, GOLD, GREY, ORANGE, PURPLE, Figure
from marquis_experiments.common.page import table, verdict, yes
from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.laplacian_autoencoder.codes import (
    by_name_and_seed,
    codes_of,
    exceeds,
    mean_and_error,
    paired,
    points,
    samples_table,
    scores_by_way,
)
from marquis_experiments.laplacian_autoencoder.describe import failures, label, training
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, Place, model, train_in_parallel

DEFAULT, PIXELS = "online-sketched", "pixels"
RIVALS = ("ae", "vae", "dropout", "posthoc-sketched")
"""Models of the paper's figure that the online model is claimed to beat."""
FEW = 20
"""The claim is about at most this many labels per class."""
SHOWN = (1, 2, 4, 10, 25, 100)
"""Numbers of labels per class in the first table."""
MODELS = (
    *("ae", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *(DEFAULT, "online-sketched-temperature-0.1", "online-sketched-paper-code", "online-sketched-paper"),
)
OFTEN = (PIXELS, "ae", DEFAULT, "online-sketched-paper-code")
"""Rows of the claim: trainings of the same model differ by more than these models do."""
ONCE = ("online-sketched-paper",)
"""Rows that are at chance in every training."""
LABELS_SEED = 1000


def measure(run: Run) -> dict[str, Any]:
    """Compute every row; models are kept and shared with other studies."""
    settings, place = run.settings, Place.of(run)
    images, held = Images.load(settings.recipe, run.data_dir), held_out(settings, run.data_dir)
    all_jobs = jobs(settings)
    if run.size != "quick":
        trained = [(name, seed) for name, seed in all_jobs if name != PIXELS]
        load = partial(Images.load, settings.recipe, run.data_dir)
        train_in_parallel(run.shared, settings.recipe, trained, images, load, run.say)
        missing = [job for job in all_jobs if stored(run.cells, *_row_cell(settings, *job)) is None]
        run_in_processes(_row_in_process, [(place, settings, *job) for job in missing], run.say)
    rows = []
    for job in all_jobs:
        rows.append(one_row(place, settings, images, held, *job, run.say))
        run.say(line(rows[-1]))
    return {"settings": settings.plain(), "rows": rows}


def jobs(settings: Settings) -> list[tuple[str, int]]:
    """Return rows and their seeds, the first seed of all rows first."""

    def seeds(name: str) -> int:
        return 1 if name in ONCE else settings.seeds if name in OFTEN else settings.other_seeds

    names, last = (PIXELS, *settings.models), max(settings.seeds, settings.other_seeds)
    return [(name, seed) for seed in range(last) for name in names if seed < seeds(name)]


def held_out(settings: Settings, data_dir: Path | None) -> Data:
    """Return images with labels that no model was trained on."""
    last = settings.first + settings.held
    rows = load_data(settings.recipe.data, "train", data_dir, limit=last)[settings.first :]
    if len(rows) < settings.held or settings.recipe.images > settings.first:
        raise DataError(
            f"{settings.recipe.data}: rows {settings.first} to {last} of the training images are wanted for labels, "
            f"after the {settings.recipe.images} that models are trained on; there are {len(rows)}."
        )
    return rows


def one_row(
    place: Place, settings: Settings, images: Images, held: Data, name: str, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return one row of the tables for one seed."""

    def compute() -> dict[str, Any]:
        before = time.process_time()
        if name == PIXELS:
            return {"failed": None, **measured(held.x.flatten(1)[None], None, held, settings, seed)}
        outcome = model(place.shared, name, seed, settings.recipe, images, say)
        if outcome.model is None:
            return {"failed": outcome.failed}
        scores = measured(*codes_of(outcome.model, held.x, settings.copies, seed), held, settings, seed)
        return {"failed": None, **scores, "cpu_seconds": time.process_time() - before}

    return cell(place.folder, *_row_cell(settings, name, seed), compute)


def _row_cell(settings: Settings, name: str, seed: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a cell and all that it depends on."""
    return f"{name}-s{seed}", {"name": name, "seed": seed, **settings.without("seeds", "other_seeds", "models")}


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of progress."""
    text = row["failed"] or f"{accuracies(row)[0].mean():.3f} with fewest labels"
    return f"{row['name']}, seed {row['seed']}: {text}"


def _row_in_process(place: Place, settings: Settings, name: str, seed: int) -> str:
    images, held = Images.load(settings.recipe, place.data_dir), held_out(settings, place.data_dir)
    return line(one_row(place, settings, images, held, name, seed, lambda text: None))


def measured(codes: Tensor, means: Tensor | None, held: Data, settings: Settings, seed: int) -> dict[str, Any]:
    """Compute accuracies `[numbers of labels][repetitions]` for each way to use the samples, with the same labels."""
    assert held.y is not None
    labels = held.y.long()

    def accuracy(codes: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        options |= {"repetitions": settings.repetitions, "generator": torch.Generator().manual_seed(LABELS_SEED + seed)}
        result = evaluate_codes(codes, labels, settings.per_class, **options)
        return {"accuracy": result.accuracy.tolist(), "neighbours": result.neighbours.tolist()}

    scores = scores_by_way(codes, means, accuracy, settings.data_copies)
    return {**scores, "copies": len(codes), "numbers": codes.shape[2]}


# --- page --------------------------------------------------------------------------------------------------


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

    def gain(self, name: str, column: str, way: str) -> str:
        """Return what samples add to the accuracy of mean codes, for "few" or "many" labels."""
        places = {"few": self.few, "many": self.many}[column]
        return points(*self.mean_difference(places, name, name, way, "mean"), sign=True) if places else "–"

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
        "samples": samples_table(rows.by_name, ("few", "many"), rows.gain),
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


# fmt: off
STUDY = Study(
    "few-labels", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "recipe": TASK_RECIPES["default"], "seeds": 6, "other_seeds": 3, "first": 55_000, "held": 5_000,
        "per_class": PER_CLASS, "repetitions": 5, "copies": 100, "data_copies": 20, "models": MODELS,
    },
    quick={
        "recipe": TASK_RECIPES["quick"], "seeds": 1, "other_seeds": 1, "first": 1000, "held": 400,
        "per_class": (1, 2, 5), "repetitions": 3, "copies": 10, "data_copies": 5,
        "models": tuple(key for key in MODELS if "temperature" not in key),
    },
    full={"recipe": TASK_RECIPES["full"], "seeds": 10, "other_seeds": 5, "repetitions": 20, "data_copies": 100},
    cells="",
)
# fmt: on

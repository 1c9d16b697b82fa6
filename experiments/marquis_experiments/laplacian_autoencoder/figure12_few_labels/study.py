"""The study `few-labels`: nearest neighbours on codes, 1 to 100 labels per class (LAE Figure 12; docs/method/tasks.md).

MNIST, dense 784-512-256-2 and back. Labelled and evaluated images come from the last 5,000 training rows, on which no
model was trained. All models use the same labelled images. A labelled image is embedded by many posterior samples;
there are three ways to use them: `codes` (the published one: k counts codes), `data` (k counts images, so that samples
of one image do not crowd out votes of several images) and `mean` (the mean code only).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.data import Data
from marquis.data import load as load_data
from marquis.errors import DataError
from marquis.tasks.semi_supervised import PER_CLASS, evaluate_codes
from marquis_experiments.common.cells import cell, stored
from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.laplacian_autoencoder.codes import codes_of, scores_by_way
from marquis_experiments.laplacian_autoencoder.figure12_few_labels.page import DEFAULT, PIXELS, accuracies, draw, values
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, Place, model, train_in_parallel

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

"""`few-labels`: nearest neighbours on codes, 1 to 100 labels per class (LAE Figure 12; methods.md 8.4).

MNIST, dense 784-512-256-2 and back. Labelled and evaluated images come from the last 5000 training rows, on which no
model was trained. Every model meets the same labelled images. A labelled image is embedded by many draws of a model
with uncertainty; four ways to use them: `codes` (the published one: k counts codes), `data` (k counts images, so that
copies do not forbid a vote of several images), `mean` (no copies: the mean code only), and for some models `widths` (k
counts images, and the labelled images choose how wide the clouds are: `few_labels_widths`). The default's posterior is
also read through the encoder's tangent, at temperature 1 (the Laplace posterior) and 10; a control has round clouds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import (
    EnsembleAutoencoder,
    LaplacianAutoencoder,
    LinearisedAutoencoder,
    VariationalAutoencoder,
    linearised,
)
from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import Data
from marquis.data import load as load_data
from marquis.errors import DataError
from marquis.tasks.semi_supervised import PER_CLASS, embed, evaluate_codes
from marquis_experiments.cells import cell, stored, timed_from_now, write_json
from marquis_experiments.common.parallel import run_in_processes as work_ahead
from marquis_experiments.few_labels_report import write_report
from marquis_experiments.few_labels_rows import CONTROL, CONTROL_WIDTH, DEFAULT, TEMPERATURES, accuracies
from marquis_experiments.few_labels_widths import FACTORS, ROUND, by_chosen_width, clouds, mean_codes, round_clouds
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Images, Recipe, model, train_ahead
from marquis_experiments.trained import shared_networks

PIXELS = "pixels"
MODELS = (
    *("ae", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code", "online-sketched-paper"),
)
CLOUDED = (
    *("ae", "posthoc-sketched"),
    *("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code"),
)
"""Rows whose clouds may be of several widths."""
QUICK = tuple(key for key in MODELS if "temperature" not in key)
OFTEN = (PIXELS, "ae", CONTROL, DEFAULT, *TEMPERATURES, "online-sketched-paper-code")
"""Rows that the claim is about: trainings of the same model differ by more than these models do."""
ONCE = ("online-sketched-paper",)
"""Rows that are at chance in every training: one shows it."""
LABELS_SEED, DRAWS_SEED, CLOUDS_SEED = 1000, 2000, 3000


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        recipe: Of the models.
        seeds: Of models, labels and draws, for the rows `OFTEN`.
        other_seeds: For the other rows, except `ONCE`.
        first: First of the training rows that give labelled and evaluated images.
        held: How many.
        per_class: Numbers of labels per class.
        repetitions: How often labels are drawn anew, per seed.
        copies: Draws of the model for each image.
        data_copies: How many of them are used where k counts images: k grows with them, and time with k.
        models: Keys of the autoencoders.
    """

    recipe: Recipe
    seeds: int = 6
    other_seeds: int = 3
    first: int = 55_000
    held: int = 5_000
    per_class: tuple[int, ...] = PER_CLASS
    repetitions: int = 5
    copies: int = 100
    data_copies: int = 20
    models: tuple[str, ...] = MODELS


SETTINGS = {
    "quick": Settings(TASK_RECIPES["quick"], 1, 1, 1000, 400, (1, 2, 5), 3, 10, 5, QUICK),
    "default": Settings(TASK_RECIPES["default"]),
    "full": Settings(TASK_RECIPES["full"], 10, 5, repetitions=20, data_copies=100),
}


def run(
    size: str = "default",
    out: str | Path = "runs/few-labels",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; models are kept, and shared with other experiments."""
    settings = SETTINGS[size]
    folder, shared = Path(out) / size, shared_networks(out)
    loading = (settings.recipe, data_dir)
    images, held = Images.load(*loading), held_out(settings, data_dir)
    timed = timed_from_now(say)

    def row(job: tuple[str, int]) -> dict[str, Any]:
        return one_row(folder, shared, settings, images, held, *job, timed)

    wanted = jobs(settings)
    if size != "quick":
        own = [(name, seed) for name, seed in wanted if name in settings.models]
        train_ahead(shared, settings.recipe, own, images, partial(Images.load, *loading), timed)
    try:
        if size != "quick":
            missing = [job for job in wanted if not is_there(folder, settings, *job)]
            work_ahead(_say_row, [(folder, shared, settings, data_dir, *job) for job in missing], timed)
        for job in wanted:
            timed(said(row(job)))
    finally:  # a run that is stopped shows what it has
        rows = [row(job) for job in wanted if is_there(folder, settings, *job)]
        results = {"size": size, "settings": asdict(settings), "rows": rows}
        write_json(folder / "results.json", results)
        page = write_report(folder, results)
    return page


def names(settings: Settings) -> list[str]:
    """Rows of the tables."""
    return [PIXELS, *settings.models, CONTROL, *TEMPERATURES]


def jobs(settings: Settings) -> list[tuple[str, int]]:
    """Rows and their seeds."""

    def seeds(name: str) -> int:
        return 1 if name in ONCE else settings.seeds if name in OFTEN else settings.other_seeds

    last = max(settings.seeds, settings.other_seeds)
    return [(name, seed) for seed in range(last) for name in names(settings) if seed < seeds(name)]


def held_out(settings: Settings, data_dir: str | Path | None) -> Data:
    """Images with labels that no model was trained on."""
    last = settings.first + settings.held
    rows = load_data(settings.recipe.data, "train", data_dir, limit=last)[settings.first :]
    if len(rows) < settings.held or settings.recipe.images > settings.first:
        raise DataError(
            f"{settings.recipe.data}: rows {settings.first} to {last} of the training images are wanted for labels, "
            f"after the {settings.recipe.images} that models are trained on; there are {len(rows)}."
        )
    return rows


def one_row(
    folder: Path,
    shared: Path,
    settings: Settings,
    images: Images,
    held: Data,
    name: str,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """One row of the tables for one seed, from the folder if it is there."""

    def compute() -> dict[str, Any]:
        before = time.process_time()
        if name == PIXELS:
            return {"failed": None, **measured(held.x.flatten(1)[None], None, held, settings, seed)}
        key = "ae" if name == CONTROL else DEFAULT if name in TEMPERATURES else name
        outcome = model(shared, key, seed, settings.recipe, images, say)
        if outcome.model is None:
            return {"failed": outcome.failed}
        found = measured(*codes_of_row(name, outcome.model, held.x, settings.copies, seed), held, settings, seed)
        return {"failed": None, **found, "cpu_seconds": time.process_time() - before}

    row = cell(folder, *_row_cell(settings, name, seed), compute)
    if row["failed"] or name not in CLOUDED:
        return row

    def compute_clouds() -> dict[str, Any]:
        before = time.process_time()
        own = model(shared, name, seed, settings.recipe, images, say).require()
        found = clouds(own, held.x, settings.data_copies, CLOUDS_SEED + seed)
        labels = torch.Generator().manual_seed(LABELS_SEED + seed)
        assert held.y is not None
        ways = by_chosen_width(found, held.y.long(), settings.per_class, settings.repetitions, labels)
        widths = {f"{key:g}": width(*codes) for key, codes in found.items()}
        return {**ways, "widths": widths, "cpu_seconds": time.process_time() - before}

    found = cell(folder, *_clouds_cell(settings, name, seed), compute_clouds)
    return {**row, "ways": row["ways"] | {"widths": {key: found[key] for key in ("accuracy", "chosen", "widths")}}}


def is_there(folder: Path, settings: Settings, name: str, seed: int) -> bool:
    """Whether the row was computed before."""
    row = stored(folder, *_row_cell(settings, name, seed))
    if row is None or row["failed"] or name not in CLOUDED:
        return row is not None
    return stored(folder, *_clouds_cell(settings, name, seed)) is not None


def _row_cell(settings: Settings, name: str, seed: int) -> tuple[str, dict[str, Any]]:
    """Name of the cell, and all that it depends on."""
    other = ("seeds", "other_seeds", "models")
    kept = {key: value for key, value in asdict(settings).items() if key not in other}
    return f"{name}-s{seed}", {"name": name, "seed": seed, **kept}


def _clouds_cell(settings: Settings, name: str, seed: int) -> tuple[str, dict[str, Any]]:
    described = _row_cell(settings, name, seed)[1]
    return f"{name}-widths-s{seed}", described | {"factors": [*FACTORS, *ROUND], "linearised": True}


def said(row: dict[str, Any]) -> str:
    """A row in short, for the terminal."""
    found = row["failed"] or f"{accuracies(row)[0].mean():.3f} with fewest labels"
    return f"{row['name']}, seed {row['seed']}: {found}"


def _say_row(folder: Path, shared: Path, settings: Settings, data_dir: str | Path | None, name: str, seed: int) -> str:
    """One row in a process of its own."""
    images, held = Images.load(settings.recipe, data_dir), held_out(settings, data_dir)
    return said(one_row(folder, shared, settings, images, held, name, seed, lambda text: None))


def codes_of_row(
    name: str, trained: BaseAutoencoder, x: Tensor, copies: int, seed: int
) -> tuple[Tensor, Tensor | None]:
    """As `codes_of`, of the model that was trained for a row, as the row uses it."""
    if name == CONTROL:
        means = mean_codes(trained, x)
        source = torch.Generator().manual_seed(DRAWS_SEED + seed)
        return means + CONTROL_WIDTH * round_clouds(means, copies, source), means
    if name in TEMPERATURES:
        assert isinstance(trained, LaplacianAutoencoder)
        trained = linearised(trained, TEMPERATURES[name])
    return codes_of(trained, x, copies, seed)


def codes_of(
    own: BaseAutoencoder, x: Tensor, copies: int, seed: int, batch: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Copies `[S, n, K]`, and the mean codes where they are not the mean of the copies.

    The members of an ensemble do not share a code: their codes are put side by side, one copy of `[n, 5 K]`. A
    variational and a linearised autoencoder know their means exactly. All images are one batch unless `batch` is given,
    because weights are drawn again for every batch, which costs as much as a thousand images of the dense network.
    """
    source = torch.Generator().manual_seed(DRAWS_SEED + seed)
    options: dict[str, Any] = {"generator": source, "batch_size": batch or len(x), "progress": False}
    codes = embed(own, x, copies, copies=True, **options)
    if isinstance(own, EnsembleAutoencoder):
        return codes.transpose(0, 1).flatten(1)[None], None
    knows_mean = isinstance(own, (LinearisedAutoencoder, VariationalAutoencoder))
    return codes, embed(own, x, 1, **options) if knows_mean else None


def measured(codes: Tensor, means: Tensor | None, held: Data, settings: Settings, seed: int) -> dict[str, Any]:
    """Accuracies `[numbers of labels][repetitions]` for each way to use the copies; the same labels for each."""
    assert held.y is not None
    means = codes.mean(0) if means is None else means

    def accuracy(own: Tensor, count: Any) -> dict[str, Any]:
        labels = torch.Generator().manual_seed(LABELS_SEED + seed)
        options = {"means": means, "repetitions": settings.repetitions, "count": count, "generator": labels}
        found = evaluate_codes(own, held.y.long(), settings.per_class, **options)  # pyright: ignore[reportOptionalMemberAccess]
        return {"accuracy": found.accuracy.tolist(), "neighbours": found.neighbours.tolist()}

    ways = {"mean": accuracy(means[None], "codes")}
    if len(codes) > 1:
        ways["codes"] = accuracy(codes, "codes")
        ways["data"] = accuracy(codes[: settings.data_copies], "data")
    return {"ways": ways, "width": width(codes, means), "copies": len(codes), "numbers": codes.shape[2]}


def width(codes: Tensor, means: Tensor) -> float:
    """How wide the draws are: root of (variance over copies of one image / variance of mean codes over images)."""
    if len(codes) < 2:
        return 0.0
    within = (codes.double() - means.double()).square().sum(-1).mean()
    between = means.double().var(0, correction=0).sum()
    return float((within / between).sqrt())

"""The rows of `ood`: one model against one set of images from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import LaplacianAutoencoder
from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import load as load_data
from marquis.tasks import ood
from marquis_experiments.cells import cell, stored
from marquis_experiments.laplacian_autoencoder.models import Images, Recipe, model
from marquis_experiments.ood_layers import by_layer
from marquis_experiments.ood_readings import TOGETHER, read_as, trained_as
from marquis_experiments.ood_scores import keep, kept

DISSECTED = ("online-sketched",)
"""Models whose layers are looked at one by one."""
SHUFFLED = "shuffled"
"""Outside data for machines without other data: the inside's test images, the pixels in one random order."""
CURVES = ("output_variance", "latent_variance")
POINTS, BINS = 60, 40
BATCH = 512
"""Images at a time: every batch draws the networks anew, which for Kronecker factors costs as much as 100 images."""


@dataclass(frozen=True)
class Sizes:
    """How carefully every row is measured.

    Attributes:
        rows: Images inside and as many outside.
        train: Training images, against which typicality and the combined score are measured.
        samples: Draws of each model.
        ablation_samples: Likewise where settings are compared.
        layer_samples: Draws for the variances by layer.
        layer_rows: Images inside and outside for these.
    """

    rows: int = 500
    train: int = 300
    samples: int = 100
    ablation_samples: int = 30
    layer_samples: int = 20
    layer_rows: int = 300


@dataclass(frozen=True)
class Place:
    """Where rows and models are kept, and where the data are."""

    folder: Path
    shared: Path
    data_dir: str | Path | None


@dataclass(frozen=True)
class Job:
    """What a row is about.

    Attributes:
        part: Of the page.
        recipe: Of the model; its data are the inside.
        key: The model.
        seed: Of the model.
        outside: Name of the other data.
    """

    part: str
    recipe: Recipe
    key: str
    seed: int
    outside: str

    @property
    def name(self) -> str:
        """Of the row's file."""
        recipe = self.recipe
        named = [self.part, recipe.data, self.outside, recipe.architecture, f"{recipe.width:g}", self.key]
        return "-".join([*named, f"s{self.seed}"])

    @property
    def trained_as(self) -> str:
        """The key of the model that has to be trained."""
        return trained_as(self.key)

    @property
    def singles(self) -> Sequence[Job]:
        """The rows of the single trainings that this one is about: itself, unless it is of several together."""
        if self.key not in TOGETHER:
            return [self]
        key, trainings = TOGETHER[self.key]
        return [replace(self, key=key, seed=seed) for seed in range(trainings)]

    @property
    def dissected(self) -> bool:
        """Whether the layers are looked at too."""
        return self.part == "main" and self.key in DISSECTED and self.seed == 0

    def samples(self, sizes: Sizes) -> int:
        """Draws of the model."""
        return sizes.ablation_samples if self.part in ("ablation", "network") else sizes.samples

    def described(self, sizes: Sizes) -> dict[str, Any]:
        """All that the row depends on."""
        measured = {"rows": sizes.rows, "train": sizes.train, "samples": self.samples(sizes)}
        if self.dissected:
            measured |= {"layer_samples": sizes.layer_samples, "layer_rows": sizes.layer_rows}
        own = {"part": self.part, "key": self.key, "seed": self.seed, "outside": self.outside}
        return {**own, **self.recipe.described(), **measured}


def is_there(place: Place, sizes: Sizes, job: Job) -> bool:
    """Whether the row was computed before."""
    return stored(place.folder, job.name, job.described(sizes)) is not None


def one_row(place: Place, sizes: Sizes, job: Job, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """One model against one set from outside, from the folder if it is there."""

    def compute() -> dict[str, Any]:
        if len(job.singles) > 1:
            return _joined(place, sizes, job.singles, say)
        images = _images(job.recipe, place.data_dir)
        outcome = model(place.shared, job.trained_as, job.seed, job.recipe, images, say)
        trained = {"train_seconds": outcome.cpu_seconds, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        before = time.process_time()
        result = {**trained, **summary(_asked(place, sizes, job, outcome.model))}
        result["evaluation_seconds"] = time.process_time() - before
        if job.dissected and isinstance(outcome.model, LaplacianAutoencoder):
            part, generator = slice(sizes.layer_rows), torch.Generator().manual_seed(job.seed)
            outside = outside_images(job.outside, images, sizes.rows, place.data_dir)
            result["layers"] = by_layer(
                outcome.model, images.test[part].x, outside[part], sizes.layer_samples, generator
            )
        return result

    return cell(place.folder, job.name, job.described(sizes), compute)


def _asked(place: Place, sizes: Sizes, job: Job, trained: BaseAutoencoder) -> ood.OodResult:
    """What the model of one training says about all images; its scores are kept."""
    images = _images(job.recipe, place.data_dir)
    inside, typical = images.test[: sizes.rows].x, images.train[: sizes.train].x
    outside = outside_images(job.outside, images, sizes.rows, place.data_dir)
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(job.seed), "progress": False}
    found = ood.evaluate(
        read_as(trained, job.key), inside, outside, typical, job.samples(sizes), batch_size=BATCH, **options
    )
    keep(place.folder, job.name, job.described(sizes), found)
    return found


def _joined(place: Place, sizes: Sizes, singles: Sequence[Job], say: Callable[[str], None]) -> dict[str, Any]:
    """Several trainings judged as one model, from the scores that their own rows kept."""
    before = time.process_time()
    rows = [one_row(place, sizes, job, say) for job in singles]
    failed = [row["failed"] for row in rows if row["failed"]]
    trained = {"train_seconds": sum(row["train_seconds"] for row in rows), "failed": failed[0] if failed else None}
    if failed:
        return trained
    found = []
    for job in singles:
        known = kept(place.folder, job.name, job.described(sizes))
        if known is None:  # a row from before scores were kept
            images = _images(job.recipe, place.data_dir)
            trained_model = model(place.shared, job.trained_as, job.seed, job.recipe, images, say).require()
            known = _asked(place, sizes, job, trained_model)
        found.append(known)
    return {**trained, **summary(ood.together(found)), "evaluation_seconds": time.process_time() - before}


def rows_of_one_model(place: Place, sizes: Sizes, jobs: Sequence[Job]) -> str:
    """Compute several rows of the same model, in a process of their own; returns what there is to say."""
    return "; ".join(line(one_row(place, sizes, job)) for job in jobs)


@lru_cache(maxsize=2)
def _images(recipe: Recipe, data_dir: str | Path | None) -> Images:
    return Images.load(recipe, data_dir)


def outside_images(name: str, images: Images, rows: int, data_dir: str | Path | None) -> Tensor:
    """Test images of another data set, or the inside's with their pixels in a random order."""
    if name != SHUFFLED:
        return load_data(name, "test", data_dir, limit=rows).x
    x = images.test[:rows].x
    order = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(0))
    return x.flatten(1)[:, order].reshape(x.shape)


def summary(found: ood.OodResult) -> dict[str, Any]:
    """What the page needs of the scores: the table, curves and histograms of the variances, the error inside."""
    varying = [name for name in CURVES if found.varies(name)]
    return {
        "table": {name: row for name, row in found.table.items() if found.varies(name)},
        "error": float(found.inside["error"].mean()),
        "roc": {name: _thinned(found, name) for name in varying},
        "histograms": {name: _histogram(found, name) for name in varying},
        "draws": found.draws,
    }


def _thinned(found: ood.OodResult, name: str) -> list[list[float]]:
    """False and true positive rates at about `POINTS` places of the curve."""
    curve = found.roc(name)
    chosen = torch.linspace(0, len(curve.threshold) - 1, POINTS).round().long().unique()
    rates = (curve.false_positive_rate[chosen], curve.true_positive_rate[chosen])
    return [[round(value, 4) for value in rate.tolist()] for rate in rates]


def _histogram(found: ood.OodResult, name: str) -> dict[str, list[float]]:
    """Counts over the logarithm of the score: variances differ by orders of magnitude."""
    floor = 1e-12
    inside, outside = (part[name].double().clamp_min(floor).log10() for part in (found.inside, found.outside))
    both = torch.cat([inside, outside])
    low, high = float(both.min()), float(both.max())
    edges = torch.linspace(low, max(high, low + 1e-3), BINS + 1, dtype=torch.float64)
    counts = [torch.histc(part, BINS, float(edges[0]), float(edges[-1])).tolist() for part in (inside, outside)]
    return {"edges": [round(edge, 4) for edge in edges.tolist()], "inside": counts[0], "outside": counts[1]}


def line(row: dict[str, Any]) -> str:
    """A row in short, for the terminal."""
    who = f"{row['data']} / {row['outside']}, {row['part']}, {row['key']}, width {row['width']:g}, seed {row['seed']}: "
    if row["failed"]:
        return who + row["failed"]
    shown = {name: row["table"].get(name) for name in ("error", "typicality", *CURVES)}
    return who + ", ".join(f"{name} {found['auroc']:.3f}" for name, found in shown.items() if found)

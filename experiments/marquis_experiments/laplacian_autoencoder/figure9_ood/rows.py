"""The rows of `ood`: one model against one out-of-distribution data set."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import LaplacianAutoencoder, PosteriorAutoencoder, from_posterior, linearised
from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import load as load_data
from marquis.tasks import ood
from marquis_experiments.common.cells import cell, stored
from marquis_experiments.laplacian_autoencoder.models import Images, Place, Recipe, model

FACTORED = "online-kronecker-temperature-0.1"
AT_ONE, TANGENT = f"{FACTORED}-read-at-1", f"{FACTORED}-linearised"
DEFAULT_TANGENT, POSTHOC_TANGENT = "online-sketched-linearised", "posthoc-kronecker-linearised"
REUSED = {
    AT_ONE: FACTORED,
    TANGENT: FACTORED,
    DEFAULT_TANGENT: "online-sketched",
    POSTHOC_TANGENT: "posthoc-kronecker",
}
"""Rows that train nothing: the posterior of another row at temperature 1, linearised unless it is `AT_ONE`."""
SHUFFLED = "shuffled"
"""Outliers that need no other data: in-distribution test images with their pixels in one random order."""
CURVES = ("output_variance", "latent_variance")
POINTS, BINS = 60, 40
BATCH = 512
"""Batch size; every batch samples the networks again, which for Kronecker factors costs as much as 100 images."""


@dataclass(frozen=True)
class Sizes:
    """Set how carefully every row is measured.

    Attributes:
        rows: In-distribution test images, and as many out-of-distribution ones.
        train: Training images, against which typicality and the combined score are measured.
        samples: Posterior samples of each model.
        ablation_samples: Posterior samples where settings are compared.
    """

    rows: int = 500
    train: int = 300
    samples: int = 100
    ablation_samples: int = 30


@dataclass(frozen=True)
class Job:
    """Describe a row: part of the page, recipe (whose data are in-distribution), model, seed and OOD data set."""

    part: str
    recipe: Recipe
    key: str
    seed: int
    outside: str

    @property
    def name(self) -> str:
        """Return the name of the row's file."""
        recipe = self.recipe
        named = [self.part, recipe.data, self.outside, recipe.architecture, f"{recipe.width:g}", self.key]
        return "-".join([*named, f"s{self.seed}"])

    @property
    def trained_as(self) -> str:
        """Return the key of the model that has to be trained for this row."""
        return REUSED.get(self.key, self.key)

    def samples(self, sizes: Sizes) -> int:
        """Return the number of posterior samples."""
        return sizes.ablation_samples if self.part in ("ablation", "network") else sizes.samples

    def described(self, sizes: Sizes) -> dict[str, Any]:
        """Return all that the row depends on."""
        row = {"part": self.part, "key": self.key, "seed": self.seed, "outside": self.outside}
        measured = {"rows": sizes.rows, "train": sizes.train, "samples": self.samples(sizes)}
        return {**row, **self.recipe.described(), **measured}


def is_there(place: Place, sizes: Sizes, job: Job) -> bool:
    """Return whether the row was computed before."""
    return stored(place.folder, job.name, job.described(sizes)) is not None


def one_row(place: Place, sizes: Sizes, job: Job, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Return one model against one out-of-distribution set, from the folder if it is there."""

    def compute() -> dict[str, Any]:
        images = _images(job.recipe, place.data_dir)
        outcome = model(place.shared, job.trained_as, job.seed, job.recipe, images, say)
        trained = {"train_seconds": outcome.cpu_seconds, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        before = time.process_time()
        inside, train = images.test[: sizes.rows].x, images.train[: sizes.train].x
        outside = ood_images(job.outside, images, sizes.rows, place.data_dir)
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(job.seed), "progress": False}
        read = model_of_row(outcome.model, job.key)
        result = ood.evaluate(read, inside, outside, train, job.samples(sizes), batch_size=BATCH, **options)
        return {**trained, **summary(result), "evaluation_seconds": time.process_time() - before}

    return cell(place.folder, job.name, job.described(sizes), compute)


def model_of_row(trained: BaseAutoencoder, key: str) -> BaseAutoencoder:
    """Return the model of a row from the one that was trained for it."""
    if key not in REUSED:
        return trained
    if isinstance(trained, PosteriorAutoencoder):  # fitted at temperature 1
        return linearised(trained)
    assert isinstance(trained, LaplacianAutoencoder)
    if key != AT_ONE:
        return linearised(trained, 1.0)
    posterior = trained.posterior(posterior_temperature=1.0)
    return from_posterior(trained.encoder, trained.decoder, posterior, trained.likelihood)


def rows_of_one_model(place: Place, sizes: Sizes, jobs: Sequence[Job]) -> str:
    """Compute several rows of one model in another process; return a line of progress."""
    return "; ".join(line(one_row(place, sizes, job)) for job in jobs)


@lru_cache(maxsize=2)
def _images(recipe: Recipe, data_dir: str | Path | None) -> Images:
    return Images.load(recipe, data_dir)


def ood_images(name: str, images: Images, rows: int, data_dir: str | Path | None) -> Tensor:
    """Return test images of another data set, or the in-distribution ones with their pixels in a random order."""
    if name != SHUFFLED:
        return load_data(name, "test", data_dir, limit=rows).x
    x = images.test[:rows].x
    order = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(0))
    return x.flatten(1)[:, order].reshape(x.shape)


def summary(result: ood.OodResult) -> dict[str, Any]:
    """Return what the page needs: the table, curves and histograms of the variances, the in-distribution error."""
    varying = [name for name in CURVES if result.varies(name)]
    return {
        "table": {name: row for name, row in result.table.items() if result.varies(name)},
        "error": float(result.in_distribution["error"].mean()),
        "roc": {name: _thinned(result, name) for name in varying},
        "histograms": {name: _histogram(result, name) for name in varying},
        "draws": result.samples,
    }


def _thinned(result: ood.OodResult, name: str) -> list[list[float]]:
    """Return false and true positive rates at about `POINTS` places of the curve."""
    curve = result.roc(name)
    chosen = torch.linspace(0, len(curve.threshold) - 1, POINTS).round().long().unique()
    rates = (curve.false_positive_rate[chosen], curve.true_positive_rate[chosen])
    return [[round(value, 4) for value in rate.tolist()] for rate in rates]


def _histogram(result: ood.OodResult, name: str) -> dict[str, list[float]]:
    """Return counts over the logarithm of a score: variances differ by orders of magnitude."""
    parts = (result.in_distribution, result.out_of_distribution)
    data, outside = (part[name].double().clamp_min(1e-12).log10() for part in parts)
    both = torch.cat([data, outside])
    low, high = float(both.min()), float(both.max())
    edges = torch.linspace(low, max(high, low + 1e-3), BINS + 1, dtype=torch.float64)
    counts = [torch.histc(part, BINS, float(edges[0]), float(edges[-1])).tolist() for part in (data, outside)]
    return {"edges": [round(edge, 4) for edge in edges.tolist()], "inside": counts[0], "outside": counts[1]}


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of progress."""
    who = f"{row['data']} / {row['outside']}, {row['part']}, {row['key']}, width {row['width']:g}, seed {row['seed']}: "
    if row["failed"]:
        return who + row["failed"]
    shown = {name: row["table"].get(name) for name in ("error", "typicality", *CURVES)}
    return who + ", ".join(f"{name} {one['auroc']:.3f}" for name, one in shown.items() if one)

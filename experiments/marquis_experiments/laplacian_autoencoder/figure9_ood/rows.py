"""The rows of `ood`: one model, or several trainings of one, against one out-of-distribution data set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import LaplacianAutoencoder, PosteriorAutoencoder, from_posterior, linearised
from marquis.autoencoders.base import BaseAutoencoder
from marquis.data import load as load_data
from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors, split_prefix
from marquis.tasks import ood
from marquis_experiments.common.cells import cell, stored
from marquis_experiments.laplacian_autoencoder.figure9_ood.layers import by_layer
from marquis_experiments.laplacian_autoencoder.models import Images, Place, Recipe, model

FACTORED = "online-kronecker-temperature-0.1"
READ_WARMER, TANGENT = f"{FACTORED}-read-at-1", f"{FACTORED}-linearised"
JOINED, JOINED_TANGENTS = f"{FACTORED}-together", f"{TANGENT}-together"
BOTH, BOTH_TANGENTS = f"{FACTORED}-both", f"{TANGENT}-both"
DEFAULT_TANGENT, POSTHOC_TANGENT = "online-sketched-linearised", "posthoc-kronecker-linearised"
READINGS = {
    READ_WARMER: FACTORED,
    TANGENT: FACTORED,
    DEFAULT_TANGENT: "online-sketched",
    POSTHOC_TANGENT: "posthoc-kronecker",
}
"""Rows that train nothing: the posterior of another row at temperature 1, linearised unless it is `READ_WARMER`."""
TOGETHER = {JOINED: (FACTORED, 3), JOINED_TANGENTS: (TANGENT, 3), BOTH: (FACTORED, 2), BOTH_TANGENTS: (TANGENT, 2)}
"""Ensembles of trainings: key to that of the single row and the number of trainings, with the first seeds."""
DISSECTED = ("online-sketched",)
"""Models whose layers are perturbed one by one."""
SHUFFLED = "shuffled"
"""Outliers that need no other data: in-distribution test images with their pixels in one random order."""
CURVES = ("output_variance", "latent_variance")
POINTS, BINS = 60, 40
BATCH = 512
"""Batch size; every batch samples the networks again, which for Kronecker factors costs as much as 100 images."""
KIND = "ood-scores"
SETS = {"inside": "in_distribution", "outside": "out_of_distribution", "train": "train"}
"""Names in a file of scores, and in an `OodResult`."""


@dataclass(frozen=True)
class Sizes:
    """How carefully every row is measured.

    Attributes:
        rows: In-distribution test images, and as many out-of-distribution ones.
        train: Training images, against which typicality and the combined score are measured.
        samples: Posterior samples of each model.
        ablation_samples: Posterior samples where settings are compared.
        layer_samples: Posterior samples for the variances by layer.
        layer_rows: Images of each side for the variances by layer.
    """

    rows: int = 500
    train: int = 300
    samples: int = 100
    ablation_samples: int = 30
    layer_samples: int = 20
    layer_rows: int = 300


@dataclass(frozen=True)
class Job:
    """A row: part of the page, recipe (whose data are in-distribution), model, seed, and the other data set."""

    part: str
    recipe: Recipe
    key: str
    seed: int
    outside: str

    @property
    def name(self) -> str:
        """Name of the row's file."""
        recipe = self.recipe
        named = [self.part, recipe.data, self.outside, recipe.architecture, f"{recipe.width:g}", self.key]
        return "-".join([*named, f"s{self.seed}"])

    @property
    def trained_as(self) -> str:
        """Key of the model that has to be trained for this row."""
        single = TOGETHER.get(self.key, (self.key,))[0]
        return READINGS.get(single, single)

    @property
    def singles(self) -> Sequence[Job]:
        """Rows of the single trainings of an ensemble; the row itself otherwise."""
        if self.key not in TOGETHER:
            return [self]
        key, trainings = TOGETHER[self.key]
        return [replace(self, key=key, seed=seed) for seed in range(trainings)]

    @property
    def dissected(self) -> bool:
        """Whether the layers are perturbed one by one, too."""
        return self.part == "main" and self.key in DISSECTED and self.seed == 0

    def samples(self, sizes: Sizes) -> int:
        """Return the number of posterior samples."""
        return sizes.ablation_samples if self.part in ("ablation", "network") else sizes.samples

    def described(self, sizes: Sizes) -> dict[str, Any]:
        """Return all that the row depends on."""
        measured = {"rows": sizes.rows, "train": sizes.train, "samples": self.samples(sizes)}
        if self.dissected:
            measured |= {"layer_samples": sizes.layer_samples, "layer_rows": sizes.layer_rows}
        row = {"part": self.part, "key": self.key, "seed": self.seed, "outside": self.outside}
        return {**row, **self.recipe.described(), **measured}


def is_there(place: Place, sizes: Sizes, job: Job) -> bool:
    """Return whether the row was computed before."""
    return stored(place.folder, job.name, job.described(sizes)) is not None


def one_row(place: Place, sizes: Sizes, job: Job, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Return one model against one out-of-distribution set, from the folder if it is there."""

    def compute() -> dict[str, Any]:
        if len(job.singles) > 1:
            return _joined(place, sizes, job.singles, say)
        images = _images(job.recipe, place.data_dir)
        outcome = model(place.shared, job.trained_as, job.seed, job.recipe, images, say)
        trained = {"train_seconds": outcome.cpu_seconds, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        before = time.process_time()
        result = {**trained, **summary(_evaluate(place, sizes, job, outcome.model))}
        result["evaluation_seconds"] = time.process_time() - before
        if job.dissected and isinstance(outcome.model, LaplacianAutoencoder):
            part, generator = slice(sizes.layer_rows), torch.Generator().manual_seed(job.seed)
            both = images.test[part].x, ood_images(job.outside, images, sizes.rows, place.data_dir)[part]
            result["layers"] = by_layer(outcome.model, *both, sizes.layer_samples, generator)
        return result

    return cell(place.folder, job.name, job.described(sizes), compute)


def read_as(trained: BaseAutoencoder, key: str) -> BaseAutoencoder:
    """Return the model of a row from the one that was trained for it."""
    if key not in READINGS:
        return trained
    if isinstance(trained, PosteriorAutoencoder):  # fitted at temperature 1
        return linearised(trained)
    assert isinstance(trained, LaplacianAutoencoder)
    if key != READ_WARMER:
        return linearised(trained, 1.0)
    return from_posterior(
        trained.encoder, trained.decoder, trained.posterior(posterior_temperature=1.0), trained.likelihood
    )


def _evaluate(place: Place, sizes: Sizes, job: Job, trained: BaseAutoencoder) -> ood.OodResult:
    """Score all images with the model of one training; the scores are kept."""
    images = _images(job.recipe, place.data_dir)
    inside, train = images.test[: sizes.rows].x, images.train[: sizes.train].x
    outside = ood_images(job.outside, images, sizes.rows, place.data_dir)
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(job.seed), "progress": False}
    autoencoder = read_as(trained, job.key)
    result = ood.evaluate(autoencoder, inside, outside, train, job.samples(sizes), batch_size=BATCH, **options)
    save_scores(place.folder, job.name, job.described(sizes), result)
    return result


def _joined(place: Place, sizes: Sizes, singles: Sequence[Job], say: Callable[[str], None]) -> dict[str, Any]:
    """Score an ensemble of trainings from the scores that the single rows kept."""
    before = time.process_time()
    rows = [one_row(place, sizes, job, say) for job in singles]
    failed = [row["failed"] for row in rows if row["failed"]]
    trained = {"train_seconds": sum(row["train_seconds"] for row in rows), "failed": failed[0] if failed else None}
    if failed:
        return trained
    results = []
    for job in singles:
        known = load_scores(place.folder, job.name, job.described(sizes))
        if known is None:  # a row from before scores were kept
            images = _images(job.recipe, place.data_dir)
            trained_model = model(place.shared, job.trained_as, job.seed, job.recipe, images, say).require()
            known = _evaluate(place, sizes, job, trained_model)
        results.append(known)
    return {**trained, **summary(ood.ensemble(results)), "evaluation_seconds": time.process_time() - before}


def save_scores(folder: Path, name: str, settings: Mapping[str, Any], result: ood.OodResult) -> None:
    """Write the scores of all images, with the settings that they depend on."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {stored: getattr(result, name) for stored, name in SETS.items()}
    tensors = {f"{stored}.{score}": value for stored, part in parts.items() for score, value in part.items()}
    header = {"settings": dict(settings), "table": result.table, "draws": result.samples}
    save_tensors(folder / f"{name}.safetensors", KIND, header, tensors)


def load_scores(folder: Path, name: str, settings: Mapping[str, Any]) -> ood.OodResult | None:
    """Return scores that were kept with the same settings; None if there are none, or if the file is damaged."""
    try:
        _, header, tensors = load_tensors(folder / f"{name}.safetensors", (KIND,))
    except DataError:
        return None
    if header["settings"] != json.loads(json.dumps(dict(settings))):
        return None
    inside, outside, train = (split_prefix(tensors, f"{part}.") for part in SETS)
    return ood.OodResult(inside, outside, train, header["table"], header["draws"])


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
    floor = 1e-12
    parts = (result.in_distribution, result.out_of_distribution)
    inside, outside = (part[name].double().clamp_min(floor).log10() for part in parts)
    both = torch.cat([inside, outside])
    low, high = float(both.min()), float(both.max())
    edges = torch.linspace(low, max(high, low + 1e-3), BINS + 1, dtype=torch.float64)
    counts = [torch.histc(part, BINS, float(edges[0]), float(edges[-1])).tolist() for part in (inside, outside)]
    return {"edges": [round(edge, 4) for edge in edges.tolist()], "inside": counts[0], "outside": counts[1]}


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of progress."""
    who = f"{row['data']} / {row['outside']}, {row['part']}, {row['key']}, width {row['width']:g}, seed {row['seed']}: "
    if row["failed"]:
        return who + row["failed"]
    shown = {name: row["table"].get(name) for name in ("error", "typicality", *CURVES)}
    return who + ", ".join(f"{name} {one['auroc']:.3f}" for name, one in shown.items() if one)

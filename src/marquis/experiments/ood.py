"""`ood`: who notices that an image comes from elsewhere (LAE Figures 9 and 10; methods.md 8.1).

Two trainings and three pairs: Fashion-MNIST inside with MNIST outside, the paper's pair, by the paper's convolutional
network; MNIST inside with KMNIST and Fashion-MNIST outside, by the dense one. And what makes the variances of the
Laplacian autoencoder tell them apart: its settings one by one, and its layers one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import LaplacianAutoencoder
from marquis.data import load as load_data
from marquis.experiments.cells import cell, timed_from_now, write_json
from marquis.experiments.ood_layers import by_layer
from marquis.experiments.ood_report import write_report
from marquis.experiments.shared_autoencoders import TASK_RECIPES, VARIANTS, Images, Recipe, model
from marquis.experiments.trained import shared_networks
from marquis.tasks import ood

MODELS = (
    *("ae", "ae-variance", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *("online-sketched", "online-sketched-paper-code", "online-sketched-paper"),
)
DISSECTED = ("online-sketched", "online-sketched-paper-code")
"""Models whose layers are looked at one by one."""
SHUFFLED = "shuffled"
"""Outside data for machines without other data: the inside's test images, the pixels in one random order."""
CURVES = ("output_variance", "latent_variance")
POINTS, BINS = 60, 40
WIDTHS = (0.25, 0.5, 2.0)
"""Of the ablation's other networks, as factors on its own width."""


@dataclass(frozen=True)
class Training:
    """Data inside, data outside and how the models are trained.

    Attributes:
        recipe: Of the models; its data are the inside.
        outside: Names of the data sets outside.
        seeds: How many trainings of every model.
        again: Models that are trained with more than one seed; None for all.
        extra: Further models.
        ablation: Of the default's settings, or None.
    """

    recipe: Recipe
    outside: tuple[str, ...]
    seeds: int
    again: tuple[str, ...] | None = None
    extra: tuple[str, ...] = ()
    ablation: Recipe | None = None


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        trainings: One after the other.
        rows: Images inside and as many outside.
        train: Training images, against which typicality and the combined score are measured.
        samples: Draws of each model.
        ablation_samples: Likewise where settings are compared.
        layer_samples: Draws for the variances by layer.
        layer_rows: Images inside and outside for these.
    """

    trainings: tuple[Training, ...]
    rows: int = 500
    train: int = 300
    samples: int = 100
    ablation_samples: int = 30
    layer_samples: int = 20
    layer_rows: int = 300


FASHION = Recipe("fashion-mnist", 10_000, 20, "fashion-conv", 0.25)
WARM = "online-sketched-temperature-0.1"
AGAIN = ("ae", "posthoc-sketched", "online-sketched", WARM)
"""What is trained with a further seed at the default size."""
SETTINGS = {
    "quick": Settings(
        (Training(TASK_RECIPES["quick"], (SHUFFLED,), 1, ablation=TASK_RECIPES["quick"]),), 60, 50, 8, 4, 4
    ),
    "default": Settings(
        (
            Training(FASHION, ("mnist",), 2, AGAIN, (WARM,), replace(FASHION, images=5_000, epochs=10)),
            Training(TASK_RECIPES["default"], ("kmnist", "fashion-mnist"), 3),
        )
    ),
    "full": Settings(
        (
            Training(
                Recipe("fashion-mnist", 55_000, 200, "fashion-conv", validation=5_000),
                ("mnist",),
                5,
                extra=(WARM,),
                ablation=FASHION,
            ),
            Training(TASK_RECIPES["full"], ("kmnist", "fashion-mnist"), 5),
        ),
        rows=5000,
        train=5000,
        ablation_samples=100,
        layer_samples=100,
        layer_rows=1000,
    ),
}


def run(
    size: str = "default",
    out: str | Path = "runs/ood",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; models are kept, and shared with other experiments."""
    settings = SETTINGS[size]
    folder, shared = Path(out) / size, shared_networks(out)
    rows: list[dict[str, Any]] = []
    results = {"size": size, "settings": asdict(settings), "rows": rows}
    timed = timed_from_now(say)

    try:
        for training in settings.trainings:
            loaded: dict[tuple[str, int, int], Images] = {}
            for part, recipe, key, seed in jobs(training):
                wanted = (recipe.data, recipe.images, recipe.validation)
                images = loaded[wanted] = loaded.get(wanted) or Images.load(recipe, data_dir)
                for outside in training.outside:
                    place = Place(folder, shared, data_dir, outside, part)
                    rows.append(one_row(place, settings, recipe, images, key, seed, timed))
                    timed(_line(rows[-1]))
                    write_json(folder / "results.json", results)
    finally:  # a run that is stopped shows what it has
        page = write_report(folder, results)
    return page


def jobs(training: Training) -> list[tuple[str, Recipe, str, int]]:
    """Part of the page, recipe, model and seed: all models with one seed first, the ablation last."""
    keys = (*MODELS, *training.extra)
    wanted = [
        ("main", training.recipe, key, seed)
        for seed in range(training.seeds)
        for key in keys
        if seed == 0 or training.again is None or key in training.again
    ]
    small = training.ablation
    if small is not None:
        changed = [f"online-sketched{end}" for end in ("", *VARIANTS)] + ["online-approximate"]
        wanted += [("ablation", small, key, 0) for key in changed]
        others = [replace(small, decay=0.5), *(replace(small, width=factor * small.width) for factor in WIDTHS)]
        if small.architecture != "dense":
            others.append(replace(small, architecture="dense", width=1.0))
        wanted += [("network", other, "online-sketched", 0) for other in others]
    return wanted


@dataclass(frozen=True)
class Place:
    """Where a row is kept, where its models are, and what it is measured against."""

    folder: Path
    shared: Path
    data_dir: str | Path | None
    outside: str
    part: str


def one_row(
    place: Place,
    settings: Settings,
    recipe: Recipe,
    images: Images,
    key: str,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """One model against one set from outside, from the folder if it is there."""
    samples = settings.samples if place.part == "main" else settings.ablation_samples
    sizes = {"rows": settings.rows, "train": settings.train, "samples": samples}
    dissected = place.part == "main" and key in DISSECTED and seed == 0
    if dissected:
        sizes |= {"layer_samples": settings.layer_samples, "layer_rows": settings.layer_rows}
    described = {"part": place.part, "key": key, "seed": seed, "outside": place.outside, **recipe.described(), **sizes}

    def compute() -> dict[str, Any]:
        outcome = model(place.shared, key, seed, recipe, images, say)
        trained = {"train_seconds": outcome.cpu_seconds, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        before = time.process_time()
        inside = images.test[: settings.rows].x
        outside = outside_images(place.outside, images, settings.rows, place.data_dir)
        generator = torch.Generator().manual_seed(seed)
        told = {"generator": generator, "progress": False}
        found = ood.evaluate(outcome.model, inside, outside, images.train[: settings.train].x, samples, **told)
        result = {**trained, **summary(found), "evaluation_seconds": time.process_time() - before}
        if dissected and isinstance(outcome.model, LaplacianAutoencoder):
            part = slice(settings.layer_rows)
            result["layers"] = by_layer(outcome.model, inside[part], outside[part], settings.layer_samples, generator)
        return result

    name = "-".join([place.part, recipe.data, place.outside, recipe.architecture, f"{recipe.width:g}", key, f"s{seed}"])
    return cell(place.folder, name, described, compute)


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


def _line(row: dict[str, Any]) -> str:
    who = f"{row['data']} / {row['outside']}, {row['part']}, {row['key']}, width {row['width']:g}, seed {row['seed']}: "
    if row["failed"]:
        return who + row["failed"]
    shown = {name: row["table"].get(name) for name in ("error", "typicality", *CURVES)}
    return who + ", ".join(f"{name} {found['auroc']:.3f}" for name, found in shown.items() if found)

"""`celeba`: forty attributes of faces from ten labelled images (LAE Table 4, Figure 13; methods.md 8.4, 8.6).

CelebA at 64x64, five convolutions, codes of 64 numbers, multi-label nearest neighbours. Every model meets the same
labelled images. The licence forbids passing images on, and a reconstruction shows a person: the picture has only faces
averaged over hundreds of images, and faces that the decoder makes of random codes.

At the quick size, for which no data need be there, "faces" are pieces of scikit-learn's two photographs, and their
attributes are computed from their colours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.data import Data
from marquis.data import load as load_data
from marquis.errors import DataError
from marquis.tasks.embedding import permutation
from marquis.tasks.semi_supervised import MultiLabelResult, evaluate_multilabel_codes
from marquis_experiments.celeba_faces import draw_faces
from marquis_experiments.celeba_report import write_report
from marquis_experiments.cells import cell, timed_from_now, write_json
from marquis_experiments.few_labels import codes_of, width
from marquis_experiments.laplacian_autoencoder.models import Images, Recipe, model, train_ahead
from marquis_experiments.trained import shared_networks

PIXELS, LABELS_ONLY = "pixels", "labels"
MODELS = (
    *("ae", "vae", "dropout", "online-sketched"),
    *("online-sketched-temperature-0.1", "online-sketched-paper-code"),
)
SHOWN = ("Arched_Eyebrows", "Attractive", "Bald", "Wearing_Lipstick", "Heavy_Makeup")
PATCHES = "patches"
LABELS_SEED = 1000
EDGE, BATCH = 64, 50


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        recipe: Of the models.
        seeds: Of models, labels and draws.
        test: How many test images give labelled and evaluated ones.
        labelled: How many have labels.
        repetitions: How often labels are drawn anew, per seed.
        copies: Draws of the model for each image.
        faces: Generated faces, and averaged groups, in the picture.
        averaged: Images in each averaged group; the data have five of each person.
        models: Rows with a model.
    """

    recipe: Recipe
    seeds: int = 2
    test: int = 1_000
    labelled: int = 10
    repetitions: int = 50
    copies: int = 50
    faces: int = 4
    averaged: int = 300
    models: tuple[str, ...] = MODELS


SETTINGS = {
    "quick": Settings(Recipe(PATCHES, 64, 1, "celeba-conv", 0.1, 32, latent=8), 1, 80, 10, 5, 6, 2, 20),
    "default": Settings(Recipe("celeba", 16_000, 4, "celeba-conv", 0.25, 32, latent=64), 2, 2_000, 10, 30, 30),
    "full": Settings(
        Recipe("celeba", 162_770, 200, "celeba-conv", 1.0, 128, validation=19_867, latent=64),
        *(5, 10_000, 10, 50, 100),
        averaged=2_000,  # the official set has up to 35 images of a person
    ),
}


def run(
    size: str = "default",
    out: str | Path = "runs/celeba",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; models are kept."""
    settings = SETTINGS[size]
    folder, shared = Path(out) / size, shared_networks(out)
    images = load_images(settings, data_dir)
    rows: list[dict[str, Any]] = []
    timed = timed_from_now(say)

    results = {"size": size, "settings": asdict(settings), "shown": shown(images.test), "rows": rows}
    if size != "quick":
        wanted = [(key, seed) for seed in range(settings.seeds) for key in settings.models]
        load_again = partial(load_images, settings, data_dir)
        train_ahead(shared, settings.recipe, wanted, images, load_again, timed)
    try:
        for seed in range(settings.seeds):
            for name in (LABELS_ONLY, PIXELS, *settings.models):
                row = one_row(folder, shared, settings, images, name, seed, timed)
                rows.append(row)
                timed(f"{name}, seed {seed}: " + (row["failed"] or f"overall {np.mean(best_known(row)):.3f}"))
                write_json(folder / "results.json", results)
        draw_faces(folder / "celeba-faces.png", shared, settings, images, timed)
    finally:  # a run that is stopped shows what it has
        page = write_report(folder, results)
    return page


def shown(test: Data) -> list[str]:
    """The paper's five attributes; all there are where the data are others."""
    names = test.target_names or ()
    return [name for name in SHOWN if name in names] or list(names)


def load_images(settings: Settings, data_dir: str | Path | None) -> Images:
    """Training images and test images with attributes."""
    recipe = settings.recipe
    if recipe.data == PATCHES:
        every = patches(recipe.images + settings.test)
        return Images(every[: recipe.images], None, every[recipe.images :])
    wanted = {"train": recipe.images, "validation": recipe.validation, "test": settings.test}
    found = {split: load_data(recipe.data, split, data_dir, limit=n) for split, n in wanted.items() if n}
    short = [split for split, data in found.items() if len(data) < wanted[split]]
    if short:
        raise DataError(
            f"{recipe.data} has {len(found[short[0]])} images for {short[0]}, this size wants {wanted[short[0]]}: the "
            "full size needs the official folder."
        )
    return Images(found["train"], found.get("validation"), found["test"])


def patches(count: int) -> Data:
    """Random pieces, 64x64, of scikit-learn's two photographs, with attributes that can be seen in them."""
    from sklearn.datasets import load_sample_images

    photographs = [np.asarray(picture) for picture in load_sample_images().images]
    source = np.random.default_rng(0)
    pieces, which = [], source.integers(len(photographs), size=count)
    for number in which:
        height, breadth = photographs[number].shape[:2]
        top, left = source.integers(height - EDGE), source.integers(breadth - EDGE)
        pieces.append(photographs[number][top : top + EDGE, left : left + EDGE])
    stored = torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()
    red, green, blue = stored.double().mean((2, 3)).unbind(1)
    bright = red + green + blue
    told = torch.stack([torch.from_numpy(which == 1), bright > bright.median(), red > green, blue > red], 1)
    names = ("Flower", "Bright", "Reddish", "Bluish")
    return Data(stored, told.float(), PATCHES, "all", target_names=names, source="scikit-learn")


def one_row(
    folder: Path,
    shared: Path,
    settings: Settings,
    images: Images,
    name: str,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """One row of the tables for one seed, from the folder if it is there."""
    kept = {
        key: value for key, value in asdict(settings).items() if key not in ("seeds", "faces", "averaged", "models")
    }
    test = images.test

    def compute() -> dict[str, Any]:
        before = time.process_time()
        if name == LABELS_ONLY:
            return {"failed": None, "ways": {"mean": summary(most_common(test, settings, seed), test)}, "width": 0.0}
        if name == PIXELS:
            return {"failed": None, **measured(test.x.flatten(1)[None], None, test, settings, seed)}
        outcome = model(shared, name, seed, settings.recipe, images, say)
        if outcome.model is None:
            return {"failed": outcome.failed}
        own = outcome.model
        error = squared_error(own, test.x[:200])
        found = measured(*codes_of(own, test.x, settings.copies, seed, BATCH), test, settings, seed)
        cost = {"train_seconds": outcome.cpu_seconds, "cpu_seconds": time.process_time() - before}
        return {"failed": None, **found, "squared_error": error, **cost}

    return cell(folder, f"{name}-s{seed}", {"name": name, "seed": seed, **kept}, compute)


def measured(codes: Tensor, means: Tensor | None, test: Data, settings: Settings, seed: int) -> dict[str, Any]:
    """Accuracies for each way to use the copies (see `few_labels`); the same labelled images for each."""
    means = codes.mean(0) if means is None else means

    def judged(own: Tensor, count: Any) -> dict[str, Any]:
        labels = torch.Generator().manual_seed(LABELS_SEED + seed)
        options = {"means": means, "repetitions": settings.repetitions, "count": count, "generator": labels}
        return summary(evaluate_multilabel_codes(own, attributes(test), settings.labelled, **options), test)

    ways = {"mean": judged(means[None], "codes")}
    if len(codes) > 1:
        ways |= {"codes": judged(codes, "codes"), "data": judged(codes, "data")}
    return {"ways": ways, "width": width(codes, means)}


def attributes(test: Data) -> Tensor:
    """0 or 1, `[n, A]`."""
    if test.y is None:
        raise DataError(f"{test.name} has no attributes.")
    return test.y.long()


def most_common(test: Data, settings: Settings, seed: int) -> MultiLabelResult:
    """No code at all: for every attribute the commoner answer of the labelled images; a tie says no."""
    truth, labels = attributes(test), torch.Generator().manual_seed(LABELS_SEED + seed)
    sets = [permutation(len(truth), labels)[: settings.labelled] for _ in range(settings.repetitions)]
    found = []
    for chosen in sets:
        rest = torch.ones(len(truth), dtype=torch.bool)
        rest[chosen] = False
        answer = (truth[chosen].double().mean(0) > 0.5).long()
        share = truth[rest].double().mean(0)
        found.append((torch.where(answer == 1, share, 1 - share), torch.maximum(share, 1 - share)))
    accuracy, majority = (torch.stack(column) for column in zip(*found, strict=True))
    half = torch.full_like(accuracy, 0.5)
    names = test.target_names or ()
    return MultiLabelResult(tuple(names), accuracy, half, majority, (settings.labelled,), settings.labelled, 1)


def summary(found: MultiLabelResult, test: Data) -> dict[str, Any]:
    """What the page needs: by repetition overall and for the shown attributes, means of all; rounded."""
    names = list(test.target_names or found.names)

    def rounded(values: Tensor) -> list[float]:
        return [round(value, 6) for value in values.tolist()]

    return {
        "overall": rounded(found.accuracy.mean(1)),
        "balanced": rounded(found.balanced.nanmean(1)),
        "majority": dict(zip(names, rounded(found.majority.mean(0)), strict=True)),
        "means": dict(zip(names, rounded(found.accuracy.mean(0)), strict=True)),
        "attributes": {name: rounded(found.accuracy[:, names.index(name)]) for name in shown(test)},
        "neighbours": list(found.neighbours),
    }


def squared_error(own: Any, x: Tensor) -> float:
    """Of the mean reconstruction, per pixel and colour."""
    said = own.reconstruct(x, 10, generator=torch.Generator().manual_seed(0))
    return float((said.mean - x).double().square().mean())


def best_known(row: dict[str, Any]) -> list[float]:
    """Overall accuracies by the published way."""
    return row["ways"].get("codes", row["ways"]["mean"])["overall"]

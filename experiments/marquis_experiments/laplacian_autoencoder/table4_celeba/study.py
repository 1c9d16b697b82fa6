"""The study `celeba`: forty attributes of faces from ten labelled images (LAE Table 4, Figure 13).

CelebA at 64x64, five convolutions, codes of 64 numbers, multi-label nearest neighbours (docs/method/tasks.md). All
models use the same labelled images. The licence forbids passing images on, and a reconstruction shows a person: the
picture has only faces averaged over hundreds of images, and faces that the decoder makes of random codes.

At the quick size, which needs no data, "faces" are patches of scikit-learn's two photographs, and their attributes are
computed from their colours.
"""

from __future__ import annotations

import time
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
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.laplacian_autoencoder.codes import codes_of, scores_by_way
from marquis_experiments.laplacian_autoencoder.models import Images, Recipe, model, train_in_parallel
from marquis_experiments.laplacian_autoencoder.table4_celeba.faces import draw_faces
from marquis_experiments.laplacian_autoencoder.table4_celeba.page import LABELS_ONLY, draw, values

PIXELS = "pixels"
MODELS = (
    *("ae", "vae", "dropout", "online-sketched"),
    *("online-sketched-temperature-0.1", "online-sketched-paper-code"),
)
SHOWN = ("Arched_Eyebrows", "Attractive", "Bald", "Wearing_Lipstick", "Heavy_Makeup")
PATCHES = "patches"
LABELS_SEED = 1000
EDGE, BATCH = 64, 50


def measure(run: Run) -> dict[str, Any]:
    """Compute every row and draw the faces; models are kept."""
    settings = run.settings
    images = load_images(settings, run.data_dir)
    if run.size != "quick":
        trainings = [(key, seed) for seed in range(settings.seeds) for key in settings.models]
        load_again = partial(load_images, settings, run.data_dir)
        train_in_parallel(run.shared, settings.recipe, trainings, images, load_again, run.say)
    rows: list[dict[str, Any]] = []
    for seed in range(settings.seeds):
        for name in (LABELS_ONLY, PIXELS, *settings.models):
            row = one_row(run, images, name, seed)
            rows.append(row)
            run.say(f"{name}, seed {seed}: " + (row["failed"] or f"overall {np.mean(overall(row)):.3f}"))
    draw_faces(run.folder / "celeba-faces.png", run, images)
    return {"settings": settings.plain(), "shown": shown(images.test), "rows": rows}


def shown(test: Data) -> list[str]:
    """Return the paper's five attributes, or all attributes of other data."""
    names = test.target_names or ()
    return [name for name in SHOWN if name in names] or list(names)


def load_images(settings: Settings, data_dir: str | Path | None) -> Images:
    """Load training images and test images with attributes."""
    recipe = settings.recipe
    if recipe.data == PATCHES:
        every = patches(recipe.images + settings.test)
        return Images(every[: recipe.images], None, every[recipe.images :])
    wanted = {"train": recipe.images, "validation": recipe.validation, "test": settings.test}
    loaded = {split: load_data(recipe.data, split, data_dir, limit=n) for split, n in wanted.items() if n}
    short = [split for split, data in loaded.items() if len(data) < wanted[split]]
    if short:
        raise DataError(
            f"{recipe.data} has {len(loaded[short[0]])} images for {short[0]}, this size wants {wanted[short[0]]}: the "
            "full size needs the official folder."
        )
    return Images(loaded["train"], loaded.get("validation"), loaded["test"])


def patches(count: int) -> Data:
    """Return random patches, 64x64, of scikit-learn's two photographs, with attributes of their colours."""
    from sklearn.datasets import load_sample_images

    photographs = [np.asarray(photograph) for photograph in load_sample_images().images]
    source = np.random.default_rng(0)
    pieces, which = [], source.integers(len(photographs), size=count)
    for number in which:
        height, breadth = photographs[number].shape[:2]
        top, left = source.integers(height - EDGE), source.integers(breadth - EDGE)
        pieces.append(photographs[number][top : top + EDGE, left : left + EDGE])
    images = torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()
    red, green, blue = images.double().mean((2, 3)).unbind(1)
    bright = red + green + blue
    attributes = torch.stack([torch.from_numpy(which == 1), bright > bright.median(), red > green, blue > red], 1)
    names = ("Flower", "Bright", "Reddish", "Bluish")
    return Data(images, attributes.float(), PATCHES, "all", target_names=names, source="scikit-learn")


def one_row(run: Run, images: Images, name: str, seed: int) -> dict[str, Any]:
    """Return one row of the tables for one seed."""
    settings, test = run.settings, images.test

    def compute() -> dict[str, Any]:
        before = time.process_time()
        if name == LABELS_ONLY:
            return {"failed": None, "ways": {"mean": summary(most_common(test, settings, seed), test)}, "width": 0.0}
        if name == PIXELS:
            return {"failed": None, **measured(test.x.flatten(1)[None], None, test, settings, seed)}
        outcome = model(run.shared, name, seed, settings.recipe, images, run.say)
        if outcome.model is None:
            return {"failed": outcome.failed}
        error = squared_error(outcome.model, test.x[:200])
        scores = measured(*codes_of(outcome.model, test.x, settings.copies, seed, BATCH), test, settings, seed)
        cost = {"train_seconds": outcome.cpu_seconds, "cpu_seconds": time.process_time() - before}
        return {"failed": None, **scores, "squared_error": error, **cost}

    described = {"name": name, "seed": seed, **settings.without("seeds", "faces", "averaged", "models")}
    return run.cell(f"{name}-s{seed}", described, compute, "rows")


def measured(codes: Tensor, means: Tensor | None, test: Data, settings: Settings, seed: int) -> dict[str, Any]:
    """Compute accuracies for each way to use the samples (as in `few-labels`), with the same labelled images."""

    def accuracy(codes: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        options |= {"repetitions": settings.repetitions, "generator": torch.Generator().manual_seed(LABELS_SEED + seed)}
        return summary(evaluate_multilabel_codes(codes, attributes(test), settings.labelled, **options), test)

    return scores_by_way(codes, means, accuracy)


def attributes(test: Data) -> Tensor:
    """Return the attributes as 0 or 1, `[n, A]`."""
    if test.y is None:
        raise DataError(f"{test.name} has no attributes.")
    return test.y.long()


def most_common(test: Data, settings: Settings, seed: int) -> MultiLabelResult:
    """Guess every attribute's more common value among the labelled images, without a code; a tie means no."""
    truth, labels = attributes(test), torch.Generator().manual_seed(LABELS_SEED + seed)
    sets = [permutation(len(truth), labels)[: settings.labelled] for _ in range(settings.repetitions)]
    scores = []
    for chosen in sets:
        rest = torch.ones(len(truth), dtype=torch.bool)
        rest[chosen] = False
        answer = (truth[chosen].double().mean(0) > 0.5).long()
        share = truth[rest].double().mean(0)
        scores.append((torch.where(answer == 1, share, 1 - share), torch.maximum(share, 1 - share)))
    accuracy, majority = (torch.stack(column) for column in zip(*scores, strict=True))
    half = torch.full_like(accuracy, 0.5)
    names = test.target_names or ()
    return MultiLabelResult(tuple(names), accuracy, half, majority, (settings.labelled,), settings.labelled, 1)


def summary(result: MultiLabelResult, test: Data) -> dict[str, Any]:
    """Return what the page needs: by repetition overall and for the shown attributes, means of all; rounded."""
    names = list(test.target_names or result.names)

    def rounded(values: Tensor) -> list[float]:
        return [round(value, 6) for value in values.tolist()]

    return {
        "overall": rounded(result.accuracy.mean(1)),
        "balanced": rounded(result.balanced.nanmean(1)),
        "majority": dict(zip(names, rounded(result.majority.mean(0)), strict=True)),
        "means": dict(zip(names, rounded(result.accuracy.mean(0)), strict=True)),
        "attributes": {name: rounded(result.accuracy[:, names.index(name)]) for name in shown(test)},
        "neighbours": list(result.neighbours),
    }


def squared_error(autoencoder: Any, x: Tensor) -> float:
    """Compute the squared error of the mean reconstruction per pixel and colour."""
    outputs = autoencoder.reconstruct(x, 10, generator=torch.Generator().manual_seed(0))
    return float((outputs.mean - x).double().square().mean())


def overall(row: dict[str, Any]) -> list[float]:
    """Return overall accuracies by the published way."""
    return row["ways"].get("codes", row["ways"]["mean"])["overall"]


# fmt: off
STUDY = Study(
    "celeba", Path(__file__).with_name("page.md"), measure, values, draw, cells="",
    default={
        "recipe": Recipe("celeba", 16_000, 4, "celeba-conv", 0.25, 32, latent=64), "seeds": 2, "test": 2_000,
        "labelled": 10, "repetitions": 30, "copies": 30, "faces": 4, "averaged": 300, "models": MODELS,
    },
    quick={
        "recipe": Recipe(PATCHES, 64, 1, "celeba-conv", 0.1, 32, latent=8), "seeds": 1, "test": 80, "repetitions": 5,
        "copies": 6, "faces": 2, "averaged": 20,
    },
    full={  # the official set has up to 35 images of a person
        "recipe": Recipe("celeba", 162_770, 200, "celeba-conv", 1.0, 128, validation=19_867, latent=64), "seeds": 5,
        "test": 10_000, "repetitions": 50, "copies": 100, "averaged": 2_000,
    },
)
# fmt: on

"""How `imputation` fills in the missing half with one model, and what the answers are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders.base import BaseAutoencoder
from marquis.errors import DataError
from marquis.tasks.imputation import Imputation, impute, impute_weighted
from marquis.tasks.masks import top_half
from marquis_experiments.classifiers import (
    CHUNK,
    ImageData,
    Labelled,
    Recipe,
    build,
    load_images,
    train_map,
    trained_map,
)
from marquis_experiments.trained import trained

TRAINING = "training images"
WEIGHTED = "weighted codes"


@dataclass(frozen=True)
class Procedure:
    """A way of filling in the missing half.

    Attributes:
        start: What the missing pixels start from: "noise" (the paper), "black", "mean image" (of the training images),
            or "training images": for every version the pixels of another training image, drawn at random. "weighted
            codes" is not a start but another procedure: `marquis.tasks.imputation.impute_weighted`.
        versions: S1, answers per image.
        averaged: S2, networks that the second stage averages.
        rounds: How often observed pixels are put back and reconstructed again.
        exponent: On the likelihood of the given pixels; for weighted codes, like those below.
        donors: How many training images give their codes.
        networks: How many networks reconstruct each of them.
    """

    start: str = "noise"
    versions: int = 5
    averaged: int = 5
    rounds: int = 1
    exponent: float = 0.0
    donors: int = 0
    networks: int = 0

    def described(self) -> dict[str, Any]:
        """What is set, for cells: what only weighted codes have does not make cells of the two stages strangers."""
        return asdict(self) if self.weighted else {name: getattr(self, name) for name in TWO_STAGES}

    @property
    def weighted(self) -> bool:
        """Whether codes of training images are weighted, instead of the two stages."""
        return self.start == WEIGHTED

    @property
    def name(self) -> str:
        """For tables."""
        if self.weighted:
            return f"{self.start}, {self.versions} versions, exponent {self.exponent:g}"
        return f"{self.start}, {self.versions} × {self.averaged}, {self.rounds} round{'s' * (self.rounds > 1)}"


TWO_STAGES = ("start", "versions", "averaged", "rounds")
PUBLISHED = Procedure()


@dataclass(frozen=True, eq=False)
class Judge:
    """Images to impute and the classifier that reads the result.

    Attributes:
        classifier: Images in [0, 1] to logits, in evaluation mode; trained on training rows of complete images.
        half_classifier: The same network trained on images whose missing half is black.
        training: Images that starts are drawn from: those that the autoencoders were trained on.
        validation: What procedures are chosen on: rows that neither autoencoder nor classifier was fitted to.
        test: What is reported; the first ones of `all_test`.
        all_test: What weighted codes are reported on, too.
    """

    classifier: nn.Module
    half_classifier: nn.Module
    training: Tensor
    validation: Labelled
    test: Labelled
    all_test: Labelled

    @property
    def missing(self) -> Tensor:
        """True where a pixel is hidden: the upper half."""
        return top_half(self.training.shape[1:])


class Reader(nn.Module):
    """A classifier of standardised 28 x 28 images, as a function of images in [0, 1] of the data's own size."""

    def __init__(self, network: nn.Module, data: ImageData) -> None:
        super().__init__()
        self.network, self._data = network, data

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, 10]`."""
        return torch.cat([self.network(self._data.standardised(part)) for part in images.split(CHUNK)])


@dataclass(frozen=True)
class ClassifierSettings:
    """Training of the two classifiers: rows, epochs, widths (`half_...`: of the one of lower halves), prior, batch."""

    train: int = 55_000
    epochs: int = 6
    channels: tuple[int, ...] = (24, 32, 48)
    hidden: tuple[int, ...] = (32, 32)
    half_train: int = 20_000
    half_epochs: int = 3
    precision: float = 3.0
    batch: int = 128


def readers(
    shared: Path, name: str, settings: ClassifierSettings, data_dir: str | Path | None
) -> tuple[nn.Module, nn.Module]:
    """The classifier of complete images and the one of lower halves, trained once and kept."""
    data = load_images(name, settings.train, 1, 1, data_dir)
    shape = {"channels": list(settings.channels), "hidden": list(settings.hidden)}
    whole = trained_map(shared, "cnn", data, settings.precision, Recipe(settings.epochs, settings.batch), 0, shape)
    black = (0.0 - data.centre) / data.spread
    rows = data.train.x[: settings.half_train]
    halves = Labelled(torch.where(top_half(rows.shape[1:]), black, rows), data.train.y[: settings.half_train])
    recipe = Recipe(settings.half_epochs, settings.batch)
    described = {"data": name, "rows": len(halves), "precision": settings.precision, **recipe.described(), **shape}
    half = trained(
        shared,
        f"{name}-cnn-lower-half-s0",
        {"kind": "cnn of lower halves", **described},
        lambda: build("cnn", shape, 0),
        lambda network: train_map(network, halves, settings.precision, recipe, 1000),
    )
    return Reader(whole, data).eval().requires_grad_(False), Reader(half, data).eval().requires_grad_(False)


def filled_in(
    own: BaseAutoencoder, x: Tensor, missing: Tensor, how: Procedure, training: Tensor, generator: torch.Generator
) -> Imputation:
    """The answers of one model to the lower halves of `x`.

    From "training images" every version is an imputation of its own, so that versions differ even if the model has no
    uncertainty; `filled` is then that of the first version, and the paper's definition of the error means nothing.
    """
    options: dict[str, Any] = {"generator": generator, "progress": False}
    if how.weighted:
        options |= {"exponent": how.exponent, "networks": how.networks, "samples": how.versions, "batch_size": 1000}
        return impute_weighted(own, x, training[: how.donors], missing, **options)
    options |= {"averaged": how.averaged, "rounds": how.rounds}
    options |= {"batch_size": len(x)}  # all images meet the same networks
    if how.start != TRAINING:
        return impute(own, x, missing, samples=how.versions, fill=_fill(how.start, training), **options)
    each = []
    for _ in range(how.versions):
        rows = torch.randint(len(training), (len(x),), generator=generator)
        each.append(impute(own, x, missing, samples=1, fill=training[rows], **options))
    first = each[0]
    within, noise = (
        torch.stack([getattr(one, name) for one in each]).mean(0) for name in ("within_variance", "noise_variance")
    )
    samples, reconstructions = (
        torch.cat([getattr(one, name) for one in each]) for name in ("samples", "reconstructions")
    )
    return Imputation(samples, reconstructions, first.missing, first.filled, within, noise, first.averaged)


def _fill(start: str, training: Tensor) -> str | float | Tensor:
    fills: dict[str, Callable[[], str | float | Tensor]] = {
        "noise": lambda: "noise",
        "black": lambda: 0.0,
        "mean image": lambda: training.mean(0),
    }
    if start not in fills:
        raise DataError(f"no start is called {start!r}; there are: {', '.join((*fills, TRAINING, WEIGHTED))}.")
    return fills[start]()

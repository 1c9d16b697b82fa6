"""How `imputation` fills in the missing half with one model, and the classifiers that score the result."""

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
from marquis_experiments.common.images import CHUNK, ImageData, Labelled, load_images
from marquis_experiments.common.networks import image_network, trained
from marquis_experiments.linearised_laplace.classifiers import Recipe, train_map, trained_map

TRAINING = "training images"
WEIGHTED = "weighted codes"


@dataclass(frozen=True)
class Procedure:
    """A way of filling in the missing half.

    Attributes:
        start: What the missing pixels start from: "noise" (the paper), "black", "mean image" (of the training images),
            or "training images": for every imputation the pixels of another random training image. "weighted codes" is
            another procedure: importance-weighted imputation.
        versions: S1, imputations per image.
        averaged: S2, networks that the second stage averages.
        rounds: How often observed pixels are put back and reconstructed again.
        exponent: Exponent on the likelihood of the observed pixels, for importance weights.
        donors: Size of the reference set of training images, for importance weights.
        networks: Networks that reconstruct each of them, for importance weights.
    """

    start: str = "noise"
    versions: int = 5
    averaged: int = 5
    rounds: int = 1
    exponent: float = 0.0
    donors: int = 0
    networks: int = 0

    def described(self) -> dict[str, Any]:
        """Return what a cell depends on; options of importance weights are left out of the cells of the two stages."""
        return asdict(self) if self.weighted else {name: getattr(self, name) for name in TWO_STAGES}

    @property
    def weighted(self) -> bool:
        """Whether imputations are importance-weighted, instead of by the two stages."""
        return self.start == WEIGHTED

    @property
    def name(self) -> str:
        """Name in tables and cells."""
        if self.weighted:
            return f"{self.start}, {self.versions} versions, exponent {self.exponent:g}"
        return f"{self.start}, {self.versions} × {self.averaged}, {self.rounds} round{'s' * (self.rounds > 1)}"


TWO_STAGES = ("start", "versions", "averaged", "rounds")
PUBLISHED = Procedure()


@dataclass(frozen=True, eq=False)
class Judge:
    """Images to impute and the classifier that scores the result.

    Attributes:
        classifier: Maps images in [0, 1] to logits, in evaluation mode; trained on complete images.
        half_classifier: The same network trained on images whose missing half is black.
        training: Images that the autoencoders were trained on.
        validation: Images that procedures are chosen on; neither autoencoder nor classifier was fitted to them.
        test: Test images; the first ones of `all_test`.
        all_test: Test images of some importance-weighted rows.
    """

    classifier: nn.Module
    half_classifier: nn.Module
    training: Tensor
    validation: Labelled
    test: Labelled
    all_test: Labelled

    @property
    def missing(self) -> Tensor:
        """Mask that is True where a pixel is missing: the upper half."""
        return top_half(self.training.shape[1:])


class Reader(nn.Module):
    """A classifier of standardised 28 x 28 images, as a function of images in [0, 1] of the data's size."""

    def __init__(self, network: nn.Module, data: ImageData) -> None:
        super().__init__()
        self.network, self._data = network, data

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `[B, 10]`."""
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
    """Return the classifier of complete images and the one of lower halves, trained once and kept."""
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
        lambda: image_network("cnn", shape, 0),
        lambda network: train_map(network, halves, settings.precision, recipe, 1000),
    )
    return Reader(whole, data).eval().requires_grad_(False), Reader(half, data).eval().requires_grad_(False)


def filled_in(
    autoencoder: BaseAutoencoder,
    x: Tensor,
    missing: Tensor,
    how: Procedure,
    training: Tensor,
    generator: torch.Generator,
) -> Imputation:
    """Impute the upper halves of `x` with one model.

    From "training images" every imputation has its own start, so that imputations differ even if the model has no
    uncertainty; `filled` is then that of the first, and the paper's definition of the error means nothing.
    """
    options: dict[str, Any] = {"generator": generator, "progress": False}
    if how.weighted:
        options |= {"exponent": how.exponent, "networks": how.networks, "samples": how.versions, "batch_size": 1000}
        return impute_weighted(autoencoder, x, training[: how.donors], missing, **options)
    options |= {"averaged": how.averaged, "rounds": how.rounds}
    options |= {"batch_size": len(x)}  # the same networks for all images
    if how.start != TRAINING:
        return impute(autoencoder, x, missing, samples=how.versions, fill=_fill(how.start, training), **options)
    each = []
    for _ in range(how.versions):
        rows = torch.randint(len(training), (len(x),), generator=generator)
        each.append(impute(autoencoder, x, missing, samples=1, fill=training[rows], **options))
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

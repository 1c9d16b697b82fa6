"""How `imputation` fills in the missing half with one model, and the classifiers that score the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders.base import BaseAutoencoder
from marquis.tasks.imputation import Imputation, impute, impute_weighted
from marquis.tasks.masks import top_half
from marquis_experiments.common.images import CHUNK, ImageData, Labelled, load_images
from marquis_experiments.common.networks import image_network, trained
from marquis_experiments.linearised_laplace.classifiers import Recipe, train_map, trained_map

WEIGHTED = "weighted codes"


@dataclass(frozen=True)
class Procedure:
    """Describe how the missing half is filled in: by the paper's two stages, or importance weights ("weighted codes").

    Attributes:
        start: What the missing pixels start from, "noise" in the paper; or "weighted codes".
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

    @property
    def name(self) -> str:
        """Return the name of an importance-weighted procedure in results."""
        return f"{self.start}, {self.versions} versions, exponent {self.exponent:g}"


PUBLISHED = Procedure()


@dataclass(frozen=True, eq=False)
class ImputationTask:
    """Hold images to impute and the classifiers that score the result.

    Attributes:
        classifier: Maps images in [0, 1] to logits; trained on complete images.
        half_classifier: The same network trained on images whose missing half is black.
        training: Images that the autoencoders were trained on.
        validation: Images that exponents are chosen on; neither autoencoder nor classifier was fitted to them.
        test: Test images.
    """

    classifier: nn.Module
    half_classifier: nn.Module
    training: Tensor
    validation: Labelled
    test: Labelled

    @property
    def missing(self) -> Tensor:
        """Return the mask that is True where a pixel is missing: the upper half."""
        return top_half(self.training.shape[1:])

    def fill_in(self, model: BaseAutoencoder, x: Tensor, how: Procedure, seed: int, missing: Any = None) -> Imputation:
        """Impute the upper halves of `x` (or where `missing` is True) with one model."""
        missing = self.missing if missing is None else missing
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed), "progress": False}
        if how.start == WEIGHTED:
            options |= {"exponent": how.exponent, "networks": how.networks, "samples": how.versions, "batch_size": 1000}
            return impute_weighted(model, x, self.training[: how.donors], missing, **options)
        options |= {"samples": how.versions, "averaged": how.averaged, "rounds": how.rounds}
        return impute(model, x, missing, batch_size=len(x), **options)  # the same networks for all images


class Reader(nn.Module):
    """Classify images in [0, 1] of the data's size by a network for standardised images of 28 x 28 pixels."""

    def __init__(self, network: nn.Module, data: ImageData) -> None:
        super().__init__()
        self.network, self._data = network, data
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `[B, 10]`."""
        return torch.cat([self.network(self._data.standardised(part)) for part in images.split(CHUNK)])


@dataclass(frozen=True)
class ClassifierSettings:
    """Set the training of both classifiers: rows, epochs, widths, prior, batch (`half_...`: of lower halves)."""

    train: int = 55_000
    epochs: int = 6
    channels: tuple[int, ...] = (24, 32, 48)
    hidden: tuple[int, ...] = (32, 32)
    half_train: int = 20_000
    half_epochs: int = 3
    precision: float = 3.0
    batch: int = 128


def readers(shared: Path, name: str, settings: ClassifierSettings, data_dir: Path | None) -> tuple[Reader, Reader]:
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
    return Reader(whole, data), Reader(half, data)

"""What `imputation` does with one model: how the missing half is filled in, and how the answers are judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders.base import BaseAutoencoder
from marquis.errors import DataError
from marquis.experiments.classifiers import (
    CHUNK,
    ImageData,
    Labelled,
    Recipe,
    build,
    load_images,
    train_map,
    trained_map,
)
from marquis.experiments.trained import trained
from marquis.tasks.calibration import coverage, reliability
from marquis.tasks.imputation import Imputation, class_probabilities, errors, impute
from marquis.tasks.masks import minmax_noise, top_half

LEAST = 1e-12
"""Probabilities below this count as this in the negative log-likelihood of the class: 27.6 nats."""
TRAINING = "training images"


@dataclass(frozen=True)
class Procedure:
    """A way of filling in the missing half.

    Attributes:
        start: What the missing pixels start from: "noise" (the paper), "black", "mean image" (of the training images),
            or "training images": for every version the pixels of another training image, drawn at random.
        versions: S1, answers per image.
        averaged: S2, networks that the second stage averages.
        rounds: How often observed pixels are put back and reconstructed again.
    """

    start: str = "noise"
    versions: int = 5
    averaged: int = 5
    rounds: int = 1

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.start}, {self.versions} × {self.averaged}, {self.rounds} round{'s' * (self.rounds > 1)}"


PUBLISHED = Procedure()


@dataclass(frozen=True, eq=False)
class Judge:
    """Images to impute and the classifier that reads the result.

    Attributes:
        classifier: Images in [0, 1] to logits, in evaluation mode; trained on training rows of complete images.
        half_classifier: The same network trained on images whose missing half is black.
        training: Images that starts are drawn from: those that the autoencoders were trained on.
        validation: What procedures are chosen on: rows that neither autoencoder nor classifier was fitted to.
        test: What is reported.
    """

    classifier: nn.Module
    half_classifier: nn.Module
    training: Tensor
    validation: Labelled
    test: Labelled

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


# Filling in


def filled_in(
    own: BaseAutoencoder, x: Tensor, missing: Tensor, how: Procedure, training: Tensor, generator: torch.Generator
) -> Imputation:
    """The answers of one model to the lower halves of `x`.

    From "training images" every version is an imputation of its own, so that versions differ even if the model has no
    uncertainty; `filled` is then that of the first version, and the paper's definition of the error means nothing.
    """
    options: dict[str, Any] = {"averaged": how.averaged, "rounds": how.rounds, "generator": generator}
    options |= {"batch_size": len(x), "progress": False}  # all images meet the same networks
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
        raise DataError(f"no start is called {start!r}; there are: {', '.join((*fills, TRAINING))}.")
    return fills[start]()


# Judging


def judged(found: Imputation, original: Tensor, labels: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Class probabilities, errors against the original, and how far the versions differ.

    `several_classes` is the share of images whose versions (observed pixels put back) are not all read as one class.
    """
    hidden = found.missing
    levels = coverage(found.mean[hidden], found.total_variance[hidden], original[hidden], levels=(0.9,))
    return {
        "reconstructions": classified(found.reconstructions, labels, classifier),
        "put_back": classified(found.samples, labels, classifier),
        "errors": errors(found, original).summary(),
        "spread": float(found.std[hidden].mean()),
        "coverage": levels[0.9],
        "versions": len(found.samples),
    }


def classified(versions: Tensor, labels: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """Scores of the mean softmax over versions `[S1, B, ...]` (methods.md 8.2, 8.3), and the reliability diagram."""
    each = torch.stack([class_probabilities(classifier, version.unsqueeze(0)) for version in versions])
    probs = each.mean(0)
    found = reliability(probs, labels)
    chosen = each.argmax(2)
    of_truth = probs.double().gather(1, labels.unsqueeze(1)).clamp_min(LEAST)
    return {
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "confidence": float(probs.amax(1).double().mean()),
        "ece": found.ece,
        "mce": found.mce,
        "rmsce": found.rmsce,
        "nll": -float(of_truth.log().mean()),
        "several_classes": float((chosen != chosen[0]).any(0).double().mean()),
        "bins": {
            "count": found.count.tolist(),
            "confidence": [None if value != value else value for value in found.confidence.tolist()],
            "accuracy": [None if value != value else value for value in found.accuracy.tolist()],
        },
    }


def references(judge: Judge, neighbours: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """What can be had without an autoencoder, on the test images.

    The last one copies the upper half of the training images whose lower halves are nearest (a "hot deck").
    """
    x, y, missing = judge.test.x, judge.test.y, judge.missing
    noisy = torch.where(missing, minmax_noise(x, torch.Generator().manual_seed(seed)), x)
    averaged = torch.where(missing, judge.training.mean(0), x)
    black = torch.where(missing, 0.0, x)
    nearest = nearest_by_observed(x, judge.training, missing, neighbours)
    copied = torch.where(missing, judge.training[nearest.T], x)
    plain = judge.classifier
    found = {
        "classifier, complete image": classified(x.unsqueeze(0), y, plain),
        "classifier, upper half noise": classified(noisy.unsqueeze(0), y, plain),
        "classifier, upper half of the mean image": classified(averaged.unsqueeze(0), y, plain),
        "classifier, upper half black": classified(black.unsqueeze(0), y, plain),
        "classifier trained on lower halves": classified(black.unsqueeze(0), y, judge.half_classifier),
        f"{neighbours} nearest training images": classified(copied, y, plain),
    }
    away = (copied.mean(0) - x).square()
    found[f"{neighbours} nearest training images"]["missing_of_mean"] = float(away.flatten(1).sum(1).mean())
    return found


def nearest_by_observed(x: Tensor, training: Tensor, missing: Tensor, count: int) -> Tensor:
    """Rows `[B, count]` of the training images nearest in the observed pixels."""
    seen = ~missing.flatten()
    distance = torch.cdist(x.flatten(1)[:, seen], training.flatten(1)[:, seen])
    return distance.topk(count, largest=False).indices


def class_shares(images: Tensor, classifier: nn.Module) -> dict[str, Any]:
    """What generated images `[S1, n, ...]` are read as: shares, their entropy in bits, and the mean confidence."""
    probs = class_probabilities(classifier, images.flatten(0, 1).unsqueeze(0))
    shares = torch.bincount(probs.argmax(1), minlength=probs.shape[1]).double() / len(probs)
    entropy = -float(torch.special.xlogy(shares, shares).sum()) / math.log(2)
    per_start = probs.argmax(1).view(images.shape[:2])
    return {
        "shares": shares.tolist(),
        "entropy_bits": entropy,
        "confidence": float(probs.amax(1).double().mean()),
        "several_classes": float((per_start != per_start[0]).any(0).double().mean()),
    }

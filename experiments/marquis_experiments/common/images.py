"""Labelled images of 28 x 28 pixels: loading, batches, and predictions that need no posterior.

Images are standardised by the training rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.data import Data, load
from marquis.errors import DataError
from marquis_experiments.common.networks import EDGE

CHUNK = 500


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold images `[n, 1, 28, 28]` and their labels `[n]`."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.y)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return images and labels."""
        return self.x, self.y

    def batches(self, size: int = CHUNK) -> list[tuple[Tensor, Tensor]]:
        """Return batches in order, as views."""
        return list(zip(self.x.split(size), self.y.split(size), strict=True))


@dataclass(frozen=True, eq=False)
class ImageData:
    """Hold training, validation and test images of one set, standardised by the training rows."""

    name: str
    train: Labelled
    validation: Labelled
    test: Labelled
    centre: float
    spread: float

    def standardised(self, images: Tensor) -> Tensor:
        """Return other images in the units of these."""
        return (_enlarged(images) - self.centre) / self.spread


def load_images(
    name: str,
    train: int,
    validation: int,
    test: int,
    data_dir: str | Path | None = None,
    *,
    or_digits: bool = False,
) -> ImageData:
    """Load a data set and divide its training rows; with `or_digits`, scikit-learn's digits replace a missing one."""
    try:
        rows = load(name, "train", data_dir, download=not or_digits)
        tests = load(name, "test", data_dir, download=not or_digits)
    except DataError:
        if not or_digits:
            raise
        name, rows, tests = "digits", load("digits", "train"), load("digits", "test")
    if len(rows) <= train:
        raise DataError(f"{name} has {len(rows)} training rows: none are left for validation after {train}.")
    parts = [rows[:train], rows[train : train + validation], tests[:test]]
    centre, spread = float(parts[0].x.mean()), float(parts[0].x.std())

    def labelled(part: Data) -> Labelled:
        assert part.y is not None
        return Labelled((_enlarged(part.x) - centre) / spread, part.y)

    return ImageData(name, labelled(parts[0]), labelled(parts[1]), labelled(parts[2]), centre, spread)


def _enlarged(images: Tensor) -> Tensor:
    """Return smaller images (the digits of the quick size) at the networks' size."""
    return images if images.shape[-1] == EDGE else F.interpolate(images, size=(EDGE, EDGE))


@torch.no_grad()
def logits(network: nn.Module, x: Tensor) -> Tensor:
    """Return outputs `[n, C]`, computed in chunks."""
    return torch.cat([network(part) for part in x.split(CHUNK)])


def fitted_temperature(outputs: Tensor, labels: Tensor) -> float:
    """Return the T that minimises the NLL of `softmax(outputs / T)` on held-out data (Guo et al. 2017).

    The NLL is convex in 1/T, so its slope changes sign once: bisection of log T, from 0.01 to 100, in double precision.
    Outputs that are never wrong get 0.01.
    """
    f = outputs.double()
    chosen = f.gather(1, labels.unsqueeze(1)).squeeze(1)
    low, high = math.log(0.01), math.log(100.0)
    for _ in range(50):
        middle = (low + high) / 2
        expected = ((f * math.exp(-middle)).softmax(1) * f).sum(1)
        if float((expected - chosen).mean()) > 0:
            low = middle  # overconfident
        else:
            high = middle
    return math.exp((low + high) / 2)


def ensemble_probs(members: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return probabilities averaged over networks (Lakshminarayanan et al. 2017)."""
    return torch.stack([logits(member, x).softmax(1) for member in members]).mean(0)


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy of every row in nats."""
    return -torch.special.xlogy(probs, probs).sum(1)

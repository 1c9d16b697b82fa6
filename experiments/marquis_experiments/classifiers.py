"""Image classifiers that several experiments share: data, networks, training to a mode, and the usual baselines.

Images are standardised by the training rows. Weight decay is a Gaussian prior of one precision over all weights, so
that a network trained here is at (or near) a mode of the posterior that Laplace approximates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.data import Data, load
from marquis.errors import DataError, NumericalError
from marquis_experiments.image_networks import EDGE, build
from marquis_experiments.trained import trained

CHUNK = 500


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images `[n, 1, 28, 28]` and their labels `[n]`."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        """Number of images."""
        return len(self.y)

    def batches(self, size: int = CHUNK) -> list[tuple[Tensor, Tensor]]:
        """In order, as views."""
        return list(zip(self.x.split(size), self.y.split(size), strict=True))


@dataclass(frozen=True, eq=False)
class ImageData:
    """Training, validation and test images of one set, standardised by the training rows.

    Attributes:
        name: of the set that was read.
        train: the first rows of the official training set.
        validation: the rows after them.
        test: the first rows of the official test set.
        centre: mean pixel of the training rows.
        spread: standard deviation of their pixels.
    """

    name: str
    train: Labelled
    validation: Labelled
    test: Labelled
    centre: float
    spread: float

    def standardised(self, images: Tensor) -> Tensor:
        """Other images in the units of these."""
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
    """Read a set and divide its training rows.

    Args:
        name: "mnist" or "fashion-mnist".
        train: training rows.
        validation: rows after them.
        test: test rows.
        data_dir: where the data lies.
        or_digits: make do with scikit-learn's digits if the set is not at hand, and do not download it.
    """
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
    """Smaller images (the digits of the quick size) at the networks' size."""
    return images if images.shape[-1] == EDGE else F.interpolate(images, size=(EDGE, EDGE))


# --- training ------------------------------------------------------------------------------------------------


class Shuffled:
    """Mini-batches in a new order for every pass, the same orders for the same seed.

    Args:
        data: the rows.
        batch: rows at once.
        seed: of orders and flips.
        flip: mirror every image, left to right, with probability one half.
    """

    def __init__(self, data: Labelled, batch: int, seed: int, flip: bool = False) -> None:
        self._data, self._batch, self._flip = data, batch, flip
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self._data) // self._batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass."""
        for rows in torch.randperm(len(self._data), generator=self._generator).split(self._batch):
            x = self._data.x[rows]
            if self._flip:
                mirrored = torch.rand(len(rows), 1, 1, 1, generator=self._generator) < 0.5
                x = torch.where(mirrored, x.flip(3), x)
            yield x, self._data.y[rows]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained; the same for every weight decay, every ensemble member and the evidence.

    Attributes:
        epochs: passes over the training rows.
        batch: rows per step.
        learning_rate: of Adam at its peak: it rises over the first epoch and falls to 0 along a cosine.
        flip: mirror images at random while training. Clothes have no left and right. The network is then a mode for
            the mirrored data, and only near one for the rows that curvature and evidence see.
    """

    epochs: int
    batch: int = 128
    learning_rate: float = 2e-3
    flip: bool = False

    def described(self) -> dict[str, Any]:
        """For the names of files; what is off is left out, so that older files stay valid."""
        return {key: value for key, value in asdict(self).items() if value is not False}

    def factor(self, epochs_done: float) -> float:
        """What the learning rate is multiplied by."""
        rising = min(1.0, 0.2 + epochs_done)
        return rising * 0.5 * (1 + math.cos(math.pi * min(1.0, epochs_done / self.epochs)))


def train_map(network: nn.Module, data: Labelled, precision: float, recipe: Recipe, seed: int) -> None:
    """Minimise `1/N [sum_n l_n + precision/2 |theta|^2]` in place.

    Args:
        network: changed in place; left in evaluation mode.
        data: training rows.
        precision: of the prior over all weights.
        recipe: epochs, batch and learning rate.
        seed: of the order of the rows.
    """
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    # Adam with the decay added to the gradient is the gradient of the penalised loss: a mode, unlike AdamW.
    steps = torch.optim.Adam(weights, lr=recipe.learning_rate, weight_decay=precision / len(data))
    batches = Shuffled(data, recipe.batch, seed, recipe.flip)
    schedule = torch.optim.lr_scheduler.LambdaLR(steps, lambda step: recipe.factor(step / len(batches)))
    network.train()
    for epoch in range(recipe.epochs):
        for x, y in batches:
            steps.zero_grad()
            loss = F.cross_entropy(network(x), y)
            if not bool(torch.isfinite(loss)):
                raise NumericalError(f"the loss is {loss.item()} in epoch {epoch + 1}; lower the learning rate.")
            loss.backward()
            steps.step()
            schedule.step()
    network.eval()


def trained_map(
    folder: Path, kind: str, data: ImageData, precision: float, recipe: Recipe, seed: int, shape: Mapping[str, Any]
) -> nn.Module:
    """A network trained by `train_map`, from the folder if it was trained before.

    Args:
        folder: of the shared networks.
        kind: "cnn" or "mlp".
        data: training rows.
        precision: of the prior.
        recipe: how it is trained.
        seed: of initial weights and order of rows.
        shape: widths; arguments of `cnn` or `mlp`.
    """
    settings = {
        "kind": kind,
        "data": data.name,
        "rows": len(data.train),
        "precision": precision,
        "seed": seed,
        **recipe.described(),
        **shape,
    }
    return trained(
        folder,
        f"{data.name}-{kind}-{precision:g}-s{seed}",
        settings,
        lambda: build(kind, shape, seed),
        lambda network: train_map(network, data.train, precision, recipe, 1000 + seed),
    )


# --- predictions and baselines -------------------------------------------------------------------------------


@torch.no_grad()
def logits(network: nn.Module, x: Tensor) -> Tensor:
    """Outputs `[n, C]`, in chunks."""
    return torch.cat([network(part) for part in x.split(CHUNK)])


def fitted_temperature(outputs: Tensor, labels: Tensor) -> float:
    """The T that minimises the NLL of `softmax(outputs / T)` on held-back data (Guo et al. 2017).

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
            low = middle  # too sure of itself
        else:
            high = middle
    return math.exp((low + high) / 2)


def ensemble_probs(members: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Probabilities averaged over networks (Lakshminarayanan et al. 2017)."""
    return torch.stack([logits(member, x).softmax(1) for member in members]).mean(0)


def entropy(probs: Tensor) -> Tensor:
    """Entropy in nats of every row."""
    return -torch.special.xlogy(probs, probs).sum(1)

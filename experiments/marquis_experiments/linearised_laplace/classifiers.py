"""Image classifiers trained to a mode of their posterior, once for all studies.

Weight decay is a Gaussian prior of one precision over all weights, so a network trained here is at (or near) a mode of
the posterior that Laplace approximates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from marquis.errors import NumericalError
from marquis_experiments.common.images import ImageData, Labelled
from marquis_experiments.common.networks import image_network, trained
from marquis_experiments.common.training import Shuffled, descend


@dataclass(frozen=True)
class Recipe:
    """Describe how a network is trained: alike for every weight decay, every ensemble member and the evidence.

    Attributes:
        epochs: Number of passes over the training rows.
        batch: Rows per step.
        learning_rate: Peak learning rate of Adam; it rises over the first epoch and falls to 0 along a cosine.
        flip: Whether images are mirrored at random. The network is then at a mode for the mirrored data, and only
            near one for the rows that curvature and evidence see.
    """

    epochs: int
    batch: int = 128
    learning_rate: float = 2e-3
    flip: bool = False

    def described(self) -> dict[str, Any]:
        """Return the key of stored networks; what is off is left out, so that older files stay valid."""
        return {key: value for key, value in asdict(self).items() if value is not False}

    def factor(self, epochs_done: float) -> float:
        """Return the factor on the learning rate."""
        rising = min(1.0, 0.2 + epochs_done)
        return rising * 0.5 * (1 + math.cos(math.pi * min(1.0, epochs_done / self.epochs)))


def train_map(network: nn.Module, data: Labelled, precision: float, recipe: Recipe, seed: int) -> None:
    """Minimise `1/N [sum_n l_n + precision/2 |theta|^2]` in place."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    # Adam with the decay added to the gradient is the gradient of the penalised loss: a mode, unlike AdamW.
    steps = torch.optim.Adam(weights, lr=recipe.learning_rate, weight_decay=precision / len(data))
    batches = Shuffled(data.tensors, recipe.batch, seed, recipe.flip)
    schedule = torch.optim.lr_scheduler.LambdaLR(steps, lambda step: recipe.factor(step / len(batches)))
    network.train()
    losses = descend(steps, batches, recipe.epochs, lambda x, y: F.cross_entropy(network(x), y), schedule)
    for epoch, loss in losses:
        if not bool(torch.isfinite(loss)):
            raise NumericalError(f"the loss is {loss.item()} in epoch {epoch}; lower the learning rate.")
    network.eval()


def trained_map(
    folder: Path, kind: str, data: ImageData, precision: float, recipe: Recipe, seed: int, shape: Mapping[str, Any]
) -> nn.Module:
    """Return a network trained by `train_map`, from the folder if it was trained before."""
    settings = {"kind": kind, "data": data.name, "rows": len(data.train), "precision": precision, "seed": seed}
    settings |= {**recipe.described(), **shape}
    return trained(
        folder,
        f"{data.name}-{kind}-{precision:g}-s{seed}",
        settings,
        lambda: image_network(kind, shape, seed),
        lambda network: train_map(network, data.train, precision, recipe, 1000 + seed),
    )

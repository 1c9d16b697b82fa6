"""`shift`: calibration of MNIST classifiers when the digits are rotated by 0 to 180 degrees.

A narrow residual network, trained on upright digits, and several predictive methods: MAP, MAP with a tuned temperature,
linearised Laplace (a diagonal over all weights, the last layer, subnetworks of 2 % to 0.02 % with a full covariance),
diagonal SWAG, MC dropout and a deep ensemble. The prior precision is chosen twice, by the evidence and by upright
validation digits; no rotated digit takes part in that. Corrupted CIFAR is not run: there is no data.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.variational.architectures import PreactBlock
from marquis_experiments.common.images import ensemble_probs, fitted_temperature, load_images, logits
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.common.training import Shuffled, descend
from marquis_experiments.linearised_laplace.shift.methods import (
    Digits,
    Moments,
    collect_moments,
    linearised,
    sampled_dropout,
    sampled_swag,
)
from marquis_experiments.linearised_laplace.shift.page import draw, values

NETWORK = ("data", "train", "width", "blocks", "epochs", "batch", "lr", "weight_decay")
"""Settings that a trained network depends on."""
ITERATES = ("snapshots", "batches_per_snapshot", "swag_lr")
USED = {
    "map": (),
    "laplace": (*ITERATES, "shares", "compared", "precisions"),
    "swag": (*ITERATES, "samples"),
    "dropout": ("dropout", "samples"),
    "ensemble": ("members",),
}
"""Further settings that a cell depends on."""


class NarrowResNet(nn.Module):
    """Compute a pre-activation residual network with softplus and batch norm: stem, three stages, average, head."""

    def __init__(self, width: int, blocks: int, dropout: float = 0.0, outputs: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 2, 1, bias=False)
        layers: list[nn.Module] = []
        before = width
        for stage in range(3):
            after = width * 2**stage
            for block in range(blocks):
                layers += [PreactBlock(before, after, 2 if stage and not block else 1), nn.Dropout(dropout)]
                before = after
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(before)
        self.head = nn.Linear(before, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[B, outputs]` of images `[B, 1, H, W]`."""
        return self.head(F.softplus(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate images `[B, C, H, W]` about their centre, counter-clockwise, bilinear, zero outside."""
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    height, width = images.shape[-2:]
    # Where each new pixel comes from, in coordinates from -1 to 1 whose y axis points down; not square: scaled.
    turn = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]], dtype=images.dtype)
    grid = F.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def measure(run: Run) -> dict[str, Any]:
    """Score every method at every angle, seed by seed."""
    settings, digits = load_digits(run)
    experiment = Experiment(run, settings, digits)
    cells: list[dict[str, Any]] = []
    for cell in experiment.cells():
        cells.append(cell)
        for row in cell["rows"]:
            nll = ", ".join(f"{score['nll']:.3f}" for score in row["scores"])
            run.say(f"seed {row['seed']}, {row['method']}: NLL {nll}")
    return {"settings": settings.plain(), "weights": experiment.weights, "cells": cells}


def load_digits(run: Run) -> tuple[Settings, Digits]:
    """Load the digits; test images are rotated before they are standardised, so that what comes in is background.

    The quick size falls back on scikit-learn's digits.
    """
    s = run.settings
    images = load_images(s.data, s.train, s.validation, s.test, run.data_dir, or_digits=run.size == "quick")
    pixels = images.test.x * images.spread + images.centre
    rotated = [images.standardised(rotate(pixels, angle)) for angle in range(0, 181, s.step)]
    return s.replace(data=images.name), Digits(images.train, images.validation, rotated, images.test.y)


@dataclass(frozen=True)
class Experiment:
    """Hold the networks and cells of one run."""

    run: Run
    settings: Settings
    digits: Digits

    @property
    def weights(self) -> int:
        """Return the number of weights of one network."""
        return sum(p.numel() for p in self.build().parameters())

    def build(self, dropout: float = 0.0) -> nn.Module:
        """Return an untrained network, from torch's global generator."""
        return NarrowResNet(self.settings.width, self.settings.blocks, dropout)

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield all cells, seed by seed."""
        for seed in self.settings.seeds:
            yield self.cell("map", seed, self.by_map)
            yield self.cell("laplace", seed, self.by_laplace)
            yield self.cell("swag", seed, self.by_swag)
            yield self.cell("dropout", seed, self.by_dropout)
            if seed == self.settings.seeds[0]:
                yield self.cell("ensemble", seed, self.by_ensemble)

    def cell(self, name: str, seed: int, compute: Callable[[int], dict[str, dict[str, Any]]]) -> dict[str, Any]:
        """Return some rows: `compute(seed)` gives by method probabilities at every angle and what was chosen."""
        columns = (*NETWORK, "validation", "test", "step", *USED[name])
        described = {**self.settings.only(*columns), "cell": name, "seed": seed}

        def scored() -> dict[str, Any]:
            started = time.thread_time()
            rows = []
            for method, part in compute(seed).items():
                scores = [classification_scores(probs, self.digits.y_test) for probs in part.pop("probs")]
                rows.append({"method": method, "seed": seed, "scores": scores, **part})
            return {"rows": rows, "cpu_seconds": time.thread_time() - started}

        return self.run.cell(f"{name}-s{seed}", described, scored, "cells")

    # --- networks ----------------------------------------------------------------------------------------

    def network(self, seed: int, dropout: float = 0.0) -> nn.Module:
        """Return a network, trained once; the deep ensemble and the single networks share them."""
        described = {**self.settings.only(*NETWORK), "seed": seed, "dropout": dropout}

        def build() -> nn.Module:
            torch.manual_seed(seed)
            return self.build(dropout)

        return self.run.network("resnet", described, build, lambda net: self.train(net, seed))

    def train(self, network: nn.Module, seed: int) -> None:
        """Train by SGD with momentum; the learning rate rises for a fifth of the steps and then falls to 0."""
        s = self.settings
        optimiser = torch.optim.SGD(
            network.parameters(), s.lr, momentum=0.9, nesterov=True, weight_decay=s.weight_decay
        )
        batches = Shuffled(self.digits.train.tensors, s.batch, 1000 + seed)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, s.lr, total_steps=s.epochs * len(batches), pct_start=0.2, cycle_momentum=False
        )
        network.train()
        deque(descend(optimiser, batches, s.epochs, lambda x, y: F.cross_entropy(network(x), y), schedule), 0)

    def moments(self, seed: int) -> Moments:
        """Return diagonal SWAG from the trained network on; kept like a network, because two cells need it."""
        s, network = self.settings, self.network(seed)
        described = {**s.only(*NETWORK, *ITERATES), "seed": seed}
        pair = self.run.network(
            "swag",
            described,
            lambda: nn.ModuleDict({"mean": self.build(), "variance": self.build()}),
            lambda pair: collect_moments(pair, network, self.digits.train, s, seed),
        )
        assert isinstance(pair, nn.ModuleDict)
        return Moments.of(pair)

    # --- methods -----------------------------------------------------------------------------------------

    def by_map(self, seed: int) -> dict[str, dict[str, Any]]:
        """Predict by the network, and with the temperature of the smallest validation NLL."""
        network, held_out = self.network(seed), self.digits.validation
        outputs = [logits(network, x) for x in self.digits.x_test]
        chosen = fitted_temperature(logits(network, held_out.x), held_out.y)
        return {
            "MAP": {"probs": [one.softmax(1) for one in outputs]},
            "MAP, temperature": {"probs": [(one / chosen).softmax(1) for one in outputs], "chosen": chosen},
        }

    def by_laplace(self, seed: int) -> dict[str, dict[str, Any]]:
        """Predict by all linearised posteriors of one network, in one pass over the test images."""
        return linearised(self.network(seed), self.digits, self.settings, self.moments(seed).variance, seed)

    def by_swag(self, seed: int) -> dict[str, dict[str, Any]]:
        """Predict by networks sampled from the Gaussian over SGD's iterates, each with new batch statistics."""
        return {"SWAG, diagonal": {"probs": sampled_swag(self.build(), self.moments(seed), self.digits, self.settings)}}

    def by_dropout(self, seed: int) -> dict[str, dict[str, Any]]:
        """Predict by a network trained with dropout, which stays on."""
        network = self.network(seed, self.settings.dropout)
        return {"MC dropout": {"probs": sampled_dropout(network, self.digits, self.settings, seed)}}

    def by_ensemble(self, seed: int) -> dict[str, dict[str, Any]]:
        """Average probabilities over networks with other initial weights and another order of the data."""
        members = [self.network(seed + k) for k in range(self.settings.members)]
        return {"deep ensemble": {"probs": [ensemble_probs(members, x) for x in self.digits.x_test]}}


# fmt: off
STUDY = Study(
    "shift", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "data": "mnist", "train": 8_000, "validation": 1_000, "test": 1_000, "step": 30, "width": 8,
        "blocks": 1, "epochs": 8, "batch": 100, "lr": 0.1, "weight_decay": 5e-4, "dropout": 0.1,
        "seeds": (0, 1, 2), "members": 5, "samples": 20, "shares": (0.02, 0.004, 0.001, 0.0002),
        "compared": 0.004, "snapshots": 40, "batches_per_snapshot": 10, "swag_lr": 0.1,
        "precisions": tuple(10.0**k for k in range(-1, 7)),
    },
    quick={
        "train": 500, "validation": 60, "test": 60, "step": 60, "width": 4, "epochs": 6, "batch": 25,
        "seeds": (0,), "members": 2, "samples": 3, "shares": (0.02, 0.005), "compared": 0.02, "snapshots": 4,
        "batches_per_snapshot": 2, "precisions": (1.0, 10.0, 100.0, 1000.0),
    },
    full={
        "train": 55_000, "validation": 5_000, "test": 10_000, "step": 15, "width": 20, "epochs": 30, "samples": 100,
        "batches_per_snapshot": 550, "shares": (0.04, 0.02, 0.004, 0.001, 0.0002),
    },
)
# fmt: on

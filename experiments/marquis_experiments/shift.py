"""`shift`: who still knows what it does not know when MNIST's digits are rotated, 0 to 180 degrees?

A narrow residual network, trained on upright digits, and several ways to its class probabilities: MAP, MAP with a tuned
temperature, linearised Laplace (a diagonal over all weights, the last layer, subnetworks of 2 % to 0.02 % with a full
covariance), diagonal SWAG, MC dropout and a deep ensemble. The prior precision is chosen twice, by the evidence and by
upright validation digits; no turned digit takes part in that. Corrupted CIFAR is not run: there is no data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.variational.architectures import PreactBlock
from marquis_experiments.cells import cell, write_json
from marquis_experiments.classifiers import Shuffled, ensemble_probs, fitted_temperature, load_images, logits
from marquis_experiments.metrics import classification_scores
from marquis_experiments.shift_methods import (
    Digits,
    Moments,
    collect_moments,
    linearised,
    sampled_dropout,
    sampled_swag,
)
from marquis_experiments.shift_report import write_report
from marquis_experiments.trained import trained


@dataclass(frozen=True)
class Settings:
    """How large the experiment is; what is cut from the literature's protocol is here."""

    data: str = "mnist"
    train: int = 8_000
    validation: int = 1_000
    test: int = 1_000
    step: int = 30
    width: int = 8
    blocks: int = 1
    epochs: int = 8
    batch: int = 100
    lr: float = 0.1
    weight_decay: float = 5e-4
    dropout: float = 0.1
    seeds: tuple[int, ...] = (0, 1, 2)
    members: int = 5
    samples: int = 20
    shares: tuple[float, ...] = (0.02, 0.004, 0.001, 0.0002)
    compared: float = 0.004
    snapshots: int = 40
    batches_per_snapshot: int = 10
    swag_lr: float = 0.1
    precisions: tuple[float, ...] = tuple(10.0**k for k in range(-1, 7))

    @property
    def angles(self) -> list[int]:
        """Degrees."""
        return list(range(0, 181, self.step))


SETTINGS = {
    "quick": Settings(
        train=500,
        validation=60,
        test=60,
        step=60,
        width=4,
        epochs=6,
        batch=25,
        seeds=(0,),
        members=2,
        samples=3,
        shares=(0.02, 0.005),
        compared=0.02,
        snapshots=4,
        batches_per_snapshot=2,
        precisions=(1.0, 10.0, 100.0, 1000.0),
    ),
    "default": Settings(),
    "full": Settings(
        train=55_000,
        validation=5_000,
        test=10_000,
        step=15,
        width=64,
        blocks=2,
        epochs=90,
        seeds=(0, 1, 2, 3, 4),
        samples=100,
        batches_per_snapshot=550,
    ),
}


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
"""Settings that a cell depends on besides."""


class NarrowResNet(nn.Module):
    """Pre-activation residual network with softplus and batch norm: a strided stem, three stages, an average, a head.

    Args:
        width: Channels of the first stage; doubled in each further one.
        blocks: Per stage.
        dropout: After every block.
        outputs: Number of classes.
    """

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
        """Logits `[B, outputs]` of images `[B, 1, H, W]`."""
        return self.head(F.softplus(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images `[B, C, H, W]` about their centre, counter-clockwise, bilinear, zero outside."""
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    height, width = images.shape[-2:]
    # Where each new pixel comes from, in coordinates from -1 to 1 whose y axis points down; not square: scaled.
    turn = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]], dtype=images.dtype)
    grid = F.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def run(
    size: str = "default",
    out: str | Path = "runs/shift",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
    settings: Settings | None = None,
) -> Path:
    """Run what is missing and write the page; `settings` replaces those of the size."""
    settings, digits = read(settings or SETTINGS[size], size, data_dir)
    experiment = Experiment(Path(out) / size, settings, digits)
    rows: list[dict[str, Any]] = []
    started = time.time()

    def save() -> Path:
        results = {"size": size, "settings": asdict(settings), "weights": experiment.weights, "rows": rows}
        write_json(experiment.folder / "results.json", results)
        return write_report(experiment.folder, results)

    for found in experiment.cells():
        rows.extend(found)
        for row in found:
            nll = ", ".join(f"{score['nll']:.3f}" for score in row["scores"])
            say(f"[{time.time() - started:5.0f} s] seed {row['seed']}, {row['method']}: NLL {nll}")
        save()
    return save()


def read(settings: Settings, size: str, data_dir: str | Path | None) -> tuple[Settings, Digits]:
    """Digits; the test images rotated before they are standardised, so that what comes in from outside is background.

    The quick size makes do with scikit-learn's digits.
    """
    s = settings
    found = load_images(s.data, s.train, s.validation, s.test, data_dir, or_digits=size == "quick")
    pixels = found.test.x * found.spread + found.centre
    turned = [found.standardised(rotate(pixels, angle)) for angle in s.angles]
    return replace(s, data=found.name), Digits(found.train, found.validation, turned, found.test.y)


@dataclass(frozen=True)
class Experiment:
    """Networks and cells of one size."""

    folder: Path
    settings: Settings
    digits: Digits

    @property
    def weights(self) -> int:
        """Of one network."""
        return sum(p.numel() for p in self.build().parameters())

    def build(self, dropout: float = 0.0) -> nn.Module:
        """An untrained network, from torch's own random numbers."""
        return NarrowResNet(self.settings.width, self.settings.blocks, dropout)

    def cells(self) -> Iterator[list[dict[str, Any]]]:
        """All rows, a few at a time: seed by seed, so that a stopped run shows every method."""
        for seed in self.settings.seeds:
            yield self.rows("map", seed, self.by_map)
            yield self.rows("laplace", seed, self.by_laplace)
            yield self.rows("swag", seed, self.by_swag)
            yield self.rows("dropout", seed, self.by_dropout)
            if seed == self.settings.seeds[0]:
                yield self.rows("ensemble", seed, self.by_ensemble)

    def rows(self, name: str, seed: int, compute: Callable[[int], dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """One cell: `compute(seed)` gives, by method, what it predicts at every angle, and what it chose."""
        wanted = (*NETWORK, "validation", "test", "step", *USED[name])
        described = {key: getattr(self.settings, key) for key in wanted} | {"cell": name, "seed": seed}

        def scored() -> dict[str, Any]:
            started = time.thread_time()
            found = compute(seed)
            rows = []
            for method, answer in found.items():
                scores = [classification_scores(probs, self.digits.y_test) for probs in answer.pop("probs")]
                rows.append({"method": method, "seed": seed, "scores": scores, **answer})
            return {"rows": rows, "cpu_seconds": time.thread_time() - started}

        return cell(self.folder / "cells", f"{name}-s{seed}", described, scored)["rows"]

    # --- networks ----------------------------------------------------------------------------------------

    def network(self, seed: int, dropout: float = 0.0) -> nn.Module:
        """Trained once; the deep ensemble and the single networks share them."""
        described = {name: getattr(self.settings, name) for name in NETWORK} | {"seed": seed, "dropout": dropout}

        def build() -> nn.Module:
            torch.manual_seed(seed)
            return self.build(dropout)

        return trained(self.folder / "networks", "resnet", described, build, lambda net: self.train(net, seed))

    def train(self, network: nn.Module, seed: int) -> None:
        """SGD with momentum; the learning rate rises for a fifth of the steps and then falls to nothing."""
        s = self.settings
        optimiser = torch.optim.SGD(
            network.parameters(), s.lr, momentum=0.9, nesterov=True, weight_decay=s.weight_decay
        )
        batches = Shuffled(self.digits.train, s.batch, 1000 + seed)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, s.lr, total_steps=s.epochs * len(batches), pct_start=0.2, cycle_momentum=False
        )
        network.train()
        for _ in range(s.epochs):
            for x, y in batches:
                loss = F.cross_entropy(network(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()

    def moments(self, seed: int) -> Moments:
        """Diagonal SWAG from the trained network on: kept like a network, because two cells need it."""
        s, network = self.settings, self.network(seed)
        described = {name: getattr(s, name) for name in (*NETWORK, *ITERATES)} | {"seed": seed}
        pair = trained(
            self.folder / "networks",
            "swag",
            described,
            lambda: nn.ModuleDict({"mean": self.build(), "variance": self.build()}),
            lambda pair: collect_moments(pair, network, self.digits.train, s, seed),
        )
        assert isinstance(pair, nn.ModuleDict)
        return Moments.of(pair)

    # --- methods -----------------------------------------------------------------------------------------

    def by_map(self, seed: int) -> dict[str, dict[str, Any]]:
        """The network, and the network with the temperature that validation data prefer."""
        network, held = self.network(seed), self.digits.validation
        outputs = [logits(network, x) for x in self.digits.x_test]
        chosen = fitted_temperature(logits(network, held.x), held.y)
        return {
            "MAP": {"probs": [one.softmax(1) for one in outputs]},
            "MAP, temperature": {"probs": [(one / chosen).softmax(1) for one in outputs], "chosen": chosen},
        }

    def by_laplace(self, seed: int) -> dict[str, dict[str, Any]]:
        """All linearised posteriors of one network, from one pass over the test images."""
        return linearised(self.network(seed), self.digits, self.settings, self.moments(seed).variance, seed)

    def by_swag(self, seed: int) -> dict[str, dict[str, Any]]:
        """Networks drawn from the Gaussian over SGD's iterates, each with its own batch statistics."""
        return {"SWAG, diagonal": {"probs": sampled_swag(self.build(), self.moments(seed), self.digits, self.settings)}}

    def by_dropout(self, seed: int) -> dict[str, dict[str, Any]]:
        """A network trained with dropout, which stays on."""
        network = self.network(seed, self.settings.dropout)
        return {"MC dropout": {"probs": sampled_dropout(network, self.digits, self.settings, seed)}}

    def by_ensemble(self, seed: int) -> dict[str, dict[str, Any]]:
        """Probabilities averaged over networks that differ in their first weights and in the order of the data."""
        members = [self.network(seed + k) for k in range(self.settings.members)]
        return {"deep ensemble": {"probs": [ensemble_probs(members, x) for x in self.digits.x_test]}}

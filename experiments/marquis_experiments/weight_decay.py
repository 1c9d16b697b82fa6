"""Networks with weight decay chosen on validation data, and by the evidence; trained once for all experiments.

A `Study` is one network on one data set: the same recipe for every weight decay of the grid, for the members of the
ensemble, and for training with evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marquis.evidence import train
from marquis.priors import Prior
from marquis_experiments.cells import cell
from marquis_experiments.classifiers import ImageData, Recipe, Shuffled, build, load_images, logits, trained_map
from marquis_experiments.metrics import classification_scores
from marquis_experiments.trained import trained

CNN = {"channels": (24, 48, 64), "hidden": (64, 32)}
START = 1.0
"""Prior precision of every layer before the first update, as in Immer et al. (2021)."""
UPDATE = "mackay"


@dataclass(frozen=True)
class Study:
    """One network on one data set, and how large the study of it is.

    Attributes:
        data: "mnist" or "fashion-mnist".
        kind: "cnn" or "mlp".
        shape: widths; arguments of `image_networks.cnn` or `mlp`.
        recipe: how every network is trained.
        precisions: weight decays of the grid, as prior precisions (weight decay times number of training rows).
        members: of the deep ensemble, the validated network included.
        burn_in: first epoch with an update of the precisions by the evidence.
        every: epochs between updates.
        train: training rows.
        validation: rows after them.
        test: test rows.
    """

    data: str
    kind: str
    recipe: Recipe
    precisions: tuple[float, ...]
    members: int
    burn_in: int
    every: int
    shape: Mapping[str, Any] = field(default_factory=dict)
    train: int = 55_000
    validation: int = 5_000
    test: int = 10_000

    @property
    def name(self) -> str:
        """Data and network."""
        return f"{self.data}-{self.kind}"

    def load(self, data_dir: str | Path | None, or_digits: bool) -> ImageData:
        """The images; see `load_images`."""
        return load_images(self.data, self.train, self.validation, self.test, data_dir, or_digits=or_digits)


def studies(size: str) -> dict[str, Study]:
    """Name to study, for "quick", "default" or "full"; the cheap ones first."""
    if size == "quick":
        small = {"train": 192, "validation": 64, "test": 64}
        cnn = {"channels": (4, 4, 8), "hidden": (8, 8)}
        made = [
            Study("fashion-mnist", "cnn", Recipe(4, 32), (1.0, 10.0), 2, 1, 1, cnn, **small),
            Study("mnist", "mlp", Recipe(4, 32), (1.0, 10.0), 2, 1, 1, {"hidden": (16,)}, **small),
        ]
    elif size == "default":
        mlp = {"hidden": (200, 200)}
        made = [
            Study("mnist", "mlp", Recipe(12), (10.0, 30.0, 100.0), 3, 1, 1, mlp),
            Study("fashion-mnist", "mlp", Recipe(12), (3.0, 10.0, 30.0, 100.0), 3, 1, 1, mlp),
            Study("fashion-mnist", "cnn", Recipe(28, flip=True), (10.0, 30.0), 3, 14, 7, CNN),
            Study(
                "mnist", "cnn", Recipe(6), (3.0, 10.0, 30.0), 3, 2, 2, {"channels": (24, 32, 48), "hidden": (32, 32)}
            ),
        ]
    else:
        grid = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
        wide = {"channels": (64, 96, 128), "hidden": (512, 256)}
        mlp = {"hidden": (1024, 512, 256, 128)}
        made = [
            Study(data, kind, Recipe(epochs), grid, 5, 10, 5, wide if kind == "cnn" else mlp)
            for data, kind, epochs in [
                ("mnist", "mlp", 100),
                ("fashion-mnist", "mlp", 100),
                ("fashion-mnist", "cnn", 100),
                ("mnist", "cnn", 100),
            ]
        ]
    return {study.name: study for study in made}


@dataclass(frozen=True, eq=False)
class Validated:
    """The network whose weight decay was best on validation data.

    Attributes:
        precision: its prior precision.
        network: itself.
        grid: validation scores by precision.
    """

    precision: float
    network: nn.Module
    grid: list[dict[str, float]]


def validated(folder: Path, data: ImageData, study: Study, say: Callable[[str], None]) -> Validated:
    """Train for every weight decay of the grid (seed 0); the one of least validation NLL."""
    networks: dict[float, nn.Module] = {}
    grid: list[dict[str, float]] = []
    for precision in study.precisions:
        network = trained_map(folder, study.kind, data, precision, study.recipe, 0, study.shape)
        scores = classification_scores(logits(network, data.validation.x).softmax(1), data.validation.y)
        say(f"{study.name}, weight decay {precision:g}: validation NLL {scores['nll']:.4f}")
        networks[precision] = network
        grid.append({"precision": precision, **scores})
    best = min(grid, key=lambda row: row["nll"])["precision"]
    return Validated(best, networks[best], grid)


def ensemble(
    folder: Path, data: ImageData, study: Study, precision: float, say: Callable[[str], None]
) -> list[nn.Module]:
    """The validated network and others from other seeds, same weight decay, same recipe."""
    members = []
    for seed in range(study.members):
        members.append(trained_map(folder, study.kind, data, precision, study.recipe, seed, study.shape))
        say(f"{study.name}, member {seed + 1} of the ensemble")
    return members


def with_evidence(folder: Path, data: ImageData, study: Study) -> tuple[nn.Module, dict[str, Any]]:
    """The network of `evidence.train`, one precision per layer and no validation data, and how it went.

    Returns:
        The network, and `epochs` (loss, log evidence, precisions), `groups` (names) and the `epoch` that was kept.
    """
    recipe = study.recipe
    settings = {
        "kind": study.kind,
        "data": data.name,
        "rows": len(data.train),
        "evidence": [study.burn_in, study.every],
        "update": UPDATE,
        **recipe.described(),
        **study.shape,
    }
    name = f"{study.data}-{study.kind}-evidence"

    kept: list[dict[str, Any]] = []

    def untrained() -> nn.Module:
        return build(study.kind, study.shape, 0)

    def fit(network: nn.Module) -> None:
        found = train(
            network,
            Shuffled(data.train, recipe.batch, 1000, recipe.flip),
            "categorical",
            prior=Prior(START, groups="layer"),
            estimator="sketched",
            epochs=recipe.epochs,
            burn_in=study.burn_in,
            every=study.every,
            update=UPDATE,
            learning_rate=recipe.learning_rate,
            schedule=lambda steps: torch.optim.lr_scheduler.LambdaLR(steps, lambda epoch: recipe.factor(epoch + 0.5)),
            curvature_loader=data.train.batches(),
            generator=torch.Generator().manual_seed(0),
            progress=False,
        )
        network.load_state_dict(found.model.state_dict())
        history = [
            {"loss": one.loss, "log_evidence": one.log_evidence, "precision": one.precision.tolist()}
            for one in found.history
        ]
        names = list(found.prior.names or ())
        kept.append(
            {"epoch": found.epoch, "groups": names, "precision": found.prior.precision.tolist(), "epochs": history}
        )

    def remembered() -> dict[str, Any]:
        if not kept:  # the network is there but its history is not: once more
            fit(untrained())
        return kept[-1]

    network = trained(folder, name, settings, untrained, fit)
    return network, cell(folder, f"{name}-history", settings, remembered)

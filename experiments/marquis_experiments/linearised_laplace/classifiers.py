"""Image classifiers trained once for all studies: to a mode, with weight decay by validation, and by the evidence.

Weight decay is a Gaussian prior of one precision over all weights, so a network trained here is at (or near) a mode of
the posterior that Laplace approximates. A `Case` is one network on one data set: the same recipe for every weight decay
of the grid, for the members of the ensemble, and for training with evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from marquis.errors import NumericalError
from marquis.evidence import train
from marquis.priors import Prior
from marquis_experiments.common.cells import cell
from marquis_experiments.common.images import ImageData, Labelled, load_images, logits
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.networks import image_network, trained
from marquis_experiments.common.training import Shuffled, descend

CNN = {"channels": (24, 48, 64), "hidden": (64, 32)}
START = 1.0
"""Prior precision of every layer before the first update, as in Immer et al. (2021)."""
UPDATE = "mackay"


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


@dataclass(frozen=True)
class Case:
    """Describe one network on one data set, and how large the comparison is.

    Attributes:
        data: "mnist" or "fashion-mnist".
        kind: "cnn" or "mlp".
        shape: Widths, arguments of `image_cnn` or `image_mlp`.
        recipe: How every network is trained.
        precisions: Weight decays of the grid as prior precisions (weight decay times number of training rows).
        members: Number of networks in the deep ensemble, the validated network included.
        burn_in: First epoch with an update of the precisions by the evidence.
        every: Epochs between updates.
        train: Number of training rows.
        validation: Number of rows after them.
        test: Number of test rows.
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
        """Return the name of data and network."""
        return f"{self.data}-{self.kind}"

    def load(self, data_dir: str | Path | None, or_digits: bool) -> ImageData:
        """Load the images; see `load_images`."""
        return load_images(self.data, self.train, self.validation, self.test, data_dir, or_digits=or_digits)


def cases(size: str) -> dict[str, Case]:
    """Return the cases of a size by name, the cheap ones first."""
    if size == "quick":
        small = {"train": 192, "validation": 64, "test": 64}
        cnn = {"channels": (4, 4, 8), "hidden": (8, 8)}
        made = [
            Case("fashion-mnist", "cnn", Recipe(4, 32), (1.0, 10.0), 2, 1, 1, cnn, **small),
            Case("mnist", "mlp", Recipe(4, 32), (1.0, 10.0), 2, 1, 1, {"hidden": (16,)}, **small),
        ]
    elif size == "default":
        mlp, cnn = {"hidden": (200, 200)}, {"channels": (24, 32, 48), "hidden": (32, 32)}
        made = [
            Case("mnist", "mlp", Recipe(12), (10.0, 30.0, 100.0), 3, 1, 1, mlp),
            Case("fashion-mnist", "mlp", Recipe(12), (3.0, 10.0, 30.0, 100.0), 3, 1, 1, mlp),
            Case("fashion-mnist", "cnn", Recipe(28, flip=True), (10.0, 30.0), 3, 14, 7, CNN),
            Case("mnist", "cnn", Recipe(6), (3.0, 10.0, 30.0), 3, 2, 2, cnn),
        ]
    else:
        grid = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
        shapes = {"mlp": {"hidden": (1024, 512, 256, 128)}, "cnn": {"channels": (64, 96, 128), "hidden": (512, 256)}}
        kinds = (("mnist", "mlp"), ("fashion-mnist", "mlp"), ("fashion-mnist", "cnn"), ("mnist", "cnn"))
        made = [Case(data, kind, Recipe(100), grid, 5, 10, 5, shapes[kind]) for data, kind in kinds]
    return {case.name: case for case in made}


@dataclass(frozen=True, eq=False)
class Validated:
    """Hold the network whose weight decay is best on validation data, and validation scores by precision."""

    precision: float
    network: nn.Module
    grid: list[dict[str, float]]


def validated(folder: Path, data: ImageData, case: Case, say: Callable[[str], None]) -> Validated:
    """Train for every weight decay of the grid (seed 0) and return the network of the smallest validation NLL."""
    networks: dict[float, nn.Module] = {}
    grid: list[dict[str, float]] = []
    for precision in case.precisions:
        network = trained_map(folder, case.kind, data, precision, case.recipe, 0, case.shape)
        scores = classification_scores(logits(network, data.validation.x).softmax(1), data.validation.y)
        say(f"{case.name}, weight decay {precision:g}: validation NLL {scores['nll']:.4f}")
        networks[precision] = network
        grid.append({"precision": precision, **scores})
    best = min(grid, key=lambda row: row["nll"])["precision"]
    return Validated(best, networks[best], grid)


def ensemble(
    folder: Path, data: ImageData, case: Case, precision: float, say: Callable[[str], None]
) -> list[nn.Module]:
    """Return the validated network and others from other seeds, with the same weight decay and recipe."""
    members = []
    for seed in range(case.members):
        members.append(trained_map(folder, case.kind, data, precision, case.recipe, seed, case.shape))
        say(f"{case.name}, member {seed + 1} of the ensemble")
    return members


def with_evidence(
    folder: Path, data: ImageData, case: Case, seed: int = 0, variant: str = ""
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network of `evidence.train`, one precision per layer and no validation data, and its history.

    `variant` goes into the names of the files, beside the data and the network.
    """
    recipe = case.recipe
    settings = {"kind": case.kind, "data": data.name, "rows": len(data.train), "update": UPDATE}
    settings |= {"evidence": [case.burn_in, case.every], **recipe.described(), **case.shape}
    settings |= {"seed": seed} if seed else {}  # files of the first seed are from before there were others
    name = f"{case.data}-{case.kind}-evidence{variant}"
    members: list[dict[str, Any]] = []

    def untrained() -> nn.Module:
        return image_network(case.kind, case.shape, seed)

    def fit(network: nn.Module) -> None:
        result = train(
            network,
            Shuffled(data.train.tensors, recipe.batch, 1000 + seed, recipe.flip),
            "categorical",
            prior=Prior(START, groups="layer"),
            estimator="sketched",
            epochs=recipe.epochs,
            burn_in=case.burn_in,
            every=case.every,
            update=UPDATE,
            learning_rate=recipe.learning_rate,
            schedule=lambda steps: torch.optim.lr_scheduler.LambdaLR(steps, lambda epoch: recipe.factor(epoch + 0.5)),
            curvature_loader=data.train.batches(),
            generator=torch.Generator().manual_seed(seed),
            progress=False,
        )
        network.load_state_dict(result.model.state_dict())
        epochs = [
            {"loss": one.loss, "log_evidence": one.log_evidence, "precision": one.precision.tolist()}
            for one in result.history
        ]
        prior = {"groups": list(result.prior.names or ()), "precision": result.prior.precision.tolist()}
        members.append({"epoch": result.epoch, "epochs": epochs, **prior})

    def remembered() -> dict[str, Any]:
        if not members:  # the network is stored but its history is not: train again
            fit(untrained())
        return members[-1]

    network = trained(folder, name, settings, untrained, fit)
    return network, cell(folder, f"{name}-history", settings, remembered)

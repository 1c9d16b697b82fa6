"""`vl`: Variational Laplace, mean-field VI and MAP on Fashion-MNIST (VL Table 1, Table 2 and Figure 2).

Five parts: a grid over the tempering with the CNN, and more seeds at the temperings that validation chose; the same
where the CNN overfits (few images, many epochs); the narrow ResNet once per method at its chosen tempering; two other
squared-gradient regularisers; and the learning-rate multiplier of log σ. CIFAR and SVHN are not run: the data are
not available here.
"""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.data import load
from marquis.errors import DataError, MarquisError
from marquis.variational import MAP, MeanFieldVI, PreactResNet18, VariationalLaplace, small_cnn
from marquis_experiments.common.images import Labelled
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.common.training import Shuffled, descend
from marquis_experiments.variational_laplace.fashion_mnist.page import chosen_tempering, draw, values
from marquis_experiments.variational_laplace.fashion_mnist.regularisers import EmpiricalFisher, SquaredGradient

METHODS = {"vl": VariationalLaplace, "vi": MeanFieldVI, "map": MAP}
REGULARISERS = {"empirical": EmpiricalFisher, "gradient": SquaredGradient}
VARIANTS = {"vl": "VL", "vi": "VI (mean)", "map": "MAP"}
SAMPLES = 10


def measure(run: Run) -> dict[str, Any]:
    """Train and score every cell of the five parts."""
    s, splits = load_splits(run)
    few = s.overfitting

    def one(part: str, *what: Any, weight: float | None = None) -> dict[str, Any]:
        row = trained_cell(run, s, splits, part, *what, weight=weight)
        score = "diverged" if row["diverged"] else f"NLL {row['mean']['nll']:.3f}, ECE {row['mean']['ece']:.3f}"
        run.say(f"{part} {' '.join(map(str, what))}{'' if weight is None else f' weight {weight:g}'}: {score}")
        return row

    grid = [one("grid", "cnn", m, t, 10.0, seed) for seed, t, m in product(s.seeds, s.temperings, METHODS)]
    best = sorted({best_tempering(grid, method) for method in METHODS})
    grid += [one("grid", "cnn", m, t, 10.0, seed) for seed, t, m in product(s.chosen_seeds, best, METHODS)]
    choices = product(s.study_temperings, s.multipliers, ("vl", "vi"))
    others = [("empirical", 0.0), *product(["gradient"], s.weights)]
    return {
        "settings": s.plain(),
        "grid": grid,
        "overfitting": [
            one("overfitting", "cnn", method, t, 10.0, seed)
            for seed, t, method in product(few["seeds"], few["temperings"], METHODS)
        ],
        "resnet": [one("resnet", "resnet", method, best_tempering(grid, method), 10.0, 0) for method in METHODS],
        "regularisers": [
            one("regularisers", "cnn", method, t, 10.0, seed, weight=weight)
            for seed, t, (method, weight) in product(s.regulariser_seeds, s.temperings, others)
        ],
        "multiplier": [one("multiplier", "cnn", method, t, multiplier, 0) for t, multiplier, method in choices],
    }


def best_tempering(grid: list[dict[str, Any]], method: str) -> float:
    """Return the tempering with the smallest validation NLL of the mean network, averaged over seeds.

    Raises:
        DataError: Every run of the method diverged.
    """
    best = chosen_tempering(grid, VARIANTS[method])
    if best is None:
        raise DataError(f"every run of {method} diverged: lower the learning rate")
    return best


def load_splits(run: Run) -> tuple[Settings, dict[str, Labelled]]:
    """Load training, validation and test images; the quick size falls back on scikit-learn's digits."""
    s, quick = run.settings, run.size == "quick"
    try:
        train, test = (load(s.data, part, run.data_dir, download=not quick) for part in ("train", "test"))
    except DataError:
        if not quick:
            raise
        s = s.replace(data="digits")
        train, test = load("digits", "train"), load("digits", "test")
    rows = {"train": train[: s.train], "validation": train[s.train : s.train + s.validation], "test": test[: s.test]}
    centre, spread = rows["train"].x.mean(), rows["train"].x.std()
    assert train.y is not None and test.y is not None
    return s, {name: Labelled((part.x - centre) / spread, part.y) for name, part in rows.items() if part.y is not None}


def trained_cell(
    run: Run, s: Settings, splits: dict[str, Labelled], part: str, *what: Any, weight: float | None = None
) -> dict[str, Any]:
    """Return one cell: a network trained and scored; `what` are architecture, method, tempering, multiplier, seed."""
    described = dict(zip(("architecture", "method", "tempering", "multiplier", "seed"), what, strict=True))
    cnn = described["architecture"] == "cnn"
    described |= {"epochs": s.epochs, "width": s.width} if cnn else {"epochs": s.resnet_epochs, "width": s.resnet_width}
    described |= {"data": s.data, "train": len(splits["train"]), "test": len(splits["test"])}
    described |= {"batch": s.batch, "lr": s.lr}
    name = "{}-{}-b{:g}-m{:g}-s{}".format(*what)
    if part == "overfitting":
        few = s.overfitting
        train = Labelled(splits["train"].x[: few["train"]], splits["train"].y[: few["train"]])
        splits = {**splits, "train": train}
        described |= {"train": len(train), "epochs": few["epochs"], "batch": few["batch"], "lr": few["lr"]}
        described["watch_every"] = few["watch_every"]  # only where it is wanted: other cells keep their settings
        name = f"overfit-{name}"
    if part == "multiplier":
        described["watch_every"] = 1
        name = f"multiplier-{name}"
    if weight is not None:
        described["weight"] = weight
        name = f"{name}-w{weight:g}"
    return run.cell(name, described, lambda: _train(splits, described), among=part)


def _train(splits: dict[str, Labelled], cell_settings: dict[str, Any]) -> dict[str, Any]:
    s = cell_settings
    torch.manual_seed(s["seed"])
    network = _network(s["architecture"], s["width"], splits["train"].x)
    generator = torch.Generator().manual_seed(1000 + s["seed"])
    kind = {**METHODS, **REGULARISERS}[s["method"]]
    options: dict[str, Any] = {} if issubclass(kind, MAP) else {"multiplier": s["multiplier"]}
    method = kind(network, "categorical", num_data=s["train"], tempering=s["tempering"], generator=generator, **options)
    if isinstance(method, SquaredGradient):
        method.weight = s["weight"]
    method.train()
    started = time.thread_time()
    try:
        curve, history = _fit(method, splits, s)
    except MarquisError as error:  # outputs or gradients that are no longer numbers
        return {"diverged": True, "reason": str(error)}
    seconds = (time.thread_time() - started) / s["epochs"]
    result: dict[str, Any] = {"diverged": False, "curve": curve, "cpu_seconds_per_epoch": seconds}
    if history:
        result["watched"] = history
        result["training"] = _score(method, splits["train"], 0)
    result["validation"] = _score(method, splits["validation"], 0)
    result["mean"] = _score(method, splits["test"], 0)
    if not isinstance(method, MAP):
        result["sampled"] = _score(method, splits["test"], SAMPLES)
        loader = splits["train"].batches(500)
        per_example = 1 / s["train"]
        result["elbo"] = method.elbo(loader) * per_example
        penalty = s["tempering"] * float(method.kl().detach())
        result["elbo_by_draws"] = (method.log_likelihood(loader, samples=5) - penalty) * per_example
        ratios = [w / p for w, p in zip(method.sigmas, method.prior_scales, strict=True)]
        result["median_sigma_over_prior"] = float(torch.cat([r.detach().flatten() for r in ratios]).median())
    return result


def _network(architecture: str, width: float, images: Tensor) -> nn.Module:
    channels, edge = images.shape[1], images.shape[-1]
    if architecture == "resnet":
        return PreactResNet18(channels, 10, width)
    return small_cnn(channels, 10, int(width), edge)


def _fit(
    method: VariationalLaplace | MeanFieldVI | MAP, splits: dict[str, Labelled], s: dict[str, Any]
) -> tuple[list[float], list[list[float]]]:
    """Train by Adam; learning rates are divided by ten after half and three quarters of the epochs, as in the paper.

    Returns:
        The objective per example, averaged over each epoch; and pairs of epoch and validation NLL, where wanted.
    """
    data, every = splits["train"], s.get("watch_every")
    optimiser = torch.optim.Adam(method.parameter_groups(s["lr"]))
    milestones = [max(1, s["epochs"] // 2), max(1, 3 * s["epochs"] // 4)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, 0.1)
    batches = Shuffled((data.x, data.y), s["batch"], 2000 + s["seed"])
    curve, history = [], []
    for epoch in range(1, s["epochs"] + 1):
        losses = [-float(loss) for _, loss in descend(optimiser, batches, 1, method.step)]
        sizes = [len(part) for part in data.y.split(s["batch"])]
        schedule.step()
        curve.append(sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / len(data.x))
        if every and epoch % every == 0:
            history.append([epoch, _score(method, splits["validation"], 0)["nll"]])
    return curve, history


def _score(method: VariationalLaplace | MeanFieldVI | MAP, data: Labelled, samples: int) -> dict[str, float]:
    probs = []
    for x in data.x.split(500):
        predicted = method.predict(x, samples=samples).probs
        assert predicted is not None
        probs.append(predicted)
    return classification_scores(torch.cat(probs), data.y)


# `chosen_seeds` are run for every method, but only at temperings that validation chose for one of them with `seeds`.
# `overfitting` is the part in which the CNN sees few images for many epochs; validation NLL is recorded every
# `watch_every` epochs.
# fmt: off
OVERFITTING = {
    "train": 1_000, "epochs": 80, "batch": 64, "lr": 3e-3, "temperings": (0.01, 0.1, 0.3), "seeds": (0, 1, 2),
    "watch_every": 4,
}
STUDY = Study(
    "vl", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "data": "fashion-mnist", "train": 10_000, "validation": 2_000, "test": 10_000, "batch": 64, "lr": 3e-3,
        "width": 8, "epochs": 12, "temperings": (0.01, 0.03, 0.1, 1.0), "seeds": (0, 1), "chosen_seeds": (),
        "multipliers": (1.0, 3.0, 10.0, 30.0), "study_temperings": (1.0, 0.1), "resnet_width": 1 / 8,
        "resnet_epochs": 4, "overfitting": OVERFITTING, "weights": (1e-4, 1e-3), "regulariser_seeds": (0,),
    },
    quick={
        "train": 128, "validation": 64, "test": 128, "width": 2, "epochs": 2, "temperings": (0.1, 1.0),
        "seeds": (0,), "multipliers": (1.0, 10.0), "study_temperings": (1.0,), "resnet_width": 1 / 32,
        "resnet_epochs": 1, "weights": (1e-3,), "overfitting": {
            **OVERFITTING, "train": 64, "epochs": 4, "temperings": (0.01, 0.1), "seeds": (0,), "watch_every": 2,
        },
    },
    full={
        "train": 55_000, "validation": 5_000, "batch": 128, "lr": 1e-4, "epochs": 200, "seeds": (0,),
        "chosen_seeds": (1, 2), "resnet_epochs": 30,
    },
)
# fmt: on

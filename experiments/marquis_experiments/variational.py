"""`vl`: Variational Laplace, mean-field VI and MAP on Fashion-MNIST (VL Table 1, Table 2 and Figure 2).

Four parts: a grid over the tempering with the CNN; the same where the CNN overfits (few images, many epochs); the
learning-rate multiplier of log σ; and the narrow ResNet once per method at the tempering that validation chose. CIFAR
and SVHN are not run: the data is not at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.data import load
from marquis.errors import DataError, MarquisError
from marquis.variational import MAP, MeanFieldVI, PreactResNet18, VariationalLaplace, small_cnn
from marquis_experiments.cells import cell, stored, write_json
from marquis_experiments.metrics import classification_scores
from marquis_experiments.variational_report import write_report
from marquis_experiments.variational_settings import SETTINGS, Settings

METHODS = {"vl": VariationalLaplace, "vi": MeanFieldVI, "map": MAP}
SAMPLES = 10


@dataclass(frozen=True)
class Split:
    """Images and labels of one split."""

    x: Tensor
    y: Tensor


def run(
    size: str = "default",
    out: str | Path = "runs/vl",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
    parts: tuple[str, ...] = ("grid", "multiplier", "resnet", "overfitting"),
    only_stored: bool = False,
) -> Path:
    """Run the experiment, or what is missing of it, and write its page and pictures.

    Args:
        size: "quick", "default" or "full".
        out: Folder for cells, `results.json`, pictures and the page.
        data_dir: Where the data lies.
        say: Gets one line per finished cell.
        parts: Which parts to run; the page shows whatever has finished.
        only_stored: Train nothing; write the page from the cells that an earlier run finished.

    Returns:
        The path of the page.
    """
    settings = SETTINGS[size]
    folder = Path(out) / size
    settings, splits = _load(settings, size, data_dir)
    grid, study, resnet, overfitting = [], [], [], []
    started = time.time()

    def finished(rows: list[dict[str, Any]], row: dict[str, Any] | None) -> None:
        if row is None:
            return
        rows.append(row)
        score = "diverged" if row["diverged"] else f"NLL {row['mean']['nll']:.3f}, ECE {row['mean']['ece']:.3f}"
        label = f"{row['architecture']} {row['method']} beta {row['tempering']:g} x{row['multiplier']:g}"
        label = f"overfitting {label}" if "watch_every" in row else label
        say(f"[{time.time() - started:6.0f} s] {label} seed {row['seed']}: {score}")

    def one(*what: Any, overfit: bool = False) -> dict[str, Any] | None:
        return _trained(folder, splits, settings, *what, overfit=overfit, only_stored=only_stored)

    try:
        if "grid" in parts or "resnet" in parts:
            for seed, tempering, method in product(settings.seeds, settings.temperings, METHODS):
                finished(grid, one("cnn", method, tempering, 10.0, seed))
        if "multiplier" in parts:
            choices = product(settings.study_temperings, settings.multipliers, ("vl", "vi"))
            for tempering, multiplier, method in choices:
                finished(study, one("cnn", method, tempering, multiplier, 0))
        if "resnet" in parts:
            for method in METHODS if grid else ():
                finished(resnet, one("resnet", method, best_tempering(grid, method), 10.0, 0))
        if "overfitting" in parts:
            few = settings.overfitting
            for seed, tempering, method in product(few.seeds, few.temperings, METHODS):
                finished(overfitting, one("cnn", method, tempering, 10.0, seed, overfit=True))
    finally:  # a run that is stopped shows what it has
        results = {
            "size": size,
            "settings": asdict(settings),
            "grid": grid,
            "multiplier": study,
            "resnet": resnet,
            "overfitting": overfitting,
        }
        write_json(folder / "results.json", results)
        page = write_report(folder, results)
    return page


def best_tempering(grid: list[dict[str, Any]], method: str) -> float:
    """The tempering with the least validation NLL of the mean network, averaged over seeds."""
    scores: dict[float, list[float]] = {}
    for row in grid:
        if row["method"] == method and not row["diverged"]:
            scores.setdefault(row["tempering"], []).append(row["validation"]["nll"])
    if not scores:
        raise DataError(f"every run of {method} diverged: lower the learning rate")
    return min(scores, key=lambda tempering: sum(scores[tempering]) / len(scores[tempering]))


def _load(settings: Settings, size: str, data_dir: str | Path | None) -> tuple[Settings, dict[str, Split]]:
    """Training, validation and test images; the quick size makes do with scikit-learn's digits."""
    try:
        train = load(settings.data, "train", data_dir, download=size != "quick")
        test = load(settings.data, "test", data_dir, download=size != "quick")
    except DataError:
        if size != "quick":
            raise
        settings = replace(settings, data="digits")
        train, test = load("digits", "train"), load("digits", "test")
    rows = {
        "train": train[: settings.train],
        "validation": train[settings.train : settings.train + settings.validation],
        "test": test[: settings.test],
    }
    centre, spread = rows["train"].x.mean(), rows["train"].x.std()
    splits = {}
    for name, part in rows.items():
        assert part.y is not None
        splits[name] = Split((part.x - centre) / spread, part.y)
    return settings, splits


def _trained(
    folder: Path,
    splits: dict[str, Split],
    settings: Settings,
    architecture: str,
    method: str,
    tempering: float,
    multiplier: float,
    seed: int,
    *,
    overfit: bool = False,
    only_stored: bool = False,
) -> dict[str, Any] | None:
    """One cell: a network trained and scored; None if it is not there and only stored ones are wanted."""
    epochs = settings.epochs if architecture == "cnn" else settings.resnet_epochs
    described = {
        "architecture": architecture,
        "method": method,
        "tempering": tempering,
        "multiplier": multiplier,
        "seed": seed,
        "epochs": epochs,
        "width": settings.width if architecture == "cnn" else settings.resnet_width,
        "data": settings.data,
        "train": len(splits["train"].x),
        "test": len(splits["test"].x),
        "batch": settings.batch,
        "lr": settings.lr,
    }
    name = f"{architecture}-{method}-b{tempering:g}-m{multiplier:g}-s{seed}"
    if overfit:
        few = settings.overfitting
        train = Split(splits["train"].x[: few.train], splits["train"].y[: few.train])
        splits = {**splits, "train": train}
        described |= {"train": len(train.x), "epochs": few.epochs, "batch": few.batch, "lr": few.lr}
        described["watch_every"] = few.watch_every  # only here: cells of the other parts keep their settings
        name = f"overfit-{name}"
    if only_stored:
        return stored(folder / "cells", name, described)
    return cell(folder / "cells", name, described, lambda: _train(splits, described))


def _train(splits: dict[str, Split], cell_settings: dict[str, Any]) -> dict[str, Any]:
    s = cell_settings
    torch.manual_seed(s["seed"])
    network = _network(s["architecture"], s["width"], splits["train"].x)
    generator = torch.Generator().manual_seed(1000 + s["seed"])
    options: dict[str, Any] = {} if s["method"] == "map" else {"multiplier": s["multiplier"]}
    method = METHODS[s["method"]](
        network, "categorical", num_data=s["train"], tempering=s["tempering"], generator=generator, **options
    )
    method.train()
    started = time.thread_time()
    try:
        curve, watched = _fit(method, splits, s)
    except MarquisError as error:  # outputs or gradients that are no longer numbers
        return {"diverged": True, "reason": str(error)}
    seconds = (time.thread_time() - started) / s["epochs"]
    result: dict[str, Any] = {"diverged": False, "curve": curve, "cpu_seconds_per_epoch": seconds}
    if watched:
        result["watched"] = watched
        result["training"] = _score(method, splits["train"], 0)
    result["validation"] = _score(method, splits["validation"], 0)
    result["mean"] = _score(method, splits["test"], 0)
    if not isinstance(method, MAP):
        result["sampled"] = _score(method, splits["test"], SAMPLES)
        loader = list(zip(splits["train"].x.split(500), splits["train"].y.split(500), strict=True))
        per_datum = 1 / s["train"]
        result["elbo"] = method.elbo(loader) * per_datum
        penalty = s["tempering"] * float(method.kl().detach())
        result["elbo_by_draws"] = (method.log_likelihood(loader, samples=5) - penalty) * per_datum
        ratios = [w / p for w, p in zip(method.sigmas, method.prior_scales, strict=True)]
        result["median_sigma_over_prior"] = float(torch.cat([r.detach().flatten() for r in ratios]).median())
    return result


def _network(architecture: str, width: float, images: Tensor) -> nn.Module:
    channels, edge = images.shape[1], images.shape[-1]
    if architecture == "resnet":
        return PreactResNet18(channels, 10, width)
    return small_cnn(channels, 10, int(width), edge)


def _fit(
    method: VariationalLaplace | MeanFieldVI | MAP, splits: dict[str, Split], s: dict[str, Any]
) -> tuple[list[float], list[list[float]]]:
    """Adam, learning rates divided by ten after half and three quarters of the epochs, as in the paper.

    Returns:
        The objective per datum, averaged over each epoch; and pairs of epoch and validation NLL, where wanted.
    """
    data, every = splits["train"], s.get("watch_every")
    optimiser = torch.optim.Adam(method.parameter_groups(s["lr"]))
    milestones = [max(1, s["epochs"] // 2), max(1, 3 * s["epochs"] // 4)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, 0.1)
    shuffle = torch.Generator().manual_seed(2000 + s["seed"])
    curve, watched = [], []
    for epoch in range(1, s["epochs"] + 1):
        order = torch.randperm(len(data.x), generator=shuffle)
        total = 0.0
        for rows in order.split(s["batch"]):
            loss = method.step(data.x[rows], data.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total -= float(loss.detach()) * len(rows)
        schedule.step()
        curve.append(total / len(data.x))
        if every and epoch % every == 0:
            watched.append([epoch, _score(method, splits["validation"], 0)["nll"]])
    return curve, watched


def _score(method: VariationalLaplace | MeanFieldVI | MAP, data: Split, samples: int) -> dict[str, float]:
    probs = []
    for x in data.x.split(500):
        predicted = method.predict(x, samples=samples).probs
        assert predicted is not None
        probs.append(predicted)
    return classification_scores(torch.cat(probs), data.y)

"""`uci`: test log-likelihood of one-hidden-layer networks on UCI regression, standard and gap splits.

A network of 50 tanh units is trained by the tutorial's loop: L-BFGS to a mode, then prior precisions and noise by the
evidence, again and again, the round of the largest evidence kept; no validation data. Every input has a prior
precision of its own (MacKay's automatic relevance). That, and tanh, were chosen by hand among the variants listed in
`uci_report.VARIANTS`: by their evidence, but with the test scores of those splits in sight. From the same posterior
three predictions: MAP with the tuned noise, linearised Laplace, and networks with sampled weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.data import load
from marquis.errors import DataError
from marquis.likelihoods import Gaussian
from marquis.priors import Prior
from marquis_experiments.cells import cell, write_json
from marquis_experiments.linearised_laplace.evidence_loop import train_with_evidence
from marquis_experiments.uci_report import write_report

GAPS = {"boston": 13, "concrete": 8, "energy": 8, "naval": 16, "protein": 9, "wine": 11}
"""Number of gap splits: one per feature."""
STANDARD = {"boston": 20, "concrete": 20, "energy": 20, "naval": 20, "protein": 5, "wine": 20}


@dataclass(frozen=True)
class Settings:
    """How large the experiment is; what is cut from the literature's protocol is here."""

    standard: dict[str, int]
    gap: dict[str, int]
    hidden: int = 50
    max_train: int | None = 1000
    max_test: int | None = 1000
    rounds: int = 6
    iterations: int = 150
    samples: int = 100


SETTINGS = {
    "quick": Settings({"energy": 1}, {"energy": 1}, 10, 200, 200, 2, 30, 20),
    "default": Settings(
        {"boston": 3, "concrete": 3, "energy": 3, "naval": 2, "protein": 2, "wine": 2},
        {"boston": 4, "concrete": 4, "energy": 8, "naval": 8, "protein": 3, "wine": 3},
    ),
    "full": Settings(STANDARD, GAPS, max_train=None, max_test=None, rounds=12, iterations=500),
}


class OneHiddenLayer(nn.Module):
    """Inputs, one layer of tanh units, one output; a weight tensor per input, so that each has a prior precision.

    The same function as `Linear, Tanh, Linear`.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(1, hidden, bias=i == 0) for i in range(inputs))
        self.output = nn.Linear(hidden, 1)
        with torch.no_grad():
            for layer in self.inputs:
                layer.weight.mul_(inputs**-0.5)  # pyright: ignore[reportCallIssue]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[B, 1]` for inputs `[B, inputs]`."""
        terms = [layer(x[:, i : i + 1]) for i, layer in enumerate(self.inputs)]
        return self.output(torch.tanh(torch.stack(terms).sum(0)))


@dataclass(frozen=True)
class Fold:
    """One split, standardised by its training rows; `scale` is the labels' standard deviation before that."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    scale: float


def run(
    size: str = "default",
    out: str | Path = "runs/uci",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; fold by fold over all sets, so that a stopped run shows all of them."""
    settings = SETTINGS[size]
    folder = Path(out) / size
    rows: list[dict[str, Any]] = []
    started = time.time()

    def save() -> Path:
        results = {"size": size, "settings": asdict(settings), "rows": rows}
        write_json(folder / "results.json", results)
        return write_report(folder, results)

    for kind, name, fold in jobs(settings):
        row = one_fold(folder, settings, size, kind, name, fold, data_dir)
        rows.append(row)
        scores = ", ".join(f"{method} {row[method]:.2f}" for method in ("map", "linearised", "sampled"))
        say(f"[{time.time() - started:5.0f} s] {name} {kind} {fold}: {scores}")
        save()
    return save()


def jobs(settings: Settings) -> list[tuple[str, str, int]]:
    """All cells; the first folds of every set come first."""
    found = [("gap", name, fold) for name, count in settings.gap.items() for fold in range(count)]
    found += [("standard", name, fold) for name, count in settings.standard.items() for fold in range(count)]
    return sorted(found, key=lambda job: job[2])


def one_fold(
    folder: Path, settings: Settings, size: str, kind: str, name: str, fold: int, data_dir: str | Path | None
) -> dict[str, Any]:
    """One cell: train on a split, score on its test rows."""
    described = {"kind": kind, "name": name, "fold": fold, **asdict(settings)}
    del described["standard"], described["gap"]
    return cell(
        folder / "cells",
        f"{name}-{kind}-{fold}",
        described,
        lambda: evaluate(split(name, kind, fold, settings, size, data_dir), settings, fold),
    )


def split(name: str, kind: str, fold: int, settings: Settings, size: str, data_dir: str | Path | None) -> Fold:
    """Rows of a split, standardised; the quick size makes do with scikit-learn's diabetes."""
    try:
        train = load(
            f"uci/{name}", "train", data_dir, fold=fold, kind=kind, dtype=torch.float64, download=size != "quick"
        )
        test = load(
            f"uci/{name}", "test", data_dir, fold=fold, kind=kind, dtype=torch.float64, download=size != "quick"
        )
    except DataError:
        if size != "quick":
            raise
        x, y, x_test, y_test = _diabetes(kind)
    else:
        assert train.y is not None and test.y is not None
        x, y, x_test, y_test = train.x, train.y, test.x, test.y
    generator = torch.Generator().manual_seed(fold)
    keep = torch.randperm(len(x), generator=generator)[: settings.max_train]
    keep_test = torch.randperm(len(x_test), generator=generator)[: settings.max_test]
    x, y, x_test, y_test = x[keep], y[keep].reshape(-1, 1), x_test[keep_test], y_test[keep_test].reshape(-1, 1)
    centre, spread = x.mean(0), x.std(0)
    spread = torch.where(spread > 1e-9 * (1 + centre.abs()), spread, torch.ones_like(spread))  # constant columns
    offset, scale = y.mean(), y.std()
    return Fold(
        (x - centre) / spread, (y - offset) / scale, (x_test - centre) / spread, (y_test - offset) / scale, float(scale)
    )


def _diabetes(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from sklearn.datasets import load_diabetes

    x, y = (torch.from_numpy(part).double() for part in load_diabetes(return_X_y=True))  # pyright: ignore
    order = x[:, 2].argsort() if kind == "gap" else torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    third = len(x) // 3
    inside, outside = order[third : 2 * third], torch.cat([order[:third], order[2 * third :]])
    return x[outside], y[outside], x[inside], y[inside]


def evaluate(data: Fold, settings: Settings, seed: int) -> dict[str, Any]:
    """Train with evidence and score; log-likelihoods are per test row, in the labels' own units."""
    started = time.thread_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = OneHiddenLayer(data.x.shape[1], settings.hidden).double().eval()
    trained = train_with_evidence(
        network,
        data.x,
        data.y,
        Gaussian(10.0),
        Prior(1.0, groups="tensor"),
        rounds=settings.rounds,
        iterations=settings.iterations,
    )
    laplace = trained.laplace
    predicted = laplace.predict(data.x_test)
    assert predicted.noise_variance is not None
    units = -math.log(data.scale)
    generator = torch.Generator().manual_seed(seed)
    sampled = laplace.predict(data.x_test, "sampled", samples=settings.samples, generator=generator)
    draws = sampled.sample(settings.samples, torch.Generator().manual_seed(seed))
    noise = float(predicted.noise_variance.flatten()[0])
    # The mixture of Gaussians around the sampled networks, and the one Gaussian with its mean and variance.
    each = -0.5 * ((data.y_test - draws).square() / noise + math.log(2 * math.pi * noise))
    mixture = torch.logsumexp(each, 0) - math.log(settings.samples)
    point = replace(predicted, variance=torch.zeros_like(predicted.variance))
    inside = (data.y_test - predicted.mean).abs() < 2 * predicted.std
    return {
        "map": float(point.log_prob(data.y_test).mean()) + units,
        "linearised": float(predicted.log_prob(data.y_test).mean()) + units,
        "sampled": float(mixture.mean()) + units,
        "sampled_gaussian": float(sampled.log_prob(data.y_test).mean()) + units,
        "rmse": float((predicted.mean - data.y_test).square().mean().sqrt()) * data.scale,
        "inside_two_sd": float(inside.double().mean()),
        "log_evidence": trained.log_evidence,
        "evidence_by_round": [one.log_evidence for one in trained.rounds],
        "effective": trained.effective,
        "weights": trained.weights,
        "noise_sd": math.sqrt(noise) * data.scale,
        "label_sd": data.scale,
        "train": len(data.x),
        "test": len(data.x_test),
        "cpu_seconds": time.thread_time() - started,
    }

"""`uci`: test log-likelihood of one-hidden-layer networks on UCI regression, standard and gap splits.

A network of 50 tanh units is trained by the tutorial's loop: L-BFGS to a mode, then prior precisions and noise by the
evidence, again and again, the round of the largest evidence kept; no validation data. Every input has a prior
precision of its own (MacKay's automatic relevance determination). That and tanh were chosen by hand
(docs/experiments/notes.md). From the same posterior three predictions: MAP with the tuned noise, linearised Laplace,
and networks with sampled weights.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from marquis.data import load
from marquis.errors import DataError
from marquis.likelihoods import Gaussian
from marquis.priors import Prior
from marquis.randomness import seeded
from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import Mean, judged
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.linearised_laplace.evidence_loop import Trained, train_with_evidence
from marquis_experiments.linearised_laplace.uci_baselines import METHODS as BASELINES
from marquis_experiments.linearised_laplace.uci_baselines import SMALL, compared_values
from marquis_experiments.linearised_laplace.uci_baselines import scores as baseline_scores

GAPS = {"boston": 13, "concrete": 8, "energy": 8, "naval": 16, "protein": 9, "wine": 11}
"""Number of gap splits: one per feature."""
STANDARD = {"boston": 20, "concrete": 20, "energy": 20, "naval": 20, "protein": 5, "wine": 20}
METHODS = ("map", "linearised", "sampled", "sampled_gaussian")
DRAWN = {"map": ("MAP, tuned noise", GREY), "linearised": ("linearised", BLUE), "sampled": ("sampled", ORANGE)}
BOUND = -5.0
"""Nats that the linearised prediction should stay above on every gap set."""


def measure(run: Run) -> dict[str, Any]:
    """Train and score on every split; the first splits of every data set come first."""
    settings, rows = run.settings, []
    common = {
        name: value for name, value in settings.plain().items() if not name.startswith(("standard", "gap", "baseline"))
    }
    for kind, name, fold in jobs(settings):
        row = run.cell(
            f"{name}-{kind}-{fold}",
            {"kind": kind, "name": name, "fold": fold, **common},
            lambda kind=kind, name=name, fold=fold: evaluate(split(name, kind, fold, run), settings, fold),
            among="rows",
        )
        rows.append(row)
        scores = ", ".join(f"{method} {row[method]:.2f}" for method in DRAWN)
        run.say(f"{name} {kind} {fold}: {scores}")
    compared: list[dict[str, Any]] = []
    for kind, name, fold in jobs(settings):
        if fold >= settings.baseline_folds:
            continue
        small = name in SMALL and kind == "standard" and fold < settings.baseline_hmc_folds
        row = run.cell(
            f"baselines-{name}-{kind}-{fold}",
            {"kind": kind, "name": name, "fold": fold, "small": small, **settings.without("standard", "gap")},
            lambda kind=kind, name=name, fold=fold, small=small: compare(
                split(name, kind, fold, run), settings, fold, small
            ),
            among="baselines",
        )
        compared.append(row)
        run.say(
            f"{name} {kind} {fold}: " + ", ".join(f"{one} {row[one]:.2f}" for one in BASELINES if row[one] is not None)
        )
    return {"settings": settings.plain(), "rows": rows, "baselines": compared}


def jobs(settings: Settings) -> list[tuple[str, str, int]]:
    """Return kind, data set and fold of all splits; the first folds of every set come first."""
    splits = [
        (kind, name, fold)
        for kind in ("gap", "standard")
        for name in settings[kind]
        for fold in range(settings[kind][name])
    ]
    return sorted(splits, key=lambda job: job[2])


class OneHiddenLayer(nn.Module):
    """Compute one layer of tanh units and an output; a weight tensor per input, so that each has a prior precision.

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
        """Return outputs `[B, 1]` for inputs `[B, inputs]`."""
        terms = [layer(x[:, i : i + 1]) for i, layer in enumerate(self.inputs)]
        return self.output(torch.tanh(torch.stack(terms).sum(0)))


@dataclass(frozen=True)
class Fold:
    """Hold one split, standardised by its training rows; `scale` is the labels' standard deviation before that."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    scale: float


def split(name: str, kind: str, fold: int, run: Run) -> Fold:
    """Return the standardised rows of a split; the quick size falls back on scikit-learn's diabetes data."""
    options: dict[str, Any] = {"fold": fold, "kind": kind, "dtype": torch.float64, "download": run.size != "quick"}
    try:
        train, test = (load(f"uci/{name}", part, run.data_dir, **options) for part in ("train", "test"))
    except DataError:
        if run.size != "quick":
            raise
        x, y, x_test, y_test = _diabetes(kind)
    else:
        assert train.y is not None and test.y is not None
        x, y, x_test, y_test = train.x, train.y, test.x, test.y
    generator = torch.Generator().manual_seed(fold)
    subset = torch.randperm(len(x), generator=generator)[: run.settings.max_train]
    keep_test = torch.randperm(len(x_test), generator=generator)[: run.settings.max_test]
    x, y, x_test, y_test = x[subset], y[subset].reshape(-1, 1), x_test[keep_test], y_test[keep_test].reshape(-1, 1)
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
    middle, ends = order[third : 2 * third], torch.cat([order[:third], order[2 * third :]])
    return x[ends], y[ends], x[middle], y[middle]


def untrained(data: Fold, settings: Settings, seed: int) -> OneHiddenLayer:
    """Return the network of a seed."""
    with seeded(seed):
        return OneHiddenLayer(data.x.shape[1], settings.hidden).double().eval()


def train(data: Fold, settings: Settings, seed: int) -> Trained:
    """Train the network of a split with evidence."""
    options = {"rounds": settings.rounds, "iterations": settings.iterations}
    prior = Prior(1.0, groups="tensor")
    return train_with_evidence(untrained(data, settings, seed), data.x, data.y, Gaussian(10.0), prior, **options)


def compare(data: Fold, settings: Settings, seed: int, small: bool) -> dict[str, Any]:
    """Train with evidence and score the baselines with its prior and noise."""
    members = [untrained(data, settings, seed + 1000 * number) for number in range(1, settings.baseline_members)]
    return baseline_scores(train(data, settings, seed), members, data, settings, seed, small)


def evaluate(data: Fold, settings: Settings, seed: int) -> dict[str, Any]:
    """Train with evidence and score; log-likelihoods are per test row, in the units of the labels."""
    started = time.thread_time()
    trained = train(data, settings, seed)
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
    covered = (data.y_test - predicted.mean).abs() < 2 * predicted.std
    return {
        "map": float(point.log_prob(data.y_test).mean()) + units,
        "linearised": float(predicted.log_prob(data.y_test).mean()) + units,
        "sampled": float(mixture.mean()) + units,
        "sampled_gaussian": float(sampled.log_prob(data.y_test).mean()) + units,
        "rmse": float((predicted.mean - data.y_test).square().mean().sqrt()) * data.scale,
        "inside_two_sd": float(covered.double().mean()),
        "log_evidence": trained.log_evidence,
        "evidence_by_round": list(trained.rounds),
        "effective": trained.effective,
        "weights": trained.weights,
        "noise_sd": math.sqrt(noise) * data.scale,
        "label_sd": data.scale,
        "train": len(data.x),
        "test": len(data.x_test),
        "cpu_seconds": time.thread_time() - started,
    }


# --- page --------------------------------------------------------------------------------------------------


def of(rows: list[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    """Return the splits of one data set, by fold."""
    return sorted((row for row in rows if row["kind"] == kind and row["name"] == name), key=lambda row: row["fold"])


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables and for how many data sets each claim holds."""
    rows = results["rows"]
    names = sorted({row["name"] for row in rows})
    folds = {f"{name}, {kind}": of(rows, kind, name) for kind in ("standard", "gap") for name in names}
    others = [method for method in METHODS if method != "linearised"]
    gains = {
        key: {o: Mean(row["linearised"] - row[o] for row in splits) for o in others} for key, splits in folds.items()
    }

    def won(kind: str, other: str) -> int:
        return sum(mean(gains[f"{name}, {kind}"][other]) > 0 for name in names)

    above = sum(mean(row["linearised"] for row in folds[f"{name}, gap"]) > BOUND for name in names)
    against_map = [gains[f"{name}, standard"]["map"] for name in names]
    return {
        "folds": {
            key: {"splits": len(splits), **{score: Mean(row[score] for row in splits) for score in (*METHODS, "rmse")}}
            for key, splits in folds.items()
        },
        "gains": {
            key: {**each, "not_better": ", ".join(str(sum(gain <= 0 for gain in gain_of)) for gain_of in each.values())}
            for key, each in gains.items()
        },
        "hard": [row for name in ("energy", "naval") for row in of(rows, "gap", name)],
        "sets": len(names),
        "won": {"map": won("standard", "map"), "standard": won("standard", "sampled"), "gap": won("gap", "sampled")},
        "clear": sum(mean(gain) > standard_error(gain) for gain in against_map),
        "above": above,
        "below": sum(row["kind"] == "gap" and row["linearised"] <= BOUND for row in rows),
        "splits": len(rows),
        "minutes": sum(row["cpu_seconds"] for row in rows) / 60,
        "compared": compared_values(results.get("baselines", []), results["settings"]),
        "cut": results["settings"]["max_train"] is not None,
        **judged(
            {
                "map": won("standard", "map") == len(names),
                "sampled": won("standard", "sampled") == won("gap", "sampled") == len(names),
                "gap": above == len(names),
            }
        ),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw test log-likelihoods by data set, clipped below."""
    rows = results["rows"]
    names = sorted({row["name"] for row in rows})
    figure = Figure(2, 2, 4.4, 3.2)
    floor = -12.0
    for axis, kind in zip(figure.axes, ("standard", "gap"), strict=True):
        for shift, (method, (label, colour)) in zip((-0.2, 0.0, 0.2), DRAWN.items(), strict=True):
            for place, name in enumerate(names):
                scores = [row[method] for row in of(rows, kind, name)]
                below = mean(scores) < floor
                axis.errorbar(
                    [place + shift],
                    [max(mean(scores), floor)],
                    yerr=None if below else [standard_error(scores)],
                    fmt="v" if below else "o",
                    color=colour,
                    ms=6,
                    label=None if place else label,
                )
                if below:
                    at = (place + shift, floor + 0.5)
                    style: dict[str, Any] = {"fontsize": 6, "ha": "center", "va": "bottom", "rotation": 90}
                    axis.annotate(f"{mean(scores):.0f}", at, color=colour, **style)
        axis.axhline(BOUND, color="#bbbbbb", ls=":", lw=1)
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_ylim(floor - 0.7, 9.5)
        axis.set(title=f"{kind} splits", ylabel="test log-likelihood (nats)")
    figure.axes[1].legend(fontsize=7, loc="upper left")
    figure.save(folder / "uci.png")


# fmt: off
STUDY = Study(
    "uci", Path(__file__).with_suffix(".md"), measure, values, draw,
    default={
        "standard": {**dict.fromkeys(STANDARD, 8), "naval": 5, "protein": 5}, "gap": dict.fromkeys(GAPS, 8),
        "hidden": 50, "max_train": 1000, "max_test": 1000, "rounds": 6, "iterations": 150, "samples": 100,
        "baseline_folds": 2, "baseline_hmc_folds": 1, "baseline_members": 5, "baseline_iterations": 500,
        "baseline_steps": 1500, "baseline_transitions": 300,
    },
    quick={
        "standard": {"energy": 1}, "gap": {"energy": 1}, "hidden": 10, "max_train": 200, "max_test": 200,
        "rounds": 2, "iterations": 30, "samples": 20, "baseline_folds": 1, "baseline_hmc_folds": 1,
        "baseline_members": 2, "baseline_iterations": 30, "baseline_steps": 30, "baseline_transitions": 10,
    },
    full={
        "standard": STANDARD, "gap": GAPS, "max_train": None, "max_test": None, "rounds": 12, "iterations": 500,
    },
)
# fmt: on

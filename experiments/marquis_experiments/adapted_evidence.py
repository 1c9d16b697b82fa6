"""`adapted-evidence`: prior precisions from the evidence at the network's weights, and from that of the linear model.

Five small networks on a few hundred images of MNIST (methods.md 5.5, 5.6). The whole Gauss-Newton matrix is used, so
that differences come from the evidence and not from an approximation of the matrix; the posterior of every row is that
matrix plus the tuned prior precision, and the prediction is linearised.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from marquis.evidence import Tuned
from marquis.laplace import Laplace
from marquis.priors import Prior
from marquis_experiments.adapted_evidence_report import write_report
from marquis_experiments.adapted_networks import NETWORKS, SmallCNN, build, scaled
from marquis_experiments.cells import cell, write_json
from marquis_experiments.classifiers import (
    ImageData,
    Recipe,
    ensemble_probs,
    fitted_temperature,
    load_images,
    logits,
    train_map,
)
from marquis_experiments.metrics import classification_scores
from marquis_experiments.trained import trained

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "naive": ("evidence", {}),
    "adapted": ("adapted", {}),
    "adapted, Hessian at theta-star": ("adapted", {"hessian_at": "theta_star"}),
}
"""How the precisions are tuned: arguments of `Laplace.tune`."""

GROUPS = {"single": "scalar", "multiple": "layer"}
"""One precision for all weights, or one per layer (normalised layers included, as recommendation 2 asks)."""

ACCURACY = {"tolerance": 1e-2, "theta_tolerance": 1e-2}
"""Of the adapted evidence: precisions to a per cent, theta-star to a hundredth of a nat."""

TRAINING = Recipe(30, 32, 1e-2)


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        networks: which of `NETWORKS`.
        seeds: of initial weights and order of the rows.
        train: training images.
        test: test images.
        recipe: how networks are trained.
        decay: prior precision while training, i.e. weight decay times the number of data.
        path: networks followed along training.
        epochs: at which they are looked at.
        scales: factors on the weights of a normalised layer.
    """

    networks: tuple[str, ...] = tuple(NETWORKS)
    seeds: int = 3
    train: int = 400
    test: int = 500
    recipe: Recipe = TRAINING
    decay: float = 0.05
    path: tuple[str, ...] = ("ResNet", "FixUp")
    epochs: tuple[int, ...] = (1, 3, 10, 30)
    scales: tuple[float, ...] = (0.1, 1.0, 10.0)


SETTINGS = {
    "quick": Settings(("CNN",), 1, 60, 100, Recipe(3, 20, 1e-2), path=("CNN",), epochs=(1, 3), scales=(1.0, 10.0)),
    "default": Settings(),
    "full": Settings(
        seeds=10,
        train=2000,
        test=10_000,
        recipe=Recipe(60, 32, 1e-2),
        epochs=(1, 2, 4, 8, 15, 30, 60),
        scales=(0.1, 0.3, 1.0, 3.0, 10.0),
    ),
}


def run(
    size: str = "default",
    out: str | Path = "runs/adapted-evidence",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; seed by seed over all networks, so that a stopped run shows all."""
    settings = SETTINGS[size]
    folder = Path(out) / size
    data = load_images("mnist", settings.train, 400, settings.test, data_dir, or_digits=size == "quick")
    results: dict[str, Any] = {"size": size, "data": data.name, "settings": asdict(settings), "rows": []}
    results |= {"path": [], "scales": [], "ensembles": []}
    started = time.time()

    def done(kind: str, name: str, row: dict[str, Any]) -> None:
        results[kind].append(row)
        write_json(folder / "results.json", results)
        write_report(folder, results)
        say(f"[{time.time() - started:5.0f} s] {name}")

    for seed in range(settings.seeds):
        for name in settings.networks:
            done("rows", f"{name}, seed {seed}", one_network(folder, settings, data, name, seed))
        if seed == 0:
            for k in settings.scales:
                done("scales", f"CNN scaled by {k}", one_scale(folder, settings, data, k))
            for name in settings.path:
                for epochs in settings.epochs:
                    done("path", f"{name} after {epochs} epochs", one_epoch(folder, settings, data, name, epochs))
    for name in settings.networks:
        done("ensembles", f"{name}, ensemble", one_ensemble(folder, settings, data, name))
    return folder / "adapted-evidence.md"


# --- networks ------------------------------------------------------------------------------------------------


def network(folder: Path, settings: Settings, data: ImageData, name: str, seed: int, epochs: int) -> nn.Module:
    """A trained network in single precision; the learning rate falls over the whole of training, wherever it stops."""
    described = {
        "network": name,
        "data": data.name,
        "train": len(data.train),
        "seed": seed,
        "decay": settings.decay,
        **asdict(settings.recipe),
        "stopped": epochs,
    }

    def teach(model: nn.Module) -> None:
        train_map(model, data.train, settings.decay, Stopped(settings.recipe, epochs), 1000 + seed)

    label = name.lower().replace(" ", "-")
    return trained(folder / "networks", f"{label}-s{seed}-e{epochs}", described, lambda: build(name, seed), teach)


class Stopped(Recipe):
    """A recipe that is broken off: the schedule of the whole, the epochs of the beginning."""

    def __init__(self, whole: Recipe, epochs: int) -> None:
        super().__init__(epochs, whole.batch, whole.learning_rate)
        object.__setattr__(self, "_whole", whole)

    def factor(self, epochs_done: float) -> float:
        """That of the whole recipe."""
        return self._whole.factor(epochs_done)  # pyright: ignore[reportAttributeAccessIssue]


def fitted(model: nn.Module, data: ImageData) -> Laplace:
    """The whole Gauss-Newton matrix in double precision."""
    double = copy.deepcopy(model).double().eval()
    loader = [(x.double(), y) for x, y in data.train.batches(250)]
    return Laplace(double, "categorical", "full").fit(loader, progress=False)


def tuned_by(laplace: Laplace, method: str, groups: str) -> Tuned:
    """Tune from a precision of 1 on; the curvature of `laplace` is used again, its prior replaced."""
    how, options = METHODS[method]
    assert isinstance(laplace.model, nn.Module) and laplace.problem().loader is not None
    x = next(iter(laplace.problem().loader or []))[0]
    laplace.update(Prior(1.0, groups=groups).bind(laplace.fitted.layout, laplace.model, x))
    if how == "adapted":
        options = {**options, **ACCURACY}
    return laplace.tune(how, **options)


def scores(laplace: Laplace, data: ImageData) -> dict[str, float]:
    """Linearised predictions of the test images, and the mean variance of their logits."""
    inputs = [x.double() for x, _ in data.test.batches(250)]
    predicted = laplace.predict_loader(inputs, progress=False)
    assert predicted.probs is not None
    return {**classification_scores(predicted.probs, data.test.y), "variance": mean_variance(predicted.variance)}


def mean_variance(variance: Tensor) -> float:
    """Mean over data and logits, from variances `[n, C]` or covariances `[n, C, C]`."""
    return float((variance.diagonal(dim1=-2, dim2=-1) if variance.ndim == 3 else variance).mean())


def summary(tuned: Tuned) -> dict[str, Any]:
    """What was tuned, as JSON values."""
    assert tuned.effective_parameters is not None
    precision = getattr(tuned.prior, "precision")  # noqa: B009  (a bound prior: groups were asked for)
    return {
        "log_evidence": tuned.log_evidence,
        "precision": precision.tolist(),
        "groups": list(getattr(tuned.prior, "names")),  # noqa: B009
        "effective": float(tuned.effective_parameters.sum()),
        "alternations": len(tuned.history) - 1,
        "converged": tuned.converged,
    }


# --- cells ---------------------------------------------------------------------------------------------------


def described(settings: Settings, data: ImageData, **more: Any) -> dict[str, Any]:
    """All that a cell depends on."""
    common = {"data": data.name, "train": len(data.train), "test": len(data.test), "decay": settings.decay}
    return {**common, **asdict(settings.recipe), **ACCURACY, **more}


def one_network(folder: Path, settings: Settings, data: ImageData, name: str, seed: int) -> dict[str, Any]:
    """One network and seed: all ways of tuning."""

    def compute() -> dict[str, Any]:
        started = time.thread_time()
        model = network(folder, settings, data, name, seed, settings.recipe.epochs)
        outputs = logits(model, data.test.x)
        temperature = fitted_temperature(logits(model, data.validation.x), data.validation.y)
        point = {
            "MAP": classification_scores(outputs.softmax(1), data.test.y),
            "MAP, temperature": classification_scores((outputs / temperature).softmax(1), data.test.y),
        }
        trained_nll = classification_scores(logits(model, data.train.x).softmax(1), data.train.y)["nll"]
        laplace = fitted(model, data)
        found = {}
        for kind, groups in GROUPS.items():
            for method in METHODS:
                begun = time.thread_time()
                tuned = tuned_by(laplace, method, groups)
                seconds = time.thread_time() - begun
                found[f"{method}, {kind}"] = {**scores(laplace, data), **summary(tuned), "tune_seconds": seconds}
        return {
            "weights": laplace.fitted.layout.total,
            "train_nll": trained_nll,
            "temperature": temperature,
            "point": point,
            "tuned": found,
            "cpu_seconds": time.thread_time() - started,
        }

    return cell(folder / "cells", f"{name}-s{seed}", described(settings, data, network=name, seed=seed), compute)


def one_epoch(folder: Path, settings: Settings, data: ImageData, name: str, epochs: int) -> dict[str, Any]:
    """Both evidences, with one precision, after some epochs of training."""

    def compute() -> dict[str, Any]:
        model = network(folder, settings, data, name, 0, epochs)
        laplace = fitted(model, data)
        found = {}
        for method in ("naive", "adapted"):
            tuned = tuned_by(laplace, method, "scalar")
            found[method] = {**scores(laplace, data), **summary(tuned)}
        point = classification_scores(logits(model, data.test.x).softmax(1), data.test.y)
        train_nll = classification_scores(logits(model, data.train.x).softmax(1), data.train.y)["nll"]
        return {"tuned": found, "MAP": point, "train_nll": train_nll}

    name_of = f"path-{name}-e{epochs}"
    return cell(folder / "cells", name_of, described(settings, data, network=name, stopped=epochs), compute)


def one_scale(folder: Path, settings: Settings, data: ImageData, k: float) -> dict[str, Any]:
    """The CNN with one normalised layer k times as large: the same function, tuned in four ways."""

    def compute() -> dict[str, Any]:
        model = network(folder, settings, data, "CNN", 0, settings.recipe.epochs)
        assert isinstance(model, SmallCNN)
        twin = scaled(model, k)
        moved = float((logits(twin, data.test.x) - logits(model, data.test.x)).abs().max())
        laplace = fitted(twin, data)
        found = {}
        for method in ("naive", "adapted"):
            for kind, groups in (("single", "scalar"), ("normalised", "normalised")):
                tuned = tuned_by(laplace, method, groups)
                found[f"{method}, {kind}"] = {**scores(laplace, data), **summary(tuned)}
        return {"moved": moved, "tuned": found}

    return cell(folder / "cells", f"scale-{k:g}", described(settings, data, k=k), compute)


def one_ensemble(folder: Path, settings: Settings, data: ImageData, name: str) -> dict[str, Any]:
    """The networks of all seeds together, a deep ensemble."""

    def compute() -> dict[str, Any]:
        members: Sequence[nn.Module] = [
            network(folder, settings, data, name, seed, settings.recipe.epochs) for seed in range(settings.seeds)
        ]
        return classification_scores(ensemble_probs(members, data.test.x), data.test.y)

    settings_of = described(settings, data, network=name, members=settings.seeds)
    return cell(folder / "cells", f"ensemble-{name}", settings_of, compute)

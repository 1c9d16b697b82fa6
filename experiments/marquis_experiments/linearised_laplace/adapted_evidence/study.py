"""`adapted-evidence`: prior precisions from the evidence at the network's weights, and from that of the linear model.

Five small networks on a few hundred images of MNIST (docs/method/evidence.md). The whole Gauss-Newton matrix is used,
so that differences come from the evidence and not from an approximation of the matrix; the posterior of every row is
that matrix plus the tuned prior precision, and the prediction is linearised. The same networks with 46,000 weights have
Kronecker factors in its place.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.evidence import Tuned
from marquis.laplace import Laplace
from marquis.priors import Prior
from marquis_experiments.common.images import ImageData, ensemble_probs, fitted_temperature, load_images, logits
from marquis_experiments.common.metrics import classification_scores
from marquis_experiments.common.study import Run, Study
from marquis_experiments.linearised_laplace.adapted_evidence.networks import NETWORKS, SmallCNN, build, scaled
from marquis_experiments.linearised_laplace.adapted_evidence.page import draw, values
from marquis_experiments.linearised_laplace.classifiers import Recipe, train_map

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "naive": ("evidence", {}),
    "adapted": ("adapted", {}),
    "adapted, Hessian at theta-star": ("adapted", {"hessian_at": "theta_star"}),
}
"""Ways of tuning the precisions: arguments of `Laplace.tune`."""

GROUPS = {"single": "scalar", "multiple": "layer"}
"""One precision for all weights, or one per layer (normalised layers included, as recommendation 2 has it)."""

WIDE: tuple[dict[str, Any], ...] = ({}, {"width": "wide", "structure": "kronecker"})
"""What the keys of small and of wide networks hold beside their names."""

ACCURACY = {"tolerance": 1e-2, "theta_tolerance": 1e-2}
"""Tolerances of the adapted evidence: precisions to a per cent, theta-star to a hundredth of a nat."""


def measure(run: Run) -> dict[str, Any]:
    """Compute all cells, seed by seed over all networks."""
    s = run.settings
    data = load_images("mnist", s.train, 400, s.test, run.data_dir, or_digits=run.size == "quick")
    cells = Cells(run, data)
    rows, scales, path = [], [], []
    for seed in range(s.seeds):
        rows += [cells.one_network(name, seed) for name in s.networks]
        if seed == 0:
            scales = [cells.one_scale(k) for k in s.scales]
            path = [cells.one_epoch(name, epochs) for name in s.path for epochs in s.epochs]
    ensembles = [cells.one_ensemble(name) for name in s.networks]
    wide = [cells.one_network(name, seed, wide=True) for seed in range(s.wide_seeds) for name in s.wide]
    parts = {"rows": rows, "path": path, "scales": scales, "ensembles": ensembles, "wide": wide}
    return {"data": data.name, "settings": s.plain(), **parts}


class Stopped(Recipe):
    """Describe a recipe that stops early: the schedule of the whole, the epochs of the beginning."""

    def __init__(self, whole: Recipe, epochs: int) -> None:
        super().__init__(epochs, whole.batch, whole.learning_rate)
        object.__setattr__(self, "_whole", whole)

    def factor(self, epochs_done: float) -> float:
        """Return the factor of the whole recipe."""
        return self._whole.factor(epochs_done)  # pyright: ignore[reportAttributeAccessIssue]


def fitted(model: nn.Module, data: ImageData, wide: bool = False) -> Laplace:
    """Fit the whole Gauss-Newton matrix in double precision, or Kronecker factors in single precision."""
    dtype = torch.float32 if wide else torch.float64
    loader = [(x.to(dtype), y) for x, y in data.train.batches(250)]
    structure = "kronecker" if wide else "full"
    return Laplace(copy.deepcopy(model).to(dtype).eval(), "categorical", structure).fit(loader, progress=False)


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
    """Return scores of linearised predictions of the test images, and the mean variance of their logits."""
    assert isinstance(laplace.model, nn.Module)
    dtype = next(laplace.model.parameters()).dtype
    inputs = [x.to(dtype) for x, _ in data.test.batches(250)]
    predicted = laplace.predict_loader(inputs, progress=False)
    assert predicted.probs is not None
    return {**classification_scores(predicted.probs, data.test.y), "variance": mean_variance(predicted.variance)}


def mean_variance(variance: Tensor) -> float:
    """Return the mean over images and logits, from variances `[n, C]` or covariances `[n, C, C]`."""
    return float((variance.diagonal(dim1=-2, dim2=-1) if variance.ndim == 3 else variance).mean())


def summary(tuned: Tuned) -> dict[str, Any]:
    """Return what was tuned as JSON values."""
    assert tuned.effective_parameters is not None
    precision = getattr(tuned.prior, "precision")  # noqa: B009  (a bound prior, because it has groups)
    return {
        "log_evidence": tuned.log_evidence,
        "precision": precision.tolist(),
        "groups": list(getattr(tuned.prior, "names")),  # noqa: B009
        "effective": float(tuned.effective_parameters.sum()),
        "alternations": len(tuned.history) - 1,
        "converged": tuned.converged,
    }


# --- cells ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cells:
    """Hold the networks and cells of one run."""

    run: Run
    data: ImageData

    def network(self, name: str, seed: int, epochs: int | None = None, wide: bool = False) -> nn.Module:
        """Return a trained network; the learning rate follows the whole schedule wherever training stops."""
        s = self.run.settings
        stopped: int = s.recipe.epochs if epochs is None else epochs
        described = {
            "network": name,
            "data": self.data.name,
            "train": len(self.data.train),
            "seed": seed,
            "decay": s.decay,
            **asdict(s.recipe),
            "stopped": stopped,
            **WIDE[wide],
        }
        label = f"{'wide-' * wide}{name.lower().replace(' ', '-')}-s{seed}-e{stopped}"
        recipe = Stopped(s.recipe, stopped)
        return self.run.network(
            label,
            described,
            lambda: build(name, seed, wide),
            lambda model: train_map(model, self.data.train, s.decay, recipe, 1000 + seed),
        )

    def cell(
        self, name: str, compute: Callable[[], dict[str, Any]], among: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return a cell; its key holds all that it depends on, and `among` is the list of rows like it."""
        s, data = self.run.settings, self.data
        common = {"data": data.name, "train": len(data.train), "test": len(data.test), "decay": s.decay}
        self.run.say(name)
        return self.run.cell(name, {**common, **s.recipe.described(), **ACCURACY, **more}, compute, among)

    def point_scores(self, model: nn.Module) -> dict[str, float]:
        """Return test scores of the network itself."""
        return classification_scores(logits(model, self.data.test.x).softmax(1), self.data.test.y)

    def train_nll(self, model: nn.Module) -> float:
        """Return the NLL of the training images."""
        return classification_scores(logits(model, self.data.train.x).softmax(1), self.data.train.y)["nll"]

    def tuned(self, laplace: Laplace, method: str, groups: str) -> dict[str, Any]:
        """Tune the prior and return test scores, what was tuned, and the seconds it took."""
        begun = time.thread_time()
        result = tuned_by(laplace, method, groups)
        seconds = time.thread_time() - begun
        return {**scores(laplace, self.data), **summary(result), "tune_seconds": seconds}

    def one_network(self, name: str, seed: int, wide: bool = False) -> dict[str, Any]:
        """Return one network and seed with all ways of tuning."""

        def compute() -> dict[str, Any]:
            started = time.thread_time()
            model, held_out = self.network(name, seed, wide=wide), self.data.validation
            temperature = fitted_temperature(logits(model, held_out.x), held_out.y)
            tempered = (logits(model, self.data.test.x) / temperature).softmax(1)
            laplace = fitted(model, self.data, wide)
            tuned = {
                f"{method}, {kind}": self.tuned(laplace, method, groups)
                for kind, groups in GROUPS.items()
                for method in (("naive", "adapted") if wide else METHODS)
            }
            return {
                "weights": laplace.fitted.layout.total,
                "train_nll": self.train_nll(model),
                "temperature": temperature,
                "point": {
                    "MAP": self.point_scores(model),
                    "MAP, temperature": classification_scores(tempered, self.data.test.y),
                },
                "tuned": tuned,
                "cpu_seconds": time.thread_time() - started,
            }

        among = "wide" if wide else "rows"
        return self.cell(f"{'wide-' * wide}{name}-s{seed}", compute, among, network=name, seed=seed, **WIDE[wide])

    def one_epoch(self, name: str, epochs: int) -> dict[str, Any]:
        """Return both evidences with one precision after some epochs of training."""

        def compute() -> dict[str, Any]:
            model = self.network(name, 0, epochs)
            laplace = fitted(model, self.data)
            tuned = {method: self.tuned(laplace, method, "scalar") for method in ("naive", "adapted")}
            return {"tuned": tuned, "MAP": self.point_scores(model), "train_nll": self.train_nll(model)}

        return self.cell(f"path-{name}-e{epochs}", compute, network=name, stopped=epochs)

    def one_scale(self, k: float) -> dict[str, Any]:
        """Return the CNN with one normalised layer k times as large, the same function, tuned in four ways."""

        def compute() -> dict[str, Any]:
            model = self.network("CNN", 0)
            assert isinstance(model, SmallCNN)
            twin = scaled(model, k)
            moved = float((logits(twin, self.data.test.x) - logits(model, self.data.test.x)).abs().max())
            laplace = fitted(twin, self.data)
            tuned = {
                f"{method}, {kind}": self.tuned(laplace, method, groups)
                for method in ("naive", "adapted")
                for kind, groups in (("single", "scalar"), ("normalised", "normalised"))
            }
            return {"moved": moved, "tuned": tuned}

        return self.cell(f"scale-{k:g}", compute, k=k)

    def one_ensemble(self, name: str) -> dict[str, Any]:
        """Return scores of the deep ensemble of all seeds."""
        seeds = self.run.settings.seeds

        def compute() -> dict[str, Any]:
            probs = ensemble_probs([self.network(name, seed) for seed in range(seeds)], self.data.test.x)
            return classification_scores(probs, self.data.test.y)

        return self.cell(f"ensemble-{name}", compute, network=name, members=seeds)


# `decay` is the prior precision while training (weight decay times the number of training images), `path` are networks
# followed along training and looked at after `epochs`, `scales` factors on the weights of a normalised layer, `wide`
# are networks that are also run with 46,000 weights.
# fmt: off
STUDY = Study(
    "adapted-evidence", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "networks": tuple(NETWORKS), "seeds": 3, "train": 400, "test": 500, "recipe": Recipe(30, 32, 1e-2),
        "decay": 0.05, "path": ("ResNet", "FixUp"), "epochs": (1, 3, 10, 30), "scales": (0.1, 1.0, 10.0),
        "wide": ("CNN",), "wide_seeds": 1,
    },
    quick={
        "networks": ("CNN",), "seeds": 1, "train": 60, "test": 100, "recipe": Recipe(3, 20, 1e-2),
        "path": ("CNN",), "epochs": (1, 3), "scales": (1.0, 10.0), "wide": (),
    },
    full={
        "seeds": 10, "train": 2000, "test": 10_000, "recipe": Recipe(60, 32, 1e-2),
        "epochs": (1, 2, 4, 8, 15, 30, 60), "scales": (0.1, 0.3, 1.0, 3.0, 10.0),
        "wide": tuple(NETWORKS), "wide_seeds": 3,
    },
)
# fmt: on

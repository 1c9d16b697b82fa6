"""`toy-classification`: MAP is overconfident away from the data, linearised Laplace is not.

Two moons, a small network with its prior precision by the evidence, and the probability it gives over the plane:
MAP, linearised Laplace with full, Kronecker, diagonal and last-layer posteriors, and sampled networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marquis.laplace import Laplace
from marquis.likelihoods import Categorical
from marquis.priors import Prior
from marquis_experiments.common.figure import Figure
from marquis_experiments.common.metrics import classification_scores, probabilities
from marquis_experiments.common.networks import mlp
from marquis_experiments.common.page import judged
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.linearised_laplace.evidence_loop import fit_at_mode, train_with_evidence

EDGE = 6.0
"""Half the width of the maps."""
RADII = (2.0, 4.0, 8.0, 16.0, 64.0)
"""Circles on which the confidence is measured; the data reach out to about 2."""
PRECISIONS = (100.0, 10.0, 1.0, 0.1)


def measure(run: Run) -> dict[str, Any]:
    """Compute both parts of the page; the data are drawn."""
    settings = run.settings
    return {
        "settings": settings.plain(),
        "methods": run.cell("methods", settings, lambda: methods(settings)),
        "precisions": run.cell("precisions", settings, lambda: precisions(settings)),
    }


def two_moons(n: int, seed: int, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    """Draw two interleaved half circles, centred at the origin."""
    generator = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    labels = torch.arange(n) % 2
    upper = torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], 1)
    lower = torch.stack([0.5 - angle.cos(), 0.25 - angle.sin()], 1)
    x = torch.where(labels.unsqueeze(1) == 0, upper, lower)
    return x + noise * torch.randn(n, 2, generator=generator, dtype=torch.float64), labels


def plane(pixels: int) -> Tensor:
    """Return inputs over a square, row by row."""
    edge = torch.linspace(-EDGE, EDGE, pixels, dtype=torch.float64)
    return torch.cartesian_prod(edge, edge).flip(1)


def ring(radius: float, count: int = 180) -> Tensor:
    """Return inputs on a circle."""
    angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    return radius * torch.stack([angle.cos(), angle.sin()], 1)


def methods(settings: Settings) -> dict[str, Any]:
    """Compare MAP and several predictions from the posterior of one network."""
    x, y = two_moons(settings.train, 0)
    untrained, options = network_of(settings), {"rounds": settings.rounds, "iterations": settings.iterations}
    trained = train_with_evidence(untrained, x, y, Categorical(), Prior(0.1), **options)
    network = trained.laplace.model
    assert isinstance(network, nn.Module)
    precision = float(trained.laplace.problem().grouped_prior.precision[0])

    def fitted(structure: str, parameters: str = "all") -> Laplace:
        laplace = Laplace(network, "categorical", structure, parameters=parameters, prior=precision)
        return laplace.fit([(x, y)], progress=False)

    posteriors = {name: fitted(name.lower()) for name in ("full", "Kronecker", "diagonal")}
    posteriors["last layer"] = fitted("full", "last-layer")

    def sampled(inputs: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        predicted = posteriors["full"].predict(inputs, "sampled", samples=settings.samples, generator=generator)
        return probabilities(predicted)

    predictors: dict[str, Callable[[Tensor], Tensor]] = {
        "MAP": lambda inputs: network(inputs).detach().softmax(1),
        **{f"linearised, {name}": predictor_of(laplace) for name, laplace in posteriors.items()},
        "sampled networks, full": sampled,
    }
    return {
        "data": {"x": x.tolist(), "y": y.tolist()},
        "precision": precision,
        "effective": trained.effective,
        "weights": trained.weights,
        "cases": {name: described(predictor, settings) for name, predictor in predictors.items()},
    }


def precisions(settings: Settings) -> dict[str, Any]:
    """Train the network again with prior precisions from 100 to 0.1; full posterior."""
    x, y = two_moons(settings.train, 0)
    cases = {}
    for precision in PRECISIONS:
        laplace = fit_at_mode(network_of(settings), x, y, Categorical(), precision, 3 * settings.iterations)
        cases[f"{precision:g}"] = {
            **described(predictor_of(laplace), settings),
            "log_evidence": float(laplace.log_evidence()),
            "effective": float(laplace.effective_parameters()),
        }
    return {"data": {"x": x.tolist(), "y": y.tolist()}, "cases": cases}


def network_of(settings: Settings) -> nn.Module:
    """Return the untrained network."""
    return mlp(2, (settings.hidden, settings.hidden), 2, nn.ReLU, 0)


def predictor_of(laplace: Laplace) -> Callable[[Tensor], Tensor]:
    """Return the linearised class probabilities as a function of inputs."""
    return lambda inputs: probabilities(laplace.predict(inputs))


def described(predictor: Callable[[Tensor], Tensor], settings: Settings) -> dict[str, Any]:
    """Return test scores, mean confidence on circles about the data, and the map over the plane."""
    x, y = two_moons(settings.test, 1)
    return {
        **classification_scores(predictor(x), y),
        "confidence": [float(predictor(ring(radius)).max(1).values.mean()) for radius in RADII],
        "plane": [round(value, 3) for value in predictor(plane(settings.pixels))[:, 1].tolist()],
    }


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return what the page compares; linearised Laplace must be less confident far away, at MAP's accuracy and NLL."""
    cases = results["methods"]["cases"]
    point, full, sampled = cases["MAP"], cases["linearised, full"], cases["sampled networks, full"]
    return {
        "radii": RADII,
        "map": point,
        "full": full,
        "sampled": sampled,
        "last": cases["linearised, last layer"],
        "nll_rises": full["nll"] > point["nll"],
        **judged(
            {
                "far": point["confidence"][-1] > 0.95 > full["confidence"][-1],
                "scores": abs(full["accuracy"] - point["accuracy"]) < 0.01 and full["nll"] <= point["nll"],
                "sampled": sampled["accuracy"] < full["accuracy"] - 0.05,
            }
        ),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw both maps."""
    pixels = results["settings"]["pixels"]
    draw_maps(folder / "toy-classification.png", results["methods"], pixels, 3, "{}")
    draw_maps(folder / "toy-classification-precisions.png", results["precisions"], pixels, 4, "prior precision {}")


def draw_maps(path: Path, part: dict[str, Any], pixels: int, columns: int, title: str) -> None:
    """Draw maps of the probability of the second class, with the data on top."""
    figure = Figure(len(part["cases"]), columns, 2.9, 2.6, share=True)
    x, y = np.array(part["data"]["x"]), np.array(part["data"]["y"])
    for axis, (name, case) in zip(figure.axes, part["cases"].items(), strict=True):
        plane_of = np.array(case["plane"]).reshape(pixels, pixels)
        style = {"extent": (-EDGE, EDGE, -EDGE, EDGE), "origin": "lower", "interpolation": "bilinear"}
        axis.imshow(plane_of, cmap="RdBu_r", vmin=0, vmax=1, **style)
        for label, colour in ((0, "#08306b"), (1, "#67000d")):
            axis.plot(*x[y == label].T, "o", color=colour, ms=2.5, mec="white", mew=0.3)
        axis.set_title(title.format(name), fontsize=9)
        axis.tick_params(labelsize=7)
    figure.figure.colorbar(figure.axes[0].images[0], ax=figure.axes, shrink=0.8, label="p(second class)")
    figure.save(path, 80)


# fmt: off
STUDY = Study(
    "toy-classification", Path(__file__).with_suffix(".md"), measure, values, draw,
    default={
        "hidden": 20, "rounds": 6, "iterations": 150, "train": 150, "test": 1000, "pixels": 61, "samples": 200,
    },
    quick={
        "hidden": 8, "rounds": 2, "iterations": 40, "train": 60, "test": 200, "pixels": 15, "samples": 20,
    },
    full={
        "hidden": 50, "rounds": 20, "iterations": 1000, "train": 500, "test": 10_000, "pixels": 201,
        "samples": 2000,
    },
)
# fmt: on

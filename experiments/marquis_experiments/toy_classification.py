"""`toy-classification`: MAP is overconfident away from the data, Laplace is not.

Two moons, a small network with its prior precision by the evidence, and the probability it gives over the plane:
MAP, linearised Laplace with full, Kronecker, diagonal and last-layer posteriors, and sampled networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marquis.laplace import Laplace
from marquis.likelihoods import Categorical
from marquis.priors import Prior
from marquis_experiments.cells import cell, write_json
from marquis_experiments.common.networks import mlp
from marquis_experiments.linearised_laplace.evidence_loop import (
    exact_structure,
    precisions_by_name,
    to_mode,
    train_with_evidence,
)
from marquis_experiments.metrics import classification_scores
from marquis_experiments.pages import Picture, command, table, write_page

EDGE = 6.0
RADII = (2.0, 4.0, 8.0, 16.0, 64.0)
PRECISIONS = (100.0, 10.0, 1.0, 0.1)


@dataclass(frozen=True)
class Settings:
    """How large the experiment is."""

    hidden: int = 20
    rounds: int = 6
    iterations: int = 150
    train: int = 150
    test: int = 1000
    pixels: int = 61
    samples: int = 200


SETTINGS = {
    "quick": Settings(8, 2, 40, 60, 200, 15, 20),
    "default": Settings(),
    "full": Settings(50, 20, 1000, 500, 10_000, 201, 2000),
}


def run(
    size: str = "default",
    out: str | Path = "runs/toy-classification",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; `data_dir` is not used, the data are drawn."""
    settings, folder = SETTINGS[size], Path(out) / size
    results: dict[str, Any] = {"size": size, "settings": asdict(settings)}
    for name, compute in {"methods": methods, "precisions": precisions}.items():
        results[name] = cell(folder / "cells", name, asdict(settings), lambda compute=compute: compute(settings))
        say(f"{name}: done")
    write_json(folder / "results.json", results)
    return write_report(folder, results)


def two_moons(n: int, seed: int, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    """Two interleaved half circles, centred at the origin."""
    generator = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    labels = torch.arange(n) % 2
    upper = torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], 1)
    lower = torch.stack([0.5 - angle.cos(), 0.25 - angle.sin()], 1)
    x = torch.where(labels.unsqueeze(1) == 0, upper, lower)
    return x + noise * torch.randn(n, 2, generator=generator, dtype=torch.float64), labels


def plane(pixels: int) -> Tensor:
    """Inputs over a square, row by row."""
    edge = torch.linspace(-EDGE, EDGE, pixels, dtype=torch.float64)
    return torch.cartesian_prod(edge, edge).flip(1)


def ring(radius: float, count: int = 180) -> Tensor:
    """Inputs on a circle."""
    angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
    return radius * torch.stack([angle.cos(), angle.sin()], 1)


def methods(settings: Settings) -> dict[str, Any]:
    """One network; MAP and several predictions from its posterior."""
    x, y = two_moons(settings.train, 0)
    trained = train_with_evidence(
        mlp(2, (settings.hidden, settings.hidden), 2, nn.ReLU, 0),
        x,
        y,
        Categorical(),
        Prior(0.1),
        rounds=settings.rounds,
        iterations=settings.iterations,
    )
    network = trained.laplace.model
    assert isinstance(network, nn.Module)
    precision = float(trained.laplace.problem().grouped_prior.precision[0])

    def fitted(structure: str, parameters: str = "all") -> Laplace:
        return Laplace(network, "categorical", structure, parameters=parameters, prior=precision).fit(
            [(x, y)], progress=False
        )

    posteriors = {
        "linearised, full": fitted("full"),
        "linearised, Kronecker": fitted("kronecker"),
        "linearised, diagonal": fitted("diagonal"),
        "linearised, last layer": fitted("full", "last-layer"),
    }
    predictors: dict[str, Callable[[Tensor], Tensor]] = {
        "MAP": lambda inputs: network(inputs).detach().softmax(1),
        **{name: lambda inputs, la=la: probs(la, inputs) for name, la in posteriors.items()},
        "sampled networks, full": lambda inputs: probs(
            posteriors["linearised, full"],
            inputs,
            "sampled",
            samples=settings.samples,
            generator=torch.Generator().manual_seed(0),
        ),
    }
    found: dict[str, Any] = {
        "data": {"x": x.tolist(), "y": y.tolist()},
        "precision": precision,
        "effective": trained.effective,
        "weights": trained.weights,
        "cases": {},
    }
    for name, predictor in predictors.items():
        found["cases"][name] = described(predictor, settings)
    return found


def precisions(settings: Settings) -> dict[str, Any]:
    """The network trained anew with prior precisions from 100 to 0.1; full posterior."""
    x, y = two_moons(settings.train, 0)
    found: dict[str, Any] = {"data": {"x": x.tolist(), "y": y.tolist()}, "cases": {}}
    for precision in PRECISIONS:
        network = mlp(2, (settings.hidden, settings.hidden), 2, nn.ReLU, 0)
        prior = Prior(precision)
        to_mode(network, x, y, Categorical(), precisions_by_name(network, prior), 3 * settings.iterations)
        laplace = Laplace(network, "categorical", exact_structure(network, x), prior=prior).fit(
            [(x, y)], progress=False
        )
        found["cases"][f"{precision:g}"] = {
            **described(lambda inputs, la=laplace: probs(la, inputs), settings),
            "log_evidence": float(laplace.log_evidence()),
            "effective": float(laplace.effective_parameters()),
        }
    return found


def probs(laplace: Laplace, x: Tensor, method: str = "linearised", **options: Any) -> Tensor:
    """Class probabilities."""
    found = laplace.predict(x, method, **options).probs
    assert found is not None
    return found


def described(predictor: Callable[[Tensor], Tensor], settings: Settings) -> dict[str, Any]:
    """Test scores, mean confidence on circles about the data, and the map over the plane."""
    x, y = two_moons(settings.test, 1)
    return {
        **classification_scores(predictor(x), y),
        "confidence": [float(predictor(ring(radius)).max(1).values.mean()) for radius in RADII],
        "plane": [round(value, 3) for value in predictor(plane(settings.pixels))[:, 1].tolist()],
    }


# --- page --------------------------------------------------------------------------------------------------


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `toy-classification.md` and its pictures next to the results."""
    found, swept = results["methods"], results["precisions"]
    draw(folder / "toy-classification.png", found, results["settings"]["pixels"], 3, "{}")
    draw(folder / "toy-classification-precisions.png", swept, results["settings"]["pixels"], 4, "prior precision {}")
    hidden = results["settings"]["hidden"]
    widths = f"2-{hidden}-{hidden}-2"
    rings = [f"r = {radius:g}" for radius in RADII]
    pieces = [
        "# Toy classification",
        f"Written by {command('toy-classification', results['size'])} from its results. Two moons "
        f"({results['settings']['train']} points), a {widths} "
        f"ReLU network with {found['weights']} weights. The evidence chose a prior precision of "
        f"{found['precision']:.3g}; {found['effective']:.1f} parameters are determined by the data. Predictions are "
        "linearised with the probit formula unless said otherwise.",
        "## MAP is overconfident, Laplace is not",
        "![Probability of the second class over the plane](toy-classification.png)",
        "Mean confidence (larger probability) on circles about the data, which reach out to a radius of about 2:",
        table(
            ["prediction", "accuracy", "NLL", "ECE", *rings],
            [[name, *_scores(case)] for name, case in found["cases"].items()],
        ),
        "A ReLU network's logits grow with the distance, so MAP goes to certainty everywhere but on the decision "
        "boundary. The linearised standard deviation grows at the same rate, and holds the confidence below a bound.",
        in_distribution(found["cases"]),
        "## Prior precision from 100 to 0.1",
        "Trained anew with each precision, full posterior.",
        "![Four prior precisions](toy-classification-precisions.png)",
        table(
            ["precision", "accuracy", "NLL", "ECE", *rings, "log evidence", "effective"],
            [
                [name, *_scores(case), f"{case['log_evidence']:.1f}", f"{case['effective']:.1f}"]
                for name, case in swept["cases"].items()
            ],
        ),
    ]
    return write_page(folder / "toy-classification.md", pieces)


def in_distribution(cases: dict[str, Any]) -> str:
    """What the caution costs where the data are, and what sampling does."""
    point, full, sampled = cases["MAP"], cases["linearised, full"], cases["sampled networks, full"]
    if full["nll"] > point["nll"]:
        text = (
            f"The caution has a price: on new points of the moons themselves MAP is better calibrated (NLL "
            f"{point['nll']:.3f}, linearised {full['nll']:.3f}). With a prior precision for all weights chosen by the "
            "evidence, the linearised prediction is underconfident there; it gains only away from the data."
        )
    else:
        text = (
            f"On new points of the moons themselves, too, the NLL falls from {point['nll']:.3f} to {full['nll']:.3f}."
        )
    return (
        f"{text} Networks with weights sampled from the same posterior know next to nothing (accuracy "
        f"{sampled['accuracy']:.2f}). Uncertainty of the last layer alone holds the confidence back much less."
    )


def _scores(case: dict[str, Any]) -> list[str]:
    return [
        f"{case['accuracy']:.3f}",
        f"{case['nll']:.3f}",
        f"{case['ece']:.3f}",
        *(f"{c:.3f}" for c in case["confidence"]),
    ]


def draw(path: Path, found: dict[str, Any], pixels: int, columns: int, title: str) -> None:
    """Maps of the probability of class 1, with the data on top."""
    picture = Picture(len(found["cases"]), columns, 2.9, 2.6, share=True)
    x, y = np.array(found["data"]["x"]), np.array(found["data"]["y"])
    image = None
    for axis, (name, case) in zip(picture.axes, found["cases"].items(), strict=True):
        values = np.array(case["plane"]).reshape(pixels, pixels)
        image = axis.imshow(
            values,
            extent=(-EDGE, EDGE, -EDGE, EDGE),
            origin="lower",
            cmap="RdBu_r",
            vmin=0,
            vmax=1,
            interpolation="bilinear",
        )
        for label, colour in ((0, "#08306b"), (1, "#67000d")):
            axis.plot(*x[y == label].T, "o", color=colour, ms=2.5, mec="white", mew=0.3)
        axis.set_title(title.format(name), fontsize=9)
        axis.tick_params(labelsize=7)
    if image is not None:
        picture.figure.colorbar(image, ax=picture.axes, shrink=0.8, label="p(second class)")
    picture.save(path, 80)

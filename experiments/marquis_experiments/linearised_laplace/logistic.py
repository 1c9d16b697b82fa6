"""`logistic`: Laplace against exact quadrature where the posterior has two weights.

Logistic regression without bias, prior precision 1. The posterior over two weights can be integrated on a grid, so the
error of the Laplace approximation is known: of the log evidence as the data grow, of the predicted probability, and
of the probit formula alone against Gauss-Hermite quadrature (docs/method/evidence.md, docs/method/predictive.md).
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marquis.laplace import Laplace
from marquis.likelihoods import Bernoulli
from marquis.predictive.links import point
from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import probabilities
from marquis_experiments.common.page import judged
from marquis_experiments.common.study import Run, Study
from marquis_experiments.linearised_laplace.evidence_loop import to_mode

NUMBERS = (10, 50, 200, 800)
"""Sizes of the data sets."""
DISTANCES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Distances from the origin at which predictions are compared."""


def measure(run: Run) -> dict[str, Any]:
    """Compare Laplace with quadrature on every data set; the data are drawn."""
    grid = run.settings.grid
    rows = []
    for n in NUMBERS:
        for seed in range(run.settings.datasets):
            settings = {"n": n, "seed": seed, "grid": grid}
            rows.append(run.cell(f"n{n}-s{seed}", settings, lambda n=n, s=seed: compare(n, s, grid), "rows"))
        run.say(f"N = {n}: log evidence off by at most {worst_error(rows, n):.4f} nat")
    return {"rows": rows, "probit": run.cell("probit", {"nodes": 64}, probit_error)}


def worst_error(rows: list[dict[str, Any]], n: int) -> float:
    """Return the largest error of the log evidence over data sets of size `n`."""
    return max(abs(row["log_evidence"] - row["exact"]) for row in rows if row["n"] == n)


def draw_data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw inputs from a standard normal and labels from a logistic model with weights of norm 1.5."""
    generator = torch.Generator().manual_seed(100 * n + seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    weights = torch.tensor([[1.2], [-0.9]], dtype=torch.float64)
    return x, torch.bernoulli((x @ weights).sigmoid(), generator=generator)


def compare(n: int, seed: int, points: int) -> dict[str, Any]:
    """Compare Laplace and quadrature on one data set: log evidence, and probabilities along two rays."""
    x, y = draw_data(n, seed)
    laplace, mode = laplace_of(x, y)
    weights, log_joint, area = grid_of(x, y, mode, laplace.posterior.precision.to_dense(), points)
    exact = torch.logsumexp(log_joint, 0) + math.log(area)
    share = (log_joint - torch.logsumexp(log_joint, 0)).exp()
    along = mode / mode.norm()
    across = torch.stack([-along[1], along[0]])

    def predictions(inputs: Tensor) -> dict[str, Tensor]:
        return three_predictions(laplace, mode, weights, share, inputs)

    edge = torch.linspace(-3, 3, 13, dtype=torch.float64)
    grid = predictions(torch.cartesian_prod(edge, edge))
    result = {
        "log_evidence": float(laplace.log_evidence()),
        "exact": float(exact),
        "inside": {name: float((grid[name] - grid["exact"]).abs().max()) for name in ("laplace", "map")},
    }
    for name, direction in (("along", along), ("diagonal", (along + 3 * across) / math.sqrt(10))):
        rays = predictions(torch.stack([distance * direction for distance in DISTANCES]))
        result[name] = {key: value.tolist() for key, value in rays.items()}
    return result


def laplace_of(x: Tensor, y: Tensor) -> tuple[Laplace, Tensor]:
    """Return the Laplace approximation at the mode, and the mode."""
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64).eval()
    to_mode(model, x, y, Bernoulli(), {"weight": 1.0})
    laplace = Laplace(model, "bernoulli", "full", prior=1.0).fit([(x, y)], progress=False)
    return laplace, model.weight.detach().flatten()


def three_predictions(
    laplace: Laplace, mode: Tensor, weights: Tensor, share: Tensor, inputs: Tensor
) -> dict[str, Tensor]:
    """Return p(y = 1) by quadrature over the grid of weights, by Laplace and at the mode."""
    parts = zip(weights.split(4_000), share.split(4_000), strict=True)
    average = torch.stack([mass @ (part @ inputs.T).sigmoid() for part, mass in parts]).sum(0)
    by_laplace = probabilities(laplace.predict(inputs)).flatten()
    return {"exact": average, "laplace": by_laplace, "map": (inputs @ mode).sigmoid()}


def two_dimensional_maps(points: int = 81) -> dict[str, Any]:
    """Compute posterior densities over both weights and predictions over both inputs, for one data set of ten."""
    x, y = draw_data(NUMBERS[0], 0)
    laplace, mode = laplace_of(x, y)
    precision = laplace.posterior.precision.to_dense()
    weights, log_joint, area = grid_of(x, y, mode, precision, points)
    share = (log_joint - torch.logsumexp(log_joint, 0)).exp()
    edge = torch.linspace(-8, 8, 33, dtype=torch.float64)
    predicted = three_predictions(laplace, mode, weights, share, torch.cartesian_prod(edge, edge))
    spread = torch.linalg.inv(precision).diagonal().sqrt()
    axes = [torch.linspace(float(m - 4 * s), float(m + 4 * s), 41).double() for m, s in zip(mode, spread, strict=True)]
    at = torch.cartesian_prod(*axes)
    fits = nn.functional.logsigmoid((at @ x.T) * (2 * y - 1).T).sum(1)
    evidence = torch.logsumexp(log_joint, 0) + math.log(area)
    exact = (fits - 0.5 * at.square().sum(1) - math.log(2 * math.pi) - evidence).exp()
    gaussian = torch.distributions.MultivariateNormal(mode, precision_matrix=precision).log_prob(at).exp()
    return {
        "weights": axes,
        "density": {"exact": exact, "laplace": gaussian},
        "edge": edge,
        "predicted": predicted,
        "x": x.numpy(),
        "y": y.flatten().numpy(),
    }


def grid_of(x: Tensor, y: Tensor, mode: Tensor, precision: Tensor, points: int) -> tuple[Tensor, Tensor, float]:
    """Return weights on a grid of ten standard deviations either way, their log joint density, the area of a cell."""
    spread = torch.linalg.inv(precision).diagonal().sqrt()
    axes = [
        torch.linspace(float(m - 10 * s), float(m + 10 * s), points, dtype=x.dtype)
        for m, s in zip(mode, spread, strict=True)
    ]
    weights = torch.cartesian_prod(*axes)
    signs = 2 * y - 1
    fits = torch.cat([nn.functional.logsigmoid((part @ x.T) * signs.T).sum(1) for part in weights.split(4_000)])
    log_joint = fits - 0.5 * weights.square().sum(1) - math.log(2 * math.pi)
    return weights, log_joint, float((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))


def probit_error() -> dict[str, Any]:
    """Compare `sigmoid(m / sqrt(1 + pi v / 8))` with quadrature of `E sigmoid`, over means and variances."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(64)
    z, w = torch.from_numpy(nodes), torch.from_numpy(shares / shares.sum())
    means = torch.linspace(-6, 6, 241, dtype=torch.float64)
    variances = torch.linspace(0, 50, 251, dtype=torch.float64)
    m, v = torch.meshgrid(means, variances, indexing="ij")
    exact = (m.unsqueeze(-1) + v.sqrt().unsqueeze(-1) * z).sigmoid() @ w
    formula = probabilities(point(Bernoulli(), (m / (1 + math.pi * v / 8).sqrt()).reshape(-1, 1)))
    error = (formula.reshape(m.shape) - exact).abs()
    return {"largest": float(error.max()), "over_variance": error.max(0).values[::5].tolist()}


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the error of the log evidence against N, probabilities along a ray and the error of the probit formula."""
    rows, probit = results["rows"], results["probit"]
    figure = Figure(3, 3, 3.4, 2.9)
    left, middle, right = figure.axes
    for n in NUMBERS:
        errors = [abs(row["log_evidence"] - row["exact"]) for row in rows if row["n"] == n]
        left.plot([n] * len(errors), errors, "o", color=BLUE, ms=4)
    left.plot(NUMBERS, [2 / n for n in NUMBERS], "--", color=GREY, lw=1, label="2 / N")
    left.set(xscale="log", yscale="log", xlabel="data N", ylabel="nat", title="error of the log evidence")
    left.legend(fontsize=7)
    row = next(row for row in rows if row["n"] == 10)
    for name, colour, label in (("exact", "k", "exact"), ("laplace", BLUE, "Laplace"), ("map", ORANGE, "MAP")):
        middle.plot(DISTANCES, row["diagonal"][name], "o-", color=colour, ms=4, label=label)
    middle.set(xscale="log", xlabel="distance from the origin", title="p(y = 1), N = 10", ylim=(0.45, 1.02))
    middle.legend(fontsize=8)
    right.plot(torch.linspace(0, 50, 51), probit["over_variance"], color=BLUE)
    right.axhline(0.0131, color=ORANGE, ls="--", lw=1, label="0.0131")
    right.set(xlabel="variance of the logit", title="probit formula: worst error", ylim=(0, 0.0165))
    right.legend(fontsize=8)
    figure.save(folder / "logistic.png")
    draw_maps(folder, two_dimensional_maps())


def draw_maps(folder: Path, maps: dict[str, Any]) -> None:
    """Draw the posterior over both weights and the predictions over both inputs, exact and approximate."""
    figure = Figure(5, 5, 2.3, 2.5)
    titles = {"exact": "exact", "laplace": "Laplace", "map": "MAP"}
    highest = float(maps["density"]["exact"].max())
    for axes, name in zip(figure.axes, ("exact", "laplace"), strict=False):
        density = maps["density"][name].reshape(41, 41).T
        axes.contour(*maps["weights"], density, levels=[f * highest for f in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)])
        axes.set(title=f"posterior: {titles[name]}", xlabel="first weight")
    figure.axes[0].set(ylabel="second weight")
    x, y = maps["x"], maps["y"]
    levels, contours = np.linspace(0, 1, 11), None
    for axes, name in zip(figure.axes[2:], titles, strict=True):
        p = maps["predicted"][name].reshape(33, 33).T
        contours = axes.contourf(maps["edge"], maps["edge"], p, levels=levels, cmap="RdBu_r")
        axes.contour(maps["edge"], maps["edge"], p, levels=[0.1, 0.5, 0.9], colors="k", linewidths=0.7)
        for label, marker in ((0, "o"), (1, "^")):
            axes.plot(*x[y == label].T, marker, color="k", mfc="w", ms=4)
        axes.set(title=f"p(y = 1): {titles[name]}", xlabel="first input", xticks=[-5, 0, 5], yticks=[-5, 0, 5])
    figure.axes[2].set_ylabel("second input")
    figure.axes[4].figure.colorbar(contours, ax=figure.axes[4], ticks=[0, 0.5, 1])
    figure.save(folder / "logistic-maps.png")


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tables; the evidence's error must fall like 1/N and Laplace be closer than MAP."""
    rows = results["rows"]
    sizes = {}
    for n in NUMBERS:
        accuracies = [row["inside"] for row in rows if row["n"] == n]
        worst = worst_error(rows, n)
        errors = {name: max(each[name] for each in accuracies) for name in ("laplace", "map")}
        sizes[str(n)] = {"error": worst, "times": n * worst, **errors}
    small = [row["diagonal"] for row in rows if row["n"] == NUMBERS[0]]
    rays = {name: [mean(ps) for ps in zip(*(ray[name] for ray in small), strict=True)] for name in small[0]}
    return {
        "datasets": len(small),
        "sizes": sizes,
        "distances": DISTANCES,
        "rays": {name: {"p": ps} for name, ps in rays.items()},
        "far": {name: ps[-1] for name, ps in rays.items()},
        **judged(
            {
                "evidence": all(sizes[str(4 * n)]["error"] < 0.4 * sizes[str(n)]["error"] for n in NUMBERS[1:-1]),
                "closer": all(row["laplace"] < row["map"] for row in sizes.values()),
                "probit": results["probit"]["largest"] < 0.014,
            }
        ),
    }


STUDY = Study(
    "logistic",
    Path(__file__).with_suffix(".md"),
    measure,
    values,
    draw,
    default={"datasets": 5, "grid": 201},  # the integrand is smooth: a coarse grid is already exact
    quick={"datasets": 2, "grid": 81},
    full={"datasets": 20, "grid": 401},
)

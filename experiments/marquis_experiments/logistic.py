"""`logistic`: Laplace against exact quadrature where the posterior has two weights (methods.md 4.4 and 5.8).

Logistic regression without bias, prior precision 1. The posterior over two weights can be integrated on a grid, so the
error of the Laplace approximation is known: of the log evidence as the data grow, of the predicted probability, and
of the probit formula alone against Gauss-Hermite quadrature.
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
from marquis.likelihoods import Bernoulli
from marquis.predictive.links import point
from marquis_experiments.cells import cell, write_json
from marquis_experiments.evidence_loop import to_mode
from marquis_experiments.pages import BLUE, GREY, ORANGE, Picture, command, table, write_page

NUMBERS = (10, 50, 200, 800)
SPECIFIED = (0.055, 0.023, 0.0085, 0.0022)
"""Worst errors of the log evidence in methods.md 5.8, for other data of the same sizes."""
DATASETS = {"quick": 2, "default": 5, "full": 20}
GRID = {"quick": 81, "default": 201, "full": 401}
"""Points either way; the integrand is smooth and falls to nothing, so that a coarse grid is already exact."""
DISTANCES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def run(
    size: str = "default",
    out: str | Path = "runs/logistic",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; `data_dir` is not used, the data are drawn."""
    folder = Path(out) / size
    rows = []
    for n in NUMBERS:
        for seed in range(DATASETS[size]):
            settings = {"n": n, "seed": seed, "grid": GRID[size]}
            rows.append(
                cell(folder / "cells", f"n{n}-s{seed}", settings, lambda n=n, s=seed: compare(n, s, GRID[size]))
            )
        worst = max(abs(row["log_evidence"] - row["exact"]) for row in rows if row["n"] == n)
        say(f"N = {n}: log evidence off by at most {worst:.4f} nat")
    probit = cell(folder / "cells", "probit", {"nodes": 64}, probit_error)
    results = {"size": size, "rows": rows, "probit": probit}
    write_json(folder / "results.json", results)
    draw(folder / "logistic.png", rows, probit)
    return write_page(folder / "logistic.md", page(results))


def draw_data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs from a standard normal, labels from a logistic model with weights of norm about 1.5."""
    generator = torch.Generator().manual_seed(100 * n + seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    weights = torch.tensor([[1.2], [-0.9]], dtype=torch.float64)
    return x, torch.bernoulli((x @ weights).sigmoid(), generator=generator)


def compare(n: int, seed: int, points: int) -> dict[str, Any]:
    """Laplace and quadrature on one data set: log evidence, and probabilities along two rays."""
    x, y = draw_data(n, seed)
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64).eval()
    to_mode(model, x, y, Bernoulli(), {"weight": 1.0})
    laplace = Laplace(model, "bernoulli", "full", prior=1.0).fit([(x, y)], progress=False)
    mode = model.weight.detach().flatten()
    weights, log_joint, area = grid_of(x, y, mode, laplace.posterior.precision.to_dense(), points)
    exact = torch.logsumexp(log_joint, 0) + math.log(area)
    share = (log_joint - torch.logsumexp(log_joint, 0)).exp()
    along = mode / mode.norm()
    across = torch.stack([-along[1], along[0]])
    result: dict[str, Any] = {"log_evidence": float(laplace.log_evidence()), "exact": float(exact)}
    inside = _inputs_inside()
    result["inside"] = _largest_difference(laplace, inside, weights, share)
    for name, direction in (("along", along), ("diagonal", (along + 3 * across) / math.sqrt(10))):
        rays = torch.stack([distance * direction for distance in DISTANCES])
        result[name] = {
            "exact": (share @ (weights @ rays.T).sigmoid()).tolist(),
            "laplace": _probs(laplace, rays).tolist(),
            "map": (rays @ mode).sigmoid().tolist(),
        }
    return result


def grid_of(x: Tensor, y: Tensor, mode: Tensor, precision: Tensor, points: int) -> tuple[Tensor, Tensor, float]:
    """Weights on a grid of ten standard deviations either way, their log joint density, the area of a cell."""
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


def _inputs_inside() -> Tensor:
    """A grid over the region of the data."""
    edge = torch.linspace(-3, 3, 13, dtype=torch.float64)
    return torch.cartesian_prod(edge, edge)


def _probs(laplace: Laplace, x: Tensor) -> Tensor:
    probs = laplace.predict(x).probs
    assert probs is not None
    return probs.flatten()


def _largest_difference(laplace: Laplace, x: Tensor, weights: Tensor, share: Tensor) -> dict[str, float]:
    exact = torch.zeros(len(x), dtype=x.dtype)
    for part, mass in zip(weights.split(4_000), share.split(4_000), strict=True):
        exact += mass @ (part @ x.T).sigmoid()
    point_estimate = (x @ laplace.posterior.mean["weight"].T).sigmoid().flatten()
    return {
        "laplace": float((_probs(laplace, x) - exact).abs().max()),
        "map": float((point_estimate - exact).abs().max()),
    }


def probit_error() -> dict[str, Any]:
    """`sigmoid(m / sqrt(1 + pi v / 8))` against quadrature of `E sigmoid`, over means and variances."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(64)
    z, w = torch.from_numpy(nodes), torch.from_numpy(shares / shares.sum())
    means = torch.linspace(-6, 6, 241, dtype=torch.float64)
    variances = torch.linspace(0, 50, 251, dtype=torch.float64)
    m, v = torch.meshgrid(means, variances, indexing="ij")
    exact = (m.unsqueeze(-1) + v.sqrt().unsqueeze(-1) * z).sigmoid() @ w
    formula = point(Bernoulli(), (m / (1 + math.pi * v / 8).sqrt()).reshape(-1, 1)).probs
    assert formula is not None
    error = (formula.reshape(m.shape) - exact).abs()
    return {"largest": float(error.max()), "over_variance": error.max(0).values[::5].tolist()}


def draw(path: Path, rows: list[dict[str, Any]], probit: dict[str, Any]) -> None:
    """Error of the log evidence against N; probabilities along a ray; error of the probit formula."""
    picture = Picture(3, 3, 3.4, 2.9)
    left, middle, right = picture.axes
    for n in NUMBERS:
        errors = [abs(row["log_evidence"] - row["exact"]) for row in rows if row["n"] == n]
        left.plot([n] * len(errors), errors, "o", color=BLUE, ms=4)
    left.plot(NUMBERS, SPECIFIED, "_", color=ORANGE, ms=14, mew=2, label="methods.md 5.8, worst of 5")
    left.plot(NUMBERS, [2 / n for n in NUMBERS], "--", color=GREY, lw=1, label="2 / N")
    left.set(xscale="log", yscale="log", xlabel="data N", ylabel="nat", title="error of the log evidence")
    left.legend(fontsize=7)
    row = next(row for row in rows if row["n"] == 10)
    for name, colour, label in (("exact", "k", "exact"), ("laplace", BLUE, "Laplace"), ("map", ORANGE, "MAP")):
        middle.plot(DISTANCES, row["diagonal"][name], "o-", color=colour, ms=4, label=label)
    middle.set(xscale="log", xlabel="distance from the origin", title="p(y = 1), N = 10", ylim=(0.45, 1.02))
    middle.legend(fontsize=8)
    right.plot(torch.linspace(0, 50, 51), probit["over_variance"], color=BLUE)
    right.axhline(0.0131, color=ORANGE, ls="--", lw=1, label="0.0131 (methods.md 4.4)")
    right.set(xlabel="variance of the logit", title="probit formula: worst error", ylim=(0, 0.0165))
    right.legend(fontsize=8)
    picture.save(path)


def page(results: dict[str, Any]) -> list[str]:
    """The page, from the results alone."""
    rows = results["rows"]
    count = len({row["seed"] for row in rows})
    lines = []
    for n, specified in zip(NUMBERS, SPECIFIED, strict=True):
        own = [row for row in rows if row["n"] == n]
        errors = [abs(row["log_evidence"] - row["exact"]) for row in own]
        inside = max(row["inside"]["laplace"] for row in own)
        point_inside = max(row["inside"]["map"] for row in own)
        lines.append(
            [n, f"{max(errors):.4f}", f"{n * max(errors):.2f}", specified, f"{inside:.3f}", f"{point_inside:.3f}"]
        )
    small = [row for row in rows if row["n"] == NUMBERS[0]]
    far = [
        [name, *(f"{sum(r['diagonal'][name][i] for r in small) / count:.3f}" for i in range(len(DISTANCES)))]
        for name in ("exact", "laplace", "map")
    ]
    return [
        "# Logistic regression against quadrature",
        f"Written by {command('logistic', results['size'])}. Two weights, prior precision 1, {count} data sets drawn "
        "per size; the posterior is integrated on a grid of ten standard deviations either way, so the numbers of the "
        "Laplace approximation can be checked against the truth.",
        "![Error of the evidence, predictions along a ray, error of the probit formula](logistic.png)",
        "## Log evidence and predictions",
        table(
            ["N", "worst error of log Z (nat)", "times N", "methods.md 5.8", "worst error of p, Laplace", "… MAP"],
            lines,
        ),
        "From 50 data on the error of the log evidence falls like 1/N, as it has to (the data sets are not those of "
        "`methods.md`, so the constants differ). The columns of p compare predicted probabilities with quadrature over "
        "the square [-3, 3]², for the linearised predictive with the probit formula and for MAP.",
        f"The probit formula alone is off by at most {results['probit']['largest']:.4f} over means in [-6, 6] and "
        "variances in [0, 50] (`methods.md` 4.4: 0.0131).",
        "## Far from the data",
        f"Mean p(y = 1) with N = {NUMBERS[0]} data, in a direction across which the data say little:",
        table(["distance", *map(str, DISTANCES)], far),
        "MAP goes to certainty; the exact posterior does not, and Laplace follows it.",
    ]

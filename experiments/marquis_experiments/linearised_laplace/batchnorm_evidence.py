"""`batchnorm-evidence`: the tutorial's sweep of the prior precision for a small network with batch normalisation.

Regression in one dimension, two hidden layers of 48 units with batch normalisation (about 2,700 weights), trained by
Adam without weight decay, so that its weights are no mode of any prior. For every prior precision: the evidence at the
network's weights (naive) and at the optimum of the tangent linear model (adapted, recommendation 1;
docs/method/evidence.md#evidence-of-the-linear-model), and the held-out log density of the linearised predictive, with
data from the gap between the clusters among the held-out ones.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from marquis.laplace import Laplace
from marquis.likelihoods import Gaussian
from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure, band
from marquis_experiments.common.page import verdict
from marquis_experiments.common.study import Run, Study

NOISE = 0.2
PRECISIONS = tuple(10 ** (k / 4) for k in range(-12, 17))
"""From 1e-3 to 1e4, four per decade."""


def measure(run: Run) -> dict[str, Any]:
    """Sweep the prior precision of one network per seed."""
    rows = []
    for seed in range(run.settings.seeds):
        key = {"seed": seed, **run.settings.only("hidden", "epochs")}
        rows.append(run.cell(f"s{seed}", key, lambda seed=seed: one_network(seed, run.settings), "rows"))
        chosen = {name: rows[-1]["chosen"][name]["precision"] for name in ("naive", "adapted", "held_out")}
        run.say(f"seed {seed}: " + ", ".join(f"{name} {value:.3g}" for name, value in chosen.items()))
    return {"settings": run.settings.plain(), "rows": rows}


def draw_data(number: int, seed: int, gap: bool) -> tuple[Tensor, Tensor]:
    """Draw a noisy sine on two clusters; with `gap`, on everything from the left end to the right one."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(number, 1, generator=generator, dtype=torch.float64)
    x = 5 * x - 2.5 if gap else torch.where(x < 0.5, 2 * x - 2, 2 * x)
    return x, torch.sin(2 * x) + NOISE * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def train(seed: int, hidden: int, epochs: int, x: Tensor, y: Tensor) -> nn.Sequential:
    """Train the network by Adam in batches of 32, with batch statistics; returned in evaluation mode."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width in (1, hidden):
        layers += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(hidden, 1)).double()
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            nn.functional.mse_loss(network(x[rows]), y[rows]).backward()
            optimiser.step()
    return network.eval()


def jacobian(network: nn.Sequential, x: Tensor) -> Tensor:
    """Return the Jacobian of the outputs in the weights, `[N, P]`."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    blocks = jacrev(lambda at: functional_call(network, at, (x,)).flatten())(weights)
    return torch.cat([block.flatten(1) for block in blocks.values()], 1)


def one_network(seed: int, settings: Any) -> dict[str, Any]:
    """Train one network; return evidences, held-out density and error bars along the sweep."""
    x, y = draw_data(128, seed, gap=False)
    new_x, new_y = draw_data(400, 1000 + seed, gap=True)
    network = train(seed, settings.hidden, settings.epochs, x, y)
    laplace = Laplace(network, Gaussian(1 / NOISE**2), "full", prior=1.0).fit([(x, y)], progress=False)
    weights, curvature = laplace.posterior.vector, laplace.curvature.to_dense() / NOISE**2  # kept at unit noise
    eigenvalues, basis = torch.linalg.eigh(curvature)
    eigenvalues = eigenvalues.clamp(min=0)
    rows = jacobian(network, x)
    with torch.no_grad():
        outputs, new_outputs = network(x), network(new_x)
    # The linear model h(theta) = f + J (theta - weights), with targets as seen from theta = 0.
    targets = (y - outputs).flatten() + rows @ weights
    pulled = basis.mT @ (rows.mT @ targets) / NOISE**2
    held_out = jacobian(network, new_x) @ basis
    misfit = float((y - outputs).square().sum()) / NOISE**2
    sweep = []
    for precision in PRECISIONS:
        determinant = float((1 + eigenvalues / precision).log().sum())
        theta = basis @ (pulled / (eigenvalues + precision))
        linear_misfit = float((targets - rows @ theta).square().sum()) / NOISE**2
        variance = (held_out.square() / (eigenvalues + precision)).sum(1) + NOISE**2
        density = -0.5 * ((new_y - new_outputs).flatten().square() / variance + variance.log() + math.log(2 * math.pi))
        sweep.append(
            {
                "precision": precision,
                "naive": -0.5 * (misfit + precision * float(weights.square().sum()) + determinant),
                "adapted": -0.5 * (linear_misfit + precision * float(theta.square().sum()) + determinant),
                "held_out": float(density.mean()),
            }
        )
    chosen = {name: max(sweep, key=lambda row: row[name]) for name in ("naive", "adapted", "held_out")}
    grid = torch.linspace(-3, 3, 121, dtype=torch.float64)[:, None]
    with torch.no_grad():
        curve = network(grid).flatten()
    at = jacobian(network, grid) @ basis
    bars = {
        name: (at.square() / (eigenvalues + row["precision"])).sum(1).sqrt().tolist() for name, row in chosen.items()
    }
    return {
        "sweep": sweep,
        "chosen": chosen,
        "network": float(Gaussian(1 / NOISE**2).log_prob(new_outputs, new_y).mean()),
        "weights": len(weights),
        "picture": {"x": grid.flatten().tolist(), "mean": curve.tolist(), "bars": bars},
        "data": {"x": x.flatten().tolist(), "y": y.flatten().tolist()},
    }


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the table; the naive choice must be too wide, the adapted one better than it and than none."""
    rows = results["rows"]
    table = []
    labels = {
        "naive": "evidence at the network's weights",
        "adapted": "evidence of the linear model (recommendation 1)",
        "held_out": "best for the held-out data",
    }
    for name, label in labels.items():
        precisions = [row["chosen"][name]["precision"] for row in rows]
        densities = torch.tensor([row["chosen"][name]["held_out"] for row in rows], dtype=torch.float64)
        table.append(
            {
                "label": label,
                "precision": math.exp(mean(math.log(p) for p in precisions)),
                "low": min(precisions),
                "high": max(precisions),
                "density": float(densities.mean()),
                "spread": float(densities.std() / len(densities) ** 0.5) if len(rows) > 1 else float("nan"),
            }
        )
    gains = torch.tensor([row["chosen"]["adapted"]["held_out"] - row["chosen"]["naive"]["held_out"] for row in rows])
    spread = float(gains.std() / len(gains) ** 0.5) if len(rows) > 1 else float("nan")
    return {
        "seeds": len(rows),
        "weights": rows[0]["weights"],
        "rows": table,
        "gain": float(gains.mean()),
        "gain_error": spread,
        "wins": int((gains > 0).sum()),
        "network": mean(row["network"] for row in rows),
        "adapted": table[1]["density"],
        "verdict": verdict(
            float(gains.mean()) > 2 * spread,
            table[0]["precision"] < table[2]["precision"],
            table[1]["density"] > mean(row["network"] for row in rows),  # repaired: better than no error bars at all
        ),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the sweep of the first seed and the error bars of both choices."""
    row = results["rows"][0]
    figure = Figure(3, 3, 3.4, 2.9)
    left, middle, right = figure.axes
    precisions = [point["precision"] for point in row["sweep"]]
    for name, colour, label in (("naive", ORANGE, "at the network"), ("adapted", BLUE, "recommendation 1")):
        best = max(point[name] for point in row["sweep"])
        left.plot(precisions, [point[name] - best for point in row["sweep"]], color=colour, label=label)
        left.axvline(row["chosen"][name]["precision"], color=colour, ls="--", lw=1)
    left.axvline(row["chosen"]["held_out"]["precision"], color=GREY, ls=":", lw=1.5, label="best held-out density")
    left.set(xscale="log", xlabel="prior precision", ylabel="nat below its best", ylim=(-150, 10), title="evidence")
    left.legend(fontsize=7)
    curves = row["picture"]
    x, curve = torch.tensor(curves["x"]), torch.tensor(curves["mean"])
    tallest = 2.2 * max(curves["bars"]["adapted"])  # those of the network alone reach far beyond
    for axes, name, colour, title in (
        (middle, "naive", ORANGE, "evidence at the network"),
        (right, "adapted", BLUE, "recommendation 1"),
    ):
        band(axes, x, curve, torch.tensor(curves["bars"][name]), NOISE**2, colour)
        axes.plot(row["data"]["x"], row["data"]["y"], ".", color="k", ms=3)
        axes.set(title=f"{title}: {row['chosen'][name]['precision']:.3g}", ylim=(-tallest, tallest), xlabel="x")
    figure.save(folder / "batchnorm-evidence.png")


STUDY = Study(
    "batchnorm-evidence",
    Path(__file__).with_suffix(".md"),
    measure,
    values,
    draw,
    default={"seeds": 5, "hidden": 48, "epochs": 200},
    quick={"seeds": 2, "hidden": 16, "epochs": 30},
    full={"seeds": 20},
)

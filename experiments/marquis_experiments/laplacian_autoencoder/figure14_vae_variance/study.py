"""The study `vae-variance`: where a decoder's variance is large and where it should be (LAE Appendix F, Figure 14).

Data in one dimension, in two clusters. Three models `p(x) = Σ_k w_k N(x; m_k, σ_k²)` with the same means and weights,
`m_k = SPREAD z_k` and `w_k` the standard normal's share of `z_k` on a grid, of which only the variances are learnt:

- `mixture`: every component has its variance, maximum likelihood by expectation maximisation
- `network`: `log σ` is a network of z, maximum likelihood of the same `p(x)`, the sum taken over the grid
- `vae`: the same network as the decoder's variance of a variational autoencoder with the decoder's mean `SPREAD z`,
  trained by its bound, which samples codes near the data only

and an ordinary variational autoencoder, `free`, whose means are learnt too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders import VariationalAutoencoder
from marquis.autoencoders.learnt_variance import MIN_LOG_SIGMA, soft_clip
from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.metrics import rank_correlation
from marquis_experiments.common.page import table, verdict, yes
from marquis_experiments.common.study import Run, Study
from marquis_experiments.common.training import descend

SPREAD, START, REACH = 4.0, 1.0, 3.0
"""Means are `SPREAD z`, `z` from -REACH to REACH; all standard deviations start near START."""
CENTRES, WIDTH, DATA = (-2.0, 3.0), 0.4, 200
COMPONENTS = 61
SNAPSHOTS = (0, 3, 30, 300)
"""Rounds of expectation maximisation that are shown."""
NEAR, BETWEEN, OUTSIDE = 0.4, 1.0, 2.0
"""Distances of a component's mean to the nearest data point: at most NEAR; at least BETWEEN, between the clusters; at
least OUTSIDE, beyond all data."""
LABELS = {
    "mixture": "mixture, a variance per component",
    "network": "network, maximum likelihood",
    "vae": "the same network in a VAE, means fixed",
    "free": "ordinary VAE",
}


def measure(run: Run) -> dict[str, Any]:
    """Fit all models to every data set."""
    rows = []
    steps = run.settings.steps
    for seed in range(run.settings.seeds):
        settings = {"seed": seed, "steps": steps, "components": COMPONENTS, "data": DATA}
        row = run.cell(f"s{seed}", settings, lambda seed=seed: compare(seed, steps), "rows")
        rows.append(row)
        numbers = ", ".join(f"{name} {row[name]['outside']:.2f}" for name in ("mixture", "network", "vae"))
        run.say(f"seed {seed}: standard deviation far outside the data: {numbers}")
    return {"rows": rows}


def draw_data(seed: int) -> Tensor:
    """Return data `[N]`, half around each centre."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor(CENTRES, dtype=torch.float64).repeat_interleave(DATA // 2)
    return centres + WIDTH * torch.randn(DATA, generator=generator, dtype=torch.float64)


def grid() -> tuple[Tensor, Tensor]:
    """Return codes `[K]` and the logarithm of their weights under the standard normal, which sum to 1."""
    z = torch.linspace(-REACH, REACH, COMPONENTS, dtype=torch.float64)
    return z, (-0.5 * z.square()).log_softmax(0)


def log_joint(x: Tensor, means: Tensor, log_weights: Tensor, log_sigma: Tensor) -> Tensor:
    """Compute `log w_k N(x_n; m_k, σ_k²)`, `[N, K]`."""
    scaled = (x.unsqueeze(1) - means) / log_sigma.exp()
    return log_weights - 0.5 * scaled.square() - log_sigma - 0.5 * math.log(2 * math.pi)


def maximise(x: Tensor, means: Tensor, log_weights: Tensor, log_sigma: Tensor, rounds: int) -> list[Tensor]:
    """Run expectation maximisation of the variances; return `log σ [K]` after every round, the start first.

    `σ_k² = Σ_n r_nk (x_n - m_k)² / Σ_n r_nk`: the ratio exists however small the responsibilities r are, so it is
    taken of logarithms. Standard deviations stop at exp(-3), as those of the variational autoencoder do.
    """
    squares = (x.unsqueeze(1) - means).square()
    rounds_of_log_sigma = [log_sigma]
    for _ in range(rounds):
        joint = log_joint(x, means, log_weights, rounds_of_log_sigma[-1])
        responsibilities = joint.log_softmax(1)
        shares = responsibilities.softmax(0)  # of every data point in the component's estimate
        rounds_of_log_sigma.append((0.5 * (shares * squares).sum(0).log()).clamp_min(MIN_LOG_SIGMA))
    return rounds_of_log_sigma


def variance_network(seed: int) -> nn.Sequential:
    """Return a network of z that gives log σ before the clip; it starts near log START everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).double()


def compare(seed: int, steps: int) -> dict[str, Any]:
    """Fit all models to one data set."""
    x = draw_data(seed)
    z, log_weights = grid()
    means = SPREAD * z
    start = torch.full_like(z, math.log(START))
    snapshots = maximise(x, means, log_weights, start, max(SNAPSHOTS))
    likelihoods = [float(log_joint(x, means, log_weights, s).logsumexp(1).mean()) for s in snapshots]

    network = variance_network(seed)
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)

    def loss() -> Tensor:
        log_sigma = soft_clip(network(z.unsqueeze(1)).squeeze(1), MIN_LOG_SIGMA)
        return -log_joint(x, means, log_weights, log_sigma).logsumexp(1).mean()

    deque(descend(optimiser, [()], steps, loss), 0)

    fixed = train_vae(x, seed, steps, fixed_means=True)
    free = train_vae(x, seed, steps, fixed_means=False)
    with torch.no_grad():
        sigmas = {
            "mixture": snapshots[-1],
            "network": soft_clip(network(z.unsqueeze(1)).squeeze(1), MIN_LOG_SIGMA),
            "vae": decoded(fixed, z)[1],
            "free": decoded(free, z)[1],
        }
        places = dict.fromkeys(sigmas, means) | {"free": decoded(free, z)[0]}
        codes = {"vae": fixed.code(x.unsqueeze(1))[0], "free": free.code(x.unsqueeze(1))[0]}
    result: dict[str, Any] = {
        "x": x.tolist(),
        "z": z.tolist(),
        "snapshots": {str(number): snapshots[number].exp().tolist() for number in SNAPSHOTS},
        "likelihoods": likelihoods,
        "codes": {name: sorted(value.flatten().tolist()) for name, value in codes.items()},
    }
    for name, log_sigma in sigmas.items():
        result[name] = summary(x, places[name], log_weights, log_sigma)
    return result


def train_vae(x: Tensor, seed: int, steps: int, fixed_means: bool) -> VariationalAutoencoder:
    """Train a VAE with a one-dimensional code on all data at once; the decoder's mean is fixed or learnt."""
    decoder: nn.Module
    if fixed_means:
        decoder = nn.Linear(1, 1, bias=False, dtype=torch.float64).requires_grad_(False)
        decoder.weight.fill_(SPREAD)
    else:
        decoder = variance_network(seed + 100)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = VariationalAutoencoder(
            variance_network(seed + 200), decoder, variance_network(seed + 300), variance_network(seed)
        ).double()
        optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
        deque(descend(optimiser, [(x.unsqueeze(1),)], steps, lambda rows: model.loss(rows, None)), 0)
    return model


def decoded(model: VariationalAutoencoder, z: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and log σ of the decoder at codes `[K]`."""
    output = model.decode(z.unsqueeze(1))
    assert output.noise_variance is not None
    return output.mean.squeeze(1), 0.5 * output.noise_variance.squeeze(1).log()


def summary(x: Tensor, means: Tensor, log_weights: Tensor, log_sigma: Tensor) -> dict[str, Any]:
    """Compute median standard deviations near, between and outside the data, log-likelihood, and rank correlation."""
    distance = (means.unsqueeze(1) - x).abs().min(1).values
    sigma = log_sigma.exp()
    unsaturated = (means > x.min()) & (means < x.max())
    places = {
        "near": distance <= NEAR,
        "between": unsaturated & (distance >= BETWEEN),
        "outside": ~unsaturated & (distance >= OUTSIDE),
    }
    medians = {name: float(sigma[where].median()) if bool(where.any()) else None for name, where in places.items()}
    return {
        **medians,
        "ends": float((sigma[0] * sigma[-1]).sqrt()),
        "means": means.tolist(),
        "sigma": sigma.tolist(),
        "distance": distance.tolist(),
        "log_likelihood": float(log_joint(x, means, log_weights, log_sigma).logsumexp(1).mean()),
        "rank_correlation": rank_correlation(distance, sigma),
    }


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw the first data set: snapshots of the mixture, all models against their means, the VAE against its code."""
    row = results["rows"][0]
    figure = Figure(3, 3, 4.0, 3.4)
    left, middle, right = figure.axes
    means, shades = row["mixture"]["means"], ("#c6d9ea", "#8fb5d6", "#5990c0", "#1f4e79")
    for (number, sigma), shade in zip(row["snapshots"].items(), shades, strict=True):
        left.plot(means, sigma, color=shade, lw=1.6, label=f"{number} rounds")
    left.set(title="mixture, maximum likelihood", xlabel="mean of the component", ylabel="standard deviation")
    for name, colour in {"mixture": BLUE, "network": GREEN, "vae": ORANGE}.items():
        middle.plot(means, row[name]["sigma"], color=colour, lw=1.6, label=LABELS[name])
    middle.set(title="same means and weights", xlabel="mean of the component")
    right.plot(row["z"], row["free"]["sigma"], color=GREY, lw=1.6, label="standard deviation")
    right.plot(row["z"], row["free"]["distance"], color=BLUE, lw=1, ls="--", label="distance of the mean to the data")
    right.set(title="ordinary VAE: means learnt too", xlabel="code z")
    rugs = ((left, row["x"], "lower left"), (middle, row["x"], "upper center"))
    for axis, rug, corner in (*rugs, (right, row["codes"]["free"], "upper left")):
        axis.set_yscale("log")
        axis.plot(rug, [axis.get_ylim()[0]] * len(rug), "|", color="k", ms=7, alpha=0.3)
        axis.legend(fontsize=7, loc=corner)
    middle.set_ylim(top=80)
    right.set_ylim(top=60)
    figure.save(folder / "vae-variance.png")


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs."""
    rows = results["rows"]
    keys = ("near", "between", "outside", "rank_correlation", "log_likelihood", "ends")
    averages: dict[str, dict[str, float]] = {}
    for name in LABELS:
        present = {key: [row[name][key] for row in rows if row[name][key] is not None] for key in keys}
        averages[name] = {key: mean(numbers) if numbers else math.nan for key, numbers in present.items()}
    lines = [
        [text, *("–" if math.isnan(averages[name][key]) else f"{averages[name][key]:.2f}" for key in keys[:-1])]
        for name, text in LABELS.items()
    ]
    mixture, vae = averages["mixture"], averages["vae"]
    grows = mixture["near"] < START and mixture["outside"] > 1.5 * START
    contrast = mixture["outside"] > 1.5 * vae["outside"]
    head = ["model", "σ near", "σ between", "σ outside", "rank correlation of σ with distance", "log p(x)"]
    return {
        **averages,
        "steps": rows[0]["steps"],
        "seeds": len(rows),
        "verdict": verdict(grows, contrast),
        "holds": {"grows": yes(grows), "contrast": yes(contrast)},
        "table": table(head, lines),
    }


# fmt: off
STUDY = Study(
    "vae-variance", Path(__file__).with_name("page.md"), measure, values, draw,
    default={"seeds": 3, "steps": 1500},
    quick={"seeds": 1, "steps": 60},
    full={"seeds": 10, "steps": 10_000},
)
# fmt: on

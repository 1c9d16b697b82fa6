"""Baselines of `uci`: other posteriors of the same network, prior and noise (uci_baselines_PROTOCOL.md).

The network is a function of five tensors here, `tanh(x w + b) v + c` with `w` `[inputs, hidden]`, whose gradient is
written out: Hamiltonian Monte Carlo evaluates it thousands of times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from marquis.likelihoods import Gaussian
from marquis.priors import BoundPrior
from marquis.variational.mean_field import MeanFieldVI
from marquis_experiments.common.page import Mean, yes
from marquis_experiments.common.study import Settings
from marquis_experiments.linearised_laplace.evidence_loop import Trained, to_mode
from marquis_experiments.linearised_laplace.hamiltonian import chain, split_r_hat

METHODS = {
    "mean_field": "mean-field",
    "dropout": "dropout",
    "ensemble": "ensemble of five",
    "hmc": "Hamiltonian Monte Carlo",
}
SMALL = ("boston", "concrete", "energy", "wine")
"""Data sets with a reference by Hamiltonian Monte Carlo."""
DROPOUT, NETWORKS = 0.05, 100
CONVERGED = 1.1
"""R-hat below which the mean of a test row counts as converged."""
UNCONVERGED = 0.05
"""Share of test rows that may be above it."""
CLOSE = 0.1
"""Nats within which linearised Laplace counts as close to Hamiltonian Monte Carlo."""

Weights = dict[str, Tensor]


def outputs(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return outputs `[B, 1]` for inputs `[B, inputs]`."""
    return torch.tanh(x @ weights["w"] + weights["b"]) @ weights["v"] + weights["c"]


def weights_of(network: nn.Module) -> Weights:
    """Return the tensors of a `OneHiddenLayer` under the names of `outputs`."""
    named = {name: weight.detach() for name, weight in network.named_parameters()}
    inputs = [weight for name, weight in named.items() if name.startswith("inputs.") and name.endswith(".weight")]
    w, v = torch.cat(inputs, 1).T, named["output.weight"].T
    return {"w": w.contiguous(), "b": named["inputs.0.bias"], "v": v.contiguous(), "c": named["output.bias"]}


def precisions_of(precisions: Mapping[str, float], inputs: int) -> Weights:
    """Return prior precisions, given by the names of a `OneHiddenLayer`, as tensors that broadcast to its weights."""
    of_inputs = [[precisions[f"inputs.{i}.weight"]] for i in range(inputs)]
    rest = {"b": "inputs.0.bias", "v": "output.weight", "c": "output.bias"}
    single = {name: torch.tensor(precisions[long], dtype=torch.float64) for name, long in rest.items()}
    return {"w": torch.tensor(of_inputs, dtype=torch.float64), **single}


@dataclass(frozen=True, eq=False)
class Problem:
    """Describe the posterior of all methods: rows, prior precisions that broadcast to the weights, noise."""

    x: Tensor
    y: Tensor
    precision: Weights
    noise: float

    def flat(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the weights as one vector."""
        return torch.cat([weight.flatten() for weight in weights.values()])

    def unflat(self, vector: Tensor, like: Mapping[str, Tensor]) -> Weights:
        """Return a vector's weights."""
        parts = vector.split([weight.numel() for weight in like.values()])
        return {name: part.view_as(weight) for (name, weight), part in zip(like.items(), parts, strict=True)}

    def log_density(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, Weights]:
        """Compute `-β/2 |y - f|² - 1/2 Σ δ θ²` and its gradient; differentiable only by that gradient."""
        hidden = torch.tanh(self.x @ weights["w"] + weights["b"])
        residual = self.y - hidden @ weights["v"] - weights["c"]
        back = self.noise * residual  # ∂/∂f of the log density
        inner = (back @ weights["v"].T) * (1 - hidden.square())
        gradient = {"w": self.x.T @ inner, "b": inner.sum(0), "v": hidden.T @ back, "c": back.sum(0)}
        value = -0.5 * self.noise * residual.square().sum()
        for name, weight in weights.items():
            value = value - 0.5 * (self.precision[name] * weight.square()).sum()
            gradient[name] = gradient[name] - self.precision[name] * weight
        return value, gradient

    def curvature(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Compute the precision of the Laplace posterior `β JᵀJ + δ` as a matrix `[P, P]`."""
        hidden = torch.tanh(self.x @ weights["w"] + weights["b"])
        inner = (1 - hidden.square()) * weights["v"].T
        of_w = (self.x[:, :, None] * inner[:, None, :]).flatten(1)
        jacobian = torch.cat([of_w, inner, hidden, torch.ones_like(self.y)], 1)
        prior = self.flat({name: self.precision[name].expand_as(weight) for name, weight in weights.items()})
        return self.noise * jacobian.T @ jacobian + prior.diag()


def mean_field(problem: Problem, mode: Weights, seed: int, steps: int, networks: int) -> list[Weights]:
    """Return networks sampled from a factorised Gaussian, trained from the mode."""
    generator = torch.Generator().manual_seed(seed)
    scales = {name: precision.rsqrt() for name, precision in problem.precision.items()}
    method = MeanFieldVI(
        outputs,  # pyright: ignore[reportArgumentType]
        Gaussian(problem.noise),
        num_data=len(problem.x),
        prior_scale=scales,
        params=mode,
        generator=generator,
    )
    _descend(method.parameter_groups(2e-3), steps, lambda: method.step(problem.x, problem.y))
    with torch.no_grad():
        return [dict(zip(mode, method.draw().values(), strict=True)) for _ in range(networks)]


def dropout(problem: Problem, mode: Weights, seed: int, steps: int, networks: int) -> list[Weights]:
    """Return networks with random hidden units left out, trained that way from the mode."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: weight.clone().requires_grad_() for name, weight in mode.items()}

    def masked() -> Weights:
        kept = torch.rand(len(mode["v"]), 1, dtype=torch.float64, generator=generator) > DROPOUT
        return {**weights, "v": weights["v"] * kept / (1 - DROPOUT)}

    def loss() -> Tensor:
        residual = problem.y - outputs(masked(), problem.x)
        decay = sum((problem.precision[name] * weight.square()).sum() for name, weight in weights.items())
        return 0.5 * (problem.noise * residual.square().sum() + decay) / len(problem.x)

    _descend([{"params": list(weights.values()), "lr": 5e-3}], steps, loss)
    with torch.no_grad():
        return [masked() for _ in range(networks)]


def _descend(groups: list[dict[str, Any]], steps: int, loss: Callable[[], Tensor]) -> None:
    """Take steps of Adam whose rate falls linearly to zero."""
    optimiser = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
        schedule.step()


def hamiltonian(
    problem: Problem, starts: list[Weights], seed: int, x_test: Tensor, transitions: int
) -> tuple[list[Weights], dict[str, float]]:
    """Return networks of chains from several modes, and how well the chains mixed at the test rows."""

    def density(position: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = problem.log_density(problem.unflat(position, starts[0]))
        return value, problem.flat(gradient)

    chains = []
    for number, start in enumerate(starts):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        mass = problem.curvature(start)
        chains.append(chain(density, problem.flat(start), mass, generator, warm_up=transitions, kept=transitions))
    networks = [[problem.unflat(position, starts[0]) for position in one.positions] for one in chains]
    means = torch.stack([torch.stack([outputs(each, x_test)[:, 0] for each in one]) for one in networks])
    r_hat = split_r_hat(means)
    every = max(1, len(starts) * transitions // 200)
    return [each for one in networks for each in one[::every]], {
        "hmc_r_hat": float(r_hat.median()),
        "hmc_not_converged": float((r_hat > CONVERGED).double().mean()),
        "hmc_acceptance": sum(one.acceptance for one in chains) / len(chains),
    }


@torch.no_grad()
def mixture(networks: list[Weights], x: Tensor, y: Tensor, noise: float) -> float:
    """Compute the mean log density of labels under the networks' mixture of Gaussians, per row."""
    each = torch.stack([(y - outputs(weights, x)).square() for weights in networks])
    log_density = 0.5 * math.log(noise / (2 * math.pi)) - 0.5 * noise * each
    return float((torch.logsumexp(log_density, 0) - math.log(len(networks))).mean())


def scores(
    trained: Trained, members: Sequence[nn.Module], data: Any, settings: Settings, seed: int, small: bool
) -> dict[str, Any]:
    """Score all baselines of one split.

    Args:
        trained: Linearised Laplace of that split, whose prior and noise all methods take.
        members: Further initial networks of the ensemble.
        data: The split.
        settings: Settings of the study.
        seed: Random seed.
        small: Whether to run Hamiltonian Monte Carlo.
    """
    laplace, started = trained.laplace, time.thread_time()
    network = laplace.model
    assert isinstance(network, nn.Module)
    prior, noise = laplace.prior, laplace.likelihood.scalar_noise_precision
    assert isinstance(prior, BoundPrior) and noise is not None
    by_name, noise = {name: float(value) for name, value in prior.diagonal().items()}, float(noise)
    problem = Problem(data.x, data.y, precisions_of(by_name, data.x.shape[1]), noise)
    for member in members:
        to_mode(member, data.x, data.y, laplace.likelihood, by_name, settings.baseline_iterations)
    modes = [weights_of(each) for each in (network, *members)]
    networks = {
        "mean_field": mean_field(problem, modes[0], seed, settings.baseline_steps, NETWORKS),
        "dropout": dropout(problem, modes[0], seed, settings.baseline_steps, NETWORKS),
        "ensemble": modes,
    }
    extra: dict[str, Any] = {}
    if small:
        networks["hmc"], extra = hamiltonian(problem, modes[:2], seed, data.x_test, settings.baseline_transitions)
    predicted, units = laplace.predict(data.x_test), -math.log(data.scale)
    mapped = mixture(modes[:1], data.x_test, data.y_test, noise)
    found = {name: mixture(each, data.x_test, data.y_test, noise) + units for name, each in networks.items()}
    return {
        "map": mapped + units,
        "linearised": float(predicted.log_prob(data.y_test).mean()) + units,
        **{name: found.get(name) for name in METHODS},
        **extra,
        "cpu_seconds": time.thread_time() - started,
    }


# --- page --------------------------------------------------------------------------------------------------


def compared_values(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of baselines, the protocol's claims and what has not been run, for the page."""
    keys = list(dict.fromkeys((row["name"], row["kind"]) for row in rows))
    of = {f"{name}, {kind}": [r for r in rows if (r["name"], r["kind"]) == (name, kind)] for name, kind in sorted(keys)}
    table = {}
    for key, each in of.items():
        sampled = [row for row in each if row["hmc"] is not None and row["hmc_not_converged"] <= UNCONVERGED]
        table[key] = {
            "splits": len(each),
            "linearised": Mean(row["linearised"] for row in each),
            **{f"to_{one}": Mean(row["linearised"] - row[one] for row in each) for one in list(METHODS)[:-1]},
            "to_hmc": "–" if not sampled else f"{Mean(row['linearised'] - row['hmc'] for row in sampled):.2f}",
        }
    converged = [row for row in rows if row["hmc"] is not None and row["hmc_not_converged"] <= UNCONVERGED]
    planned = {
        (kind, name, fold)
        for kind in ("standard", "gap")
        for name, folds in settings[kind].items()
        for fold in range(min(folds, settings.get("baseline_folds", 0)))
    }
    missing = planned - {(row["kind"], row["name"], row["fold"]) for row in rows}

    def better(other: str, kinds: tuple[str, ...]) -> bool:
        gains = [mean(each[f"to_{other}"]) for key, each in table.items() if key.endswith(kinds)]
        return bool(gains) and min(gains) > 0

    def close() -> bool:
        of_set = {row["name"] for row in converged if row["kind"] == "standard"}
        each = [
            mean(
                row["linearised"] - row["hmc"] for row in converged if (row["name"], row["kind"]) == (name, "standard")
            )
            for name in of_set
        ]
        return bool(each) and max(map(abs, each)) <= CLOSE

    both = ("standard", "gap")
    return {
        "table": table,
        "decided": {job[:2] for job in planned} == {(row["kind"], row["name"]) for row in rows},
        "holds": {
            "mean_field": yes(better("mean_field", both)),
            "dropout": yes(better("dropout", both)),
            "ensemble": yes(better("ensemble", ("gap",))),
            "hmc": yes(close()),
        },
        "splits": len(rows),
        "dropout": DROPOUT,
        "converged": len(converged),
        "chains": sum(row["hmc"] is not None for row in rows),
        "missing": ", ".join(f"{name} {kind} {fold}" for kind, name, fold in sorted(missing)),
        "minutes": sum(row["cpu_seconds"] for row in rows) / 60,
    }

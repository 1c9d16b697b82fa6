"""Small networks to a mode of their posterior, and the tutorial's loop of training and evidence updates.

Full-batch L-BFGS in double precision: for a few thousand rows and weights it reaches a mode in seconds, which
stochastic training does not, and the Laplace approximation is about a mode.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from marquis.evidence.mackay import mackay
from marquis.laplace import Laplace
from marquis.likelihoods import Likelihood
from marquis.priors import Prior
from marquis.structures import Layout

UPDATES = 5
"""Fixed-point updates of MacKay per round; the weights move between rounds, so converging in each would be wasted."""


def to_mode(
    model: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood, precisions: dict[str, float], iterations: int = 500
) -> float:
    """Minimise `sum_n l_n + 1/2 sum_p precision_p |theta_p|^2` in place; returns its gradient's norm per datum.

    Args:
        model: changed in place.
        x: all inputs.
        y: all labels.
        likelihood: p(y|f).
        precisions: prior precision of every parameter tensor, by name.
        iterations: of L-BFGS, at most.
    """
    weights = dict(model.named_parameters())
    steps = torch.optim.LBFGS(
        list(weights.values()),
        max_iter=iterations,
        history_size=50,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        steps.zero_grad()
        decay = sum(precisions[name] * weight.square().sum() for name, weight in weights.items())
        value = (0.5 * decay - likelihood.log_prob(model(x), y).sum()) / len(x)
        value.backward()
        return value

    steps.step(loss)  # pyright: ignore[reportArgumentType]  # the stubs want a float, the code a tensor
    loss()
    return float(torch.stack([w.grad.square().sum() for w in weights.values() if w.grad is not None]).sum().sqrt())


@dataclass(frozen=True, eq=False)
class Round:
    """What the evidence said after one round of training: how many parameters the data determine, and the values."""

    log_evidence: float
    effective: float
    gradient: float


@dataclass(frozen=True, eq=False)
class Trained:
    """The round of the largest evidence: a fitted Laplace with its own copy of the network, and all rounds."""

    laplace: Laplace
    log_evidence: float
    effective: float
    rounds: tuple[Round, ...]

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.laplace.posterior.num_random


def train_with_evidence(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    prior: Prior,
    *,
    structure: str | None = None,
    rounds: int = 8,
    iterations: int = 200,
) -> Trained:
    """The tutorial's practical loop (methods.md 5.4): train, update precisions and noise by the evidence, repeat.

    Args:
        model: starting point; not changed.
        x: all inputs.
        y: all labels.
        likelihood: p(y|f), with the noise to start from.
        prior: with the precisions to start from.
        structure: of the curvature; None for the exact matrix in its cheaper form (see `exact_structure`).
        rounds: of training and updating.
        iterations: of L-BFGS per round.
    """
    network = copy.deepcopy(model)
    structure = structure or exact_structure(network, x)
    best: Trained | None = None
    history: list[Round] = []
    for _ in range(rounds):
        gradient = to_mode(network, x, y, likelihood, precisions_by_name(network, prior), iterations)
        laplace = Laplace(copy.deepcopy(network), likelihood, structure, prior=prior).fit([(x, y)], progress=False)
        found = mackay(laplace.problem(), max_iterations=UPDATES)
        laplace.update(found.problem.grouped_prior, found.problem.likelihood)
        prior = replace(prior, precision=found.problem.grouped_prior.precision.clone())
        likelihood = found.problem.likelihood
        gamma = float(found.gamma.sum())
        history.append(Round(found.log_evidence, gamma, gradient))
        if best is None or found.log_evidence > best.log_evidence:
            best = Trained(laplace, found.log_evidence, gamma, ())
    assert best is not None
    return replace(best, rounds=tuple(history))


def exact_structure(model: nn.Module, x: Tensor) -> str:
    """Either "full", or "lowrank" where data times outputs are fewer than weights: the same matrix, as columns."""
    with torch.no_grad():
        columns = len(x) * model(x[:1]).shape[1]
    return "lowrank" if columns < sum(weight.numel() for weight in model.parameters()) else "full"


def precisions_by_name(model: nn.Module, prior: Prior) -> dict[str, float]:
    """The prior precision of every parameter tensor (groups that divide a tensor are not for this loop)."""
    weights = dict(model.named_parameters())
    bound = prior.bind(Layout.of(weights), model)
    return {name: float(value) for name, value in bound.diagonal().items()}

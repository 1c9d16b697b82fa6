"""Small networks trained to a mode of their posterior, and the tutorial's loop of training and evidence updates.

Full-batch L-BFGS in double precision reaches a mode in seconds for a few thousand rows and weights, which stochastic
training does not, and the Laplace approximation is about a mode (docs/method/evidence.md).
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
    """Minimise `sum_n l_n + 1/2 sum_p precision_p |theta_p|^2` in place and return its gradient's norm per row.

    `precisions` has the prior precision of every parameter tensor by name.
    """
    weights = dict(model.named_parameters())
    options = {"max_iter": iterations, "history_size": 50, "tolerance_grad": 1e-10, "tolerance_change": 1e-14}
    steps = torch.optim.LBFGS(list(weights.values()), line_search_fn="strong_wolfe", **options)

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
class Trained:
    """Hold the round of the largest evidence: a fitted Laplace with a copy of the network."""

    laplace: Laplace
    log_evidence: float
    effective: float
    rounds: tuple[float, ...] = ()

    @property
    def weights(self) -> int:
        """Return the number of weights."""
        return self.laplace.posterior.num_random


def train_with_evidence(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    prior: Prior,
    *,
    rounds: int = 8,
    iterations: int = 200,
) -> Trained:
    """Train a copy of the model, update prior precisions and noise by the evidence, and repeat.

    The prior and the likelihood have the values to start from; `iterations` of L-BFGS are run in every round.
    """
    network = copy.deepcopy(model)
    structure = exact_structure(network, x)
    best: Trained | None = None
    history: list[float] = []
    for _ in range(rounds):
        to_mode(network, x, y, likelihood, precisions_by_name(network, prior), iterations)
        laplace = Laplace(copy.deepcopy(network), likelihood, structure, prior=prior).fit([(x, y)], progress=False)
        tuned = mackay(laplace.problem(), max_iterations=UPDATES)
        laplace.update(tuned.problem.grouped_prior, tuned.problem.likelihood)
        prior = replace(prior, precision=tuned.problem.grouped_prior.precision.clone())
        likelihood = tuned.problem.likelihood
        history.append(tuned.log_evidence)
        assert tuned.gamma is not None
        if best is None or tuned.log_evidence > best.log_evidence:
            best = Trained(laplace, tuned.log_evidence, float(tuned.gamma.sum()))
    assert best is not None
    return replace(best, rounds=tuple(history))


def fit_at_mode(
    network: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood, precision: float, iterations: int
) -> Laplace:
    """Train the network in place to its mode for a scalar prior and return the exact Laplace approximation there."""
    prior = Prior(precision)
    to_mode(network, x, y, likelihood, precisions_by_name(network, prior), iterations)
    return Laplace(network, likelihood, exact_structure(network, x), prior=prior).fit([(x, y)], progress=False)


def exact_structure(model: nn.Module, x: Tensor) -> str:
    """Return "full", or "lowrank" where rows times outputs are fewer than weights: the same matrix as columns."""
    with torch.no_grad():
        columns = len(x) * model(x[:1]).shape[1]
    return "lowrank" if columns < sum(weight.numel() for weight in model.parameters()) else "full"


def precisions_by_name(model: nn.Module, prior: Prior) -> dict[str, float]:
    """Return the prior precision of every parameter tensor; groups must not divide tensors."""
    bound = prior.bind(Layout.of(dict(model.named_parameters())), model)
    return {name: float(value) for name, value in bound.diagonal().items()}

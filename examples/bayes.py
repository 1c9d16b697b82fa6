"""What the examples do with a curvature: choose the prior by evidence, predict with the linearised network.

Plain functions in the open, so that a reader sees every formula once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp


def flat_parameters(model: nn.Module) -> Tensor:
    """All parameters in one vector, in the order in which every structure keeps them."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def unflatten(model: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """The vector's entries by parameter name, in the parameters' shapes."""
    named = dict(model.named_parameters())
    pieces = vector.split([parameter.numel() for parameter in named.values()])
    return {name: piece.view_as(named[name]) for name, piece in zip(named, pieces, strict=True)}


@dataclass
class Posterior:
    """A Gaussian over weights: mean at the trained weights, precision = curvature + prior precision."""

    precision: Any
    prior_precision: float
    log_evidence: float


def tune(model: nn.Module, curvature: Any, log_likelihood: float) -> Posterior:
    """Choose the prior precision that maximises the Laplace evidence, on a grid from 1e-2 to 1e3.

    log Z = log p(y | w) - delta/2 |w|^2 + P/2 log delta - 1/2 log |H + delta I|
    """
    weights = flat_parameters(model)
    best: Posterior | None = None
    for exponent in torch.linspace(-2, 3, 26).tolist():
        delta = 10.0**exponent
        precision = curvature.add_diagonal(delta)
        evidence = (
            log_likelihood
            - 0.5 * delta * float(weights.square().sum())
            + 0.5 * weights.numel() * math.log(delta)
            - 0.5 * float(precision.logdet())
        )
        if best is None or evidence > best.log_evidence:
            best = Posterior(precision, delta, evidence)
    assert best is not None
    return best


@torch.no_grad()
def linearised_samples(model: nn.Module, x: Tensor, posterior: Posterior, samples: int, seed: int) -> Tensor:
    """Outputs of the linearised network, f(x; w*) + J(x) (w - w*), for weights drawn from the posterior.

    One forward-mode product per sample; the Jacobian is never stored.

    Returns:
        A tensor of shape (samples, *output shape).
    """
    generator = torch.Generator().manual_seed(seed)
    steps = posterior.precision.sample(samples, generator)
    centre = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (x,))

    drawn = []
    for step in steps:
        value, change, *_ = jvp(outputs, (centre,), (unflatten(model, step),))
        drawn.append(value + change)
    return torch.stack(drawn)

"""Small networks, data and dense answers that the tests of this folder share. All in float64."""

from __future__ import annotations

import copy
from functools import lru_cache

import torch
from torch import Tensor, nn

from marquis.structures import Layout


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@lru_cache
def mlp(inputs: int = 3, hidden: int = 5, outputs: int = 4, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double().eval()


@lru_cache
def convnet(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    ]
    return nn.Sequential(*layers).double().eval()


def fresh(network: nn.Module) -> nn.Module:
    """A copy that a test may change; the networks above are shared, so that each is captured once."""
    return copy.deepcopy(network)


def inputs_for(network: nn.Module, n: int = 7, seed: int = 1) -> Tensor:
    shape = (n, 1, 4, 4) if any(isinstance(m, nn.Conv2d) for m in network.modules()) else (n, 3)
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def parameters(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def dense_jacobian(network: nn.Module, x: Tensor, names: list[str] | None = None) -> Tensor:
    """`[B, O, P]` row by row with plain autograd: nothing in common with the code under test."""
    own = dict(network.named_parameters())
    chosen = [own[name] for name in (names or own)]
    rows = []
    for n in range(len(x)):
        output = network(x[n : n + 1]).flatten()
        for value in output:
            grads = torch.autograd.grad(value, chosen, retain_graph=True, allow_unused=True)
            full = [torch.zeros_like(p) if g is None else g for p, g in zip(chosen, grads, strict=True)]
            rows.append(torch.cat([g.flatten() for g in full]))
    return torch.stack(rows).reshape(len(x), -1, len(rows[0]))


def layout_of(network: nn.Module) -> Layout:
    return Layout.of(parameters(network))


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    """Relative to the largest entry."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = max(float(expected.abs().max()), 1e-300)
    assert float((actual - expected).abs().max()) <= tolerance * scale


class LinearModel(nn.Module):
    """`f = W phi`, linear in its weights: everything is exact."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def ridge(
    x: Tensor,
    y: Tensor,
    delta: float,
    beta: float,
    prior_precision: Tensor | None = None,
    prior_mean: Tensor | None = None,
):
    """Mean `[O, F]` and precision `[O F, O F]` of Bayesian linear regression, outputs independent."""
    features, outputs = x.shape[1], y.shape[1]
    eye = torch.eye(features * outputs, dtype=x.dtype)
    before = delta * eye if prior_precision is None else prior_precision
    mean0 = torch.zeros(features * outputs, dtype=x.dtype) if prior_mean is None else prior_mean
    data = beta * torch.kron(torch.eye(outputs, dtype=x.dtype), x.mT @ x)
    precision = before + data
    mean = torch.linalg.solve(precision, before @ mean0 + beta * (y.mT @ x).flatten())
    return mean.reshape(outputs, features), precision


def at_mode(model: LinearModel, mean: Tensor) -> LinearModel:
    with torch.no_grad():
        model.layer.weight.copy_(mean)
    return model.eval()

"""Evidence of a subnetwork: its tangent linear model has the chosen weights only (docs/method/curvature.md)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import marquis as mq


@pytest.fixture(scope="module")
def fitted() -> tuple[mq.Laplace, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)).double().eval()
        x, y = torch.randn(40, 2, dtype=torch.float64), torch.randint(3, (40,))
    laplace = mq.Laplace(network, "categorical", parameters=mq.Subnetwork(12, "magnitude"))
    return laplace.fit([(x[:20], y[:20]), (x[20:], y[20:])], progress=False), x, y


def features(laplace: mq.Laplace, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Jacobian `[N, O, K]` in the chosen weights, outputs and chosen weights, by dense differentiation."""
    own = laplace.fitted
    flat = own.layout.flatten(own.mean)
    assert own.index is not None

    def outputs(theta: Tensor) -> Tensor:
        return torch.func.functional_call(laplace.model, own.layout.unflatten(theta), (x,))  # type: ignore[arg-type]

    return torch.func.jacrev(outputs)(flat)[..., own.index], outputs(flat), flat[own.index]


def test_adapted_is_the_fixed_point_of_the_small_linear_model(fitted: tuple[mq.Laplace, Tensor, Tensor]):
    laplace, x, y = fitted
    jacobian, f, weights = features(laplace, x)
    eye = torch.eye(len(weights), dtype=torch.float64)

    def hessian(p: Tensor) -> Tensor:
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        return torch.einsum("noi,nop,npj->ij", jacobian, middle, jacobian)

    at_network, delta, theta = hessian(f.softmax(1)), 1.0, weights.clone()
    for _ in range(2000):
        for _ in range(30):
            p = (f + jacobian @ (theta - weights)).softmax(1)
            away = torch.einsum("nok,no->k", jacobian, p - nn.functional.one_hot(y, 3)) + delta * theta
            theta = theta - torch.linalg.solve(hessian(p) + delta * eye, away)
        gamma = len(weights) - delta * torch.linalg.inv(at_network + delta * eye).trace()
        delta = float(gamma / theta.square().sum())
    tuned = laplace.tune("adapted")
    # The search stops when a precision moves by less than one per cent.
    assert float(tuned.prior.precision[0]) == pytest.approx(delta, rel=0.02)
    naive = laplace.tune("evidence")
    assert float(naive.prior.precision[0]) != pytest.approx(delta, rel=0.05)


def test_sampled_runs_on_a_subnetwork(fitted: tuple[mq.Laplace, Tensor, Tensor]):
    laplace, _, _ = fitted
    options = {"samples": 500, "iterations": 200, "generator": torch.Generator().manual_seed(0)}
    sampled = laplace.tune("sampled", **options)
    adapted = laplace.tune("adapted")
    assert float(sampled.prior.precision[0]) == pytest.approx(float(adapted.prior.precision[0]), rel=0.25)

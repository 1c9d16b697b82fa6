"""What is left of the start value is no data, and the Laplace posterior keeps its prior whatever the settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.online.state import OnlineState
from marquis.structures import Diagonal, Layout


def state(initial: float, values: torch.Tensor) -> OnlineState:
    layout = Layout.of({"w": values})
    return OnlineState(Diagonal(layout, values.clone()), initial, noise_precision=2.0, prior_precision=0.5, data=10.0)


def test_the_learnt_prior_does_not_count_the_start_value_as_data():
    values = torch.tensor([3.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    for initial in (0.0, 7.0, 1e4):
        learnt = state(initial, values).with_prior(1.5, 1.0)
        gamma = sum(2 * h / (2 * h + 2 * initial + 0.5) for h in values.tolist())  # share that the data determine
        assert learnt.prior_precision == pytest.approx(max(gamma / 1.5, 1e-8), rel=1e-10)
    # No data at all: nothing is determined, so a large start value must not push the precision up.
    assert state(100.0, 0 * values).with_prior(1.5, 1.0).prior_precision <= 1e-8


@pytest.mark.parametrize("preset", [None, "paper-code"])
def test_laplace_posterior_keeps_the_prior(preset):
    torch.manual_seed(0)
    x, y = torch.randn(64, 3, dtype=torch.float64), torch.randn(64, 1, dtype=torch.float64)
    x[:, 2] = 0  # a weight that sees no data has the prior's precision
    online = mq.OnlineLaplace(nn.Linear(3, 1, bias=False).double(), "gaussian", num_data=64, preset=preset)
    for _ in range(40):
        for rows in torch.arange(64).split(16):
            online.step(x[rows], y[rows])
    posterior = online.posterior("laplace")
    beta, delta = online.state.noise_precision, online.state.prior_precision
    precision = posterior.precision.diagonal()
    assert float(precision[2]) == pytest.approx(delta, rel=1e-6)
    expected = beta * x.square().sum(0)[:2] + delta
    assert torch.allclose(precision[:2], expected, rtol=0.3)  # sketches and forgetting, but not 500 times
    if preset:
        tempered = online.posterior(online.settings.posterior_temperature / online.effective_temperature)
        assert abs(float(tempered.precision.diagonal()[2]) - delta) > 0.1 * delta  # what the command line did before

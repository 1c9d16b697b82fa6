"""Noise that the online learner learns per output or per channel, against the closed-form optimum."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import marquis as mq
from marquis.errors import DataError
from marquis.online.state import RELATIVE_NOISE

N, B = 40, 10
GROUPS = {"scalar": (0, 1, 2, 3), "channel": (0, 2, 3), "output": (0,)}
"""Dimensions of the outputs `[N, C, H, W]` that share a noise precision."""


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(seed: int = 0):
    """Inputs and targets `[N, 2, 3, 3]`; noise grows along the pixels and differs between channels."""
    x = torch.randn(N, 1, 3, 3, dtype=torch.float64, generator=gen(seed))
    scale = torch.linspace(0.1, 2.0, 18, dtype=torch.float64).reshape(2, 3, 3)
    return x, torch.randn(N, 2, 3, 3, dtype=torch.float64, generator=gen(seed + 1)) * scale


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 1)).double()


def learner(model, groups, **options):
    # So cold a posterior that the sampled weights are the fixed ones.
    options = {"posterior_temperature": 1e-20, "generator": gen(1), "noise_groups": groups} | options
    return mq.OnlineLaplace(model, "gaussian", num_data=N, **options)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_with_fixed_weights_the_noise_is_the_closed_form_optimum(groups, missing):
    """The precision of largest likelihood is the number of entries over their squared error, in every group."""
    x, y = images()
    seen = torch.rand(y.shape, generator=gen(3)) < 0.7 if missing else torch.ones_like(y, dtype=torch.bool)
    online = learner(network(), groups)
    for _ in range(3):
        online.step(x, y, seen if missing else None)
    squares = torch.where(seen, (network()(x) - y).detach().square(), 0.0)
    dims = GROUPS[groups]
    expected = (seen.sum(dims, keepdim=True) / squares.sum(dims, keepdim=True)).expand_as(y)[0]
    likelihood = online.noisy_likelihood
    assert isinstance(likelihood, mq.Gaussian) and likelihood.noise_precision is not None
    torch.testing.assert_close(likelihood.noise_precision.expand_as(expected), expected, rtol=1e-7, atol=0)
    best = float(likelihood.log_prob(network()(x).detach(), y, seen).sum())
    for factor in (0.8, 1.25):  # two-sided: a maximum
        assert float(likelihood.with_noise(expected * factor).log_prob(network()(x).detach(), y, seen).sum()) < best
    finer = {"scalar": "channel", "channel": "output"}.get(groups)
    if finer is not None:
        other = learner(network(), finer)
        for _ in range(3):
            other.step(x, y, seen if missing else None)
        assert float(other.noisy_likelihood.log_prob(network()(x).detach(), y, seen).sum()) > best + 10


@pytest.mark.parametrize("groups", ["channel", "output"])
def test_the_posterior_is_that_of_the_noise_that_was_learnt(groups):
    """Curvature and β together are `Jᵀ diag(β_o) J`, by a dense Jacobian."""
    x, y = images()
    options = {"structure": "full", "estimator": "exact", "forgetting": 1.0, "initial": 1e-12}
    online, model = learner(network(), groups, **options), network()
    for _ in range(2):  # the second step has the noise of the first; without memory H is the last batch's
        online.step(x, y)
    precision = online.noisy_likelihood.noise_precision.expand(2, 3, 3).reshape(-1)
    names = dict(model.named_parameters())
    jacobian = jacrev(lambda p: functional_call(model, p, (x,)))({n: p.detach() for n, p in names.items()})
    dense = torch.cat([jacobian[n].reshape(N, 18, -1) for n in names], 2)
    curvature = torch.einsum("noi,o,noj->ij", dense, precision, dense)
    expected = curvature + torch.eye(len(curvature), dtype=torch.float64)
    torch.testing.assert_close(online.posterior(1.0).precision.to_dense(), expected, rtol=1e-6, atol=1e-8)
    common = torch.einsum("noi,noj->ij", dense, dense) * online.state.noise_precision
    assert float((common - curvature).norm() / curvature.norm()) > 0.1  # one number is something else


def test_constant_outputs_have_bounded_noise_and_states_are_restored(tmp_path):
    x, y = images()
    y = y.clone()
    y[:, 0, 0, 0] = network()(x)[:, 0, 0, 0].detach()  # no error at all
    model = network()
    online = learner(model, "output", posterior_temperature=0.01)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)

    def train(online, optimiser, epochs):
        for _ in range(epochs):
            for rows in torch.arange(N).split(B):
                optimiser.zero_grad()
                online.step(x[rows], y[rows]).backward()
                optimiser.step()

    fixed = learner(network(), "output")
    fixed.step(x, y)
    assert float(fixed.state.relative_noise.max()) == RELATIVE_NOISE
    train(online, optimiser, 1)
    torch.save([model.state_dict(), optimiser.state_dict(), online.state_dict()], tmp_path / "x.pt")
    weights, momenta, state = torch.load(tmp_path / "x.pt", weights_only=True)
    train(online, optimiser, 1)
    again = network()
    again.load_state_dict(weights)
    resumed, other = learner(again, "output", posterior_temperature=0.01), torch.optim.Adam(again.parameters(), 1e-3)
    other.load_state_dict(momenta)
    resumed.load_state_dict(state)
    train(resumed, other, 1)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    old = {name: value for name, value in state.items() if name != "noise"}  # as 0.1.0 wrote it
    learner(network(), "scalar").load_state_dict(old)


def test_groups_are_for_noise_that_is_learnt():
    for likelihood, options in (("gaussian", {"noise_precision": 2.0}), ("bernoulli", {}), (mq.Gaussian(3.0), {})):
        with pytest.raises(DataError, match="noise_groups='output' is for noise_precision='learnt'"):
            mq.OnlineLaplace(network(), likelihood, num_data=N, noise_groups="output", **options)

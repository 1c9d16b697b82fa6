"""Batch normalisation and dropout in online training: running statistics, no dropout, flags as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.errors import UnsupportedOperationError


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), *layers, nn.Tanh(), nn.Linear(6, 1)).double()


def batch(seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    x = 2 + 3 * torch.randn(16, 3, dtype=torch.float64, generator=generator)
    return x, x.sum(1, keepdim=True)


def learner(model: nn.Module) -> mq.OnlineLaplace:
    return mq.OnlineLaplace(model, "gaussian", num_data=64, generator=torch.Generator().manual_seed(0))


def test_normalisations_learn_by_the_plain_pass_and_samples_see_running_statistics():
    model = network(nn.BatchNorm1d(6))
    plain = copy.deepcopy(model)
    by_hand = copy.deepcopy(model)
    x, y = batch()
    loss = learner(model).step(x, y)
    plain(x)  # what training without Marquis would have done to the statistics
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(model[1], name), getattr(plain[1], name))
    assert all(module.training for module in model.modules())
    by_hand.load_state_dict(model.state_dict())
    assert torch.equal(loss, learner(by_hand.eval()).step(x, y))  # the same as evaluation mode with these statistics
    loss.backward()
    gradient = dict(model.named_parameters())["1.weight"].grad
    assert gradient is not None and bool((gradient != 0).any())


def test_frozen_statistics_stay_and_dropout_is_off():
    model = network(nn.BatchNorm1d(6), nn.Dropout(0.5))
    model[1].eval()
    before, twin = copy.deepcopy(model[1].state_dict()), copy.deepcopy(model).eval()
    x, y = batch()
    assert torch.equal(learner(model).step(x, y), learner(twin).step(x, y))
    assert all(torch.equal(value, before[name]) for name, value in model[1].state_dict().items())
    assert model[2].training and not model[1].training


def test_training_with_normalisation_learns():
    model = network(nn.BatchNorm1d(6), nn.Dropout(0.1))
    online, optimiser = learner(model), torch.optim.Adam(model.parameters(), 1e-2)
    errors = []
    for step in range(300):
        x, y = batch(step % 4)
        loss = online.step(x, y / 5)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(1 / online.state.noise_precision)
    assert errors[-1] < 0.1 * errors[10]
    x, y = batch(0)
    model.eval()
    assert float((online.predict(x).mean - y / 5).square().mean()) < 0.2 * float((y / 5).var())


def test_flags_come_back_after_an_error_and_batch_statistics_alone_are_refused():
    model = network(nn.BatchNorm1d(6, track_running_stats=False), nn.Dropout(0.5))
    with pytest.raises(UnsupportedOperationError, match="statistics"):
        learner(model).step(*batch())
    assert all(module.training for module in model.modules())

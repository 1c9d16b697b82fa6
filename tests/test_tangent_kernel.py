"""Function space gives the answers of weight space (docs/method/predictive.md#function-space)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import marquis as mq
from helpers.small_networks import close, convnet, dense_jacobian, inputs_for, mlp
from marquis.errors import DataError


def test_kernel_is_the_product_of_jacobians():
    network, x, other = mlp(), inputs_for(mlp(), 4), inputs_for(mlp(), 3, seed=5)
    prior = mq.Prior({"0": 2.0, "2": 5.0}, "layer")
    k = mq.kernel(network, prior)
    inverse = torch.tensor([0.5] * 20 + [0.2] * 24, dtype=torch.float64)
    first, second = dense_jacobian(network, x).flatten(0, 1), dense_jacobian(network, other).flatten(0, 1)
    close(k(x, other), first * inverse @ second.mT, 1e-10)
    close(k(x), first * inverse @ first.mT, 1e-10)
    close(k(x, diagonal=True), (first.square() @ inverse).reshape(4, 4), 1e-10)
    close(mq.kernel(network, 3.0, memory_limit=3000)(x), first @ first.mT / 3, 1e-10)
    with pytest.raises(DataError):
        k(x, other, diagonal=True)


@pytest.mark.parametrize("likelihood", [mq.Gaussian(3.0), mq.Categorical(), mq.Bernoulli()], ids=str)
@pytest.mark.parametrize("make", [mlp, convnet])
def test_dual_prediction_equals_weight_space(likelihood, make):
    network = make()
    x, new = inputs_for(network, 6), inputs_for(network, 5, seed=9)
    dual = mq.kernel(network, 0.7).condition(x, likelihood)
    for kind in ("full", "lowrank"):
        la = mq.Laplace(network, likelihood, kind, prior=0.7).fit([x])
        there = la.predict(new, joint=True)
        close(dual.covariance(new), there.covariance, 1e-10)
        close(dual.predict(new).variance, there.variance, 1e-10)
        close(dual.predict(new).mean, there.mean, 1e-12)
    close(
        dual.covariance(new[:2], new[2:]), there.covariance[: 2 * there.mean.shape[1], 2 * there.mean.shape[1] :], 1e-10
    )
    # Data narrow the prior down: without them it is the kernel itself.
    assert (dual.predict(new).variance < mq.kernel(network, 0.7)(new, diagonal=True) * 0.999).all()


def test_dense_answer_of_the_formula_itself():
    network, x, new = mlp(), inputs_for(mlp(), 5), inputs_for(mlp(), 2, seed=4)
    k = mq.kernel(network)
    inner = torch.linalg.inv(k(x) + torch.eye(20).double() / 3)
    close(k.condition(x, mq.Gaussian(3.0)).covariance(new), k(new) - k(new, x) @ inner @ k(x, new), 1e-9)
    assert k.condition(x, "gaussian").predict(new).noise_variance is not None


@pytest.mark.parametrize("likelihood", [mq.Gaussian(3.0), "categorical"])
def test_evidence_is_that_of_the_full_posterior_and_tuning_finds_its_maximum(likelihood):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double().eval()
    x = torch.randn(15, 2, dtype=torch.float64)
    y = torch.arange(15) % 2 if likelihood == "categorical" else model(x).detach() + 0.3 * torch.randn(15, 2).double()
    posterior = mq.kernel(model, 2.0).condition(x, likelihood)
    la = mq.Laplace(model, likelihood, "full", prior=2.0).fit([(x, y)], progress=False)
    torch.testing.assert_close(posterior.log_evidence(y), la.log_evidence())
    tuned = posterior.tune(y, tolerance=1e-10)
    best = tuned.log_evidence(y)
    assert best > posterior.log_evidence(y)
    weights = la.tune(tolerance=1e-10)
    assert float(best) == pytest.approx(weights.log_evidence, abs=1e-5)
    torch.testing.assert_close(tuned.kernel.prior.precision, la.prior.precision, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(tuned.predict(x[:3]).variance, la.predict(x[:3]).variance, rtol=1e-4, atol=1e-8)
    for factor in (0.9, 1.1):  # a maximum in the prior's scale
        other = mq.kernel(model, float(tuned.kernel.prior.precision) * factor).condition(x, tuned.likelihood)
        assert other.log_evidence(y) < best

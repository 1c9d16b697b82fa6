"""Sums, not means: how the likelihoods relate to the losses that people train with (docs/method/likelihoods.md)."""

from __future__ import annotations

import math

import pytest
import torch

from marquis.likelihoods import Bernoulli, Categorical, Gaussian
from marquis.testing import autograd_hessian, seeded

N, O = 20, 3  # noqa: E741


def data():
    f = torch.randn(N, O, generator=seeded(1), dtype=torch.float64)
    return f, torch.randn(N, O, generator=seeded(2), dtype=torch.float64)


def test_mean_cross_entropy_times_n():
    f, _ = data()
    y = torch.randint(O, (N,), generator=seeded(3))
    total = -Categorical().log_prob(f, y).sum()
    torch.testing.assert_close(N * torch.nn.CrossEntropyLoss()(f, y), total)
    torch.testing.assert_close(-torch.distributions.Categorical(logits=f).log_prob(y).sum(), total)


def test_mean_cross_entropy_of_pixels_times_n_times_pixels():
    f = torch.randn(N, O, 2, 2, generator=seeded(1), dtype=torch.float64)
    y = torch.randint(O, (N, 2, 2), generator=seeded(3))
    torch.testing.assert_close(N * 4 * torch.nn.CrossEntropyLoss()(f, y), -Categorical().log_prob(f, y).sum())


def test_mean_square_error_times_n_times_outputs():
    f, y = data()
    beta = 2.5
    constant = -N * O / 2 * math.log(beta / (2 * math.pi))
    total = -Gaussian(beta).log_prob(f, y).sum()
    torch.testing.assert_close(beta / 2 * N * O * torch.nn.MSELoss()(f, y) + constant, total)
    torch.testing.assert_close(-torch.distributions.Normal(f, beta**-0.5).log_prob(y).sum(), total)


def test_summed_square_error_has_twice_the_hessian():
    f, y = data()
    loss = torch.nn.MSELoss(reduction="sum")
    hessian = torch.func.jacrev(torch.func.jacrev(lambda out: loss(out, y[0])))(f[0])
    torch.testing.assert_close(hessian / 2, Gaussian().hessian(f)[0])


def test_mean_binary_cross_entropy_times_n_times_outputs():
    f, y = data()
    y = (y > 0).double()
    total = -Bernoulli().log_prob(f, y).sum()
    torch.testing.assert_close(N * O * torch.nn.BCEWithLogitsLoss()(f, y), total)


@pytest.mark.parametrize("size", [1, 7, N])
def test_sums_over_batches_of_any_size_agree(size):
    f, y = data()
    labels = {Gaussian(2.5): y, Bernoulli(): (y > 0).double(), Categorical(): y.argmax(1)}
    for likelihood, target in labels.items():
        parts = list(zip(f.split(size), target.split(size), strict=True))
        value = sum(likelihood.log_prob(a, b).sum() for a, b in parts)
        curvature = torch.stack([likelihood.hessian(a).sum(0) for a, _ in parts]).sum(0)
        torch.testing.assert_close(value, likelihood.log_prob(f, target).sum(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(curvature, likelihood.hessian(f).sum(0), rtol=1e-12, atol=1e-12)


def test_doubling_the_outputs_doubles_the_loss():
    f, y = data()
    for likelihood, target in ((Gaussian(2.5), y), (Bernoulli(), (y > 0).double())):
        twice = likelihood.log_prob(torch.cat([f, f], 1), torch.cat([target, target], 1))
        torch.testing.assert_close(twice, 2 * likelihood.log_prob(f, target))


def test_square_loss_has_residual_and_unit_curvature():
    """EX (b): for l2, r = f - y and H = 1."""
    f, y = data()
    torch.testing.assert_close(Gaussian().gradient(f, y), f - y)
    torch.testing.assert_close(autograd_hessian(Gaussian(), f, y), torch.eye(O).double().expand(N, O, O))

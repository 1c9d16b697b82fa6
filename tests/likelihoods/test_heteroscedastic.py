"""Mean and log variance predicted together; the Fisher information as curvature."""

from __future__ import annotations

import math

import pytest
import torch
from test_gaussian import normal_quadrature

from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Heteroscedastic
from marquis.likelihoods.heteroscedastic import LOG_VARIANCE_LIMIT
from marquis.testing import LikelihoodConformance, all_labels, autograd_hessian, flat, seeded


class TestHeteroscedastic(LikelihoodConformance):
    shapes = ((4, 2), (1, 6), (2, 4, 3, 2))
    small = (2, 4)
    dim = 1

    def likelihood(self):
        return Heteroscedastic(self.dim)

    def reference(self, f, y):
        mean, log_variance = f.chunk(2, self.dim)
        return flat(torch.distributions.Normal(mean, (0.5 * log_variance).exp()).log_prob(y)).sum(1)

    def support(self, f):
        mean, log_variance = f.chunk(2, self.dim)
        return all_labels(*normal_quadrature(mean, (0.5 * log_variance).exp(), 5))

    def keep(self, f, y, chosen):
        mean, log_variance = f.chunk(2, self.dim)
        return torch.cat([mean[..., chosen], log_variance[..., chosen]], self.dim), y[..., chosen]


class TestHalvesAlongTheLastDimension(TestHeteroscedastic):
    shapes = ((3, 4), (2, 3, 4))
    dim = -1


def test_fisher_is_precision_and_one_half():
    f = torch.tensor([[0.3, 1.2]], dtype=torch.float64)
    expected = torch.tensor([math.exp(-1.2), 0.5], dtype=torch.float64).diag()
    torch.testing.assert_close(Heteroscedastic().hessian(f)[0], expected)


def test_the_hessian_itself_would_be_indefinite():
    f = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    at_the_mean = autograd_hessian(Heteroscedastic(), f, torch.tensor([[2.0]], dtype=torch.float64))
    assert torch.linalg.eigvalsh(at_the_mean)[0, 0] < -0.1
    assert (torch.linalg.eigvalsh(Heteroscedastic().hessian(f)) > 0).all()


def test_beyond_the_limit_it_is_the_clamped_density():
    inside = torch.tensor([[0.0, LOG_VARIANCE_LIMIT]], dtype=torch.float64)
    beyond = inside + torch.tensor([0.0, 5.0], dtype=torch.float64)
    y = torch.ones(1, 1, dtype=torch.float64)
    likelihood = Heteroscedastic()
    assert torch.equal(likelihood.log_prob(beyond, y), likelihood.log_prob(inside, y))
    assert likelihood.hessian_diagonal(beyond)[0, 1] == 0 and likelihood.hessian_diagonal(inside)[0, 1] == 0.5
    assert likelihood.gradient(beyond, y)[0, 1] == 0
    assert likelihood.gradient(beyond, y)[0, 0].item() == pytest.approx(-math.exp(-LOG_VARIANCE_LIMIT))


def test_predictive_noise_is_the_mean_of_a_log_normal():
    mean = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    variance = torch.tensor([[0.2, 0.7]], dtype=torch.float64)
    prediction = Heteroscedastic().predictive(mean, variance)
    assert prediction.mean.item() == 1.0 and prediction.variance.item() == 0.2
    log_normal = torch.distributions.LogNormal(mean[:, 1:], variance[:, 1:].sqrt())
    torch.testing.assert_close(prediction.noise_variance, log_normal.mean)


def test_fisher_column_keeps_its_digits_far_from_zero():
    far = torch.cat([torch.full((50, 1), 1e6), torch.full((50, 1), -8.0)], 1)
    near = torch.cat([torch.zeros(50, 1), torch.full((50, 1), -8.0)], 1)
    assert torch.equal(Heteroscedastic().fisher_column(far, seeded()), Heteroscedastic().fisher_column(near, seeded()))


def test_refusals():
    with pytest.raises(DataError, match="even size"):
        Heteroscedastic().log_prob(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(DataError, match="even size"):
        Heteroscedastic().log_prob(torch.zeros(2), torch.zeros(2))
    with pytest.raises(DataError, match="not the batch"):
        Heteroscedastic(-2).validate(torch.zeros(2, 2))
    with pytest.raises(UnsupportedOperationError, match="batch"):
        Heteroscedastic(0)
    with pytest.raises(DataError, match=r"shape \[2, 1\]"):
        Heteroscedastic().log_prob(torch.zeros(2, 2), torch.zeros(2))

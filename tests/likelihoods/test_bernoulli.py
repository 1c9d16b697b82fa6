"""Bernoulli labels: binary, multi-label, images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marquis.errors import DataError
from marquis.likelihoods import Bernoulli
from marquis.testing import LikelihoodConformance, all_labels, autograd_hessian, flat, seeded


class TestBernoulli(LikelihoodConformance):
    shapes = ((5,), (3, 4), (1, 1), (2, 1, 3, 2))
    small = (2, 3)

    def likelihood(self):
        return Bernoulli()

    def reference(self, f, y):
        return flat(torch.distributions.Bernoulli(logits=f).log_prob(y)).sum(1)

    def support(self, f):
        values = torch.stack([torch.zeros_like(f), torch.ones_like(f)])
        return all_labels(values, torch.stack([1 - f.sigmoid(), f.sigmoid()]))


def test_labels_of_any_dtype():
    f = torch.randn(4, 3, generator=seeded())
    y = Bernoulli().sample(f, seeded(1))
    for dtype in (torch.bool, torch.int64, torch.uint8, torch.float64):
        Bernoulli().validate(f, y.to(dtype))
        assert torch.equal(Bernoulli().log_prob(f, y.to(dtype)), Bernoulli().log_prob(f, y))
        assert torch.equal(Bernoulli().gradient(f, y.to(dtype)), Bernoulli().gradient(f, y))


def test_grey_values_are_the_cross_entropy():
    f = torch.randn(3, 2, generator=seeded(), dtype=torch.float64)
    y = torch.rand(3, 2, generator=seeded(1), dtype=torch.float64)
    Bernoulli().validate(f, y)
    expected = -torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="none").sum(1)
    torch.testing.assert_close(Bernoulli().log_prob(f, y), expected)
    torch.testing.assert_close(autograd_hessian(Bernoulli(), f, y), Bernoulli().hessian(f))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_signed_form(sign):
    """For y in {-1, 1}: r = -y sigmoid(-y f), L = sigmoid(f) sigmoid(-f) (docs/method/likelihoods.md)."""
    f = torch.linspace(-40, 40, 81, dtype=torch.float64)
    y = torch.full_like(f, (sign + 1) / 2)
    torch.testing.assert_close(Bernoulli().gradient(f, y), -sign * (-sign * f).sigmoid(), rtol=1e-12, atol=0)
    torch.testing.assert_close(Bernoulli().hessian_diagonal(f), f.sigmoid() * (-f).sigmoid(), rtol=1e-12, atol=0)
    assert (Bernoulli().hessian_diagonal(f) >= 0).all()


def test_residual_and_curvature_vanish_at_the_same_rate():
    """So a small L does not make the term that the GGN drops, which is weighted by r, relatively small."""
    f = torch.tensor([10.0, 20.0, 30.0, 100.0], dtype=torch.float64)
    ratio = Bernoulli().gradient(f, torch.ones_like(f)).abs() / Bernoulli().hessian_diagonal(f)
    torch.testing.assert_close(ratio, torch.ones_like(f), rtol=1e-4, atol=0)
    assert (Bernoulli().hessian_diagonal(f) > 0).all()


def test_tails_keep_their_digits():
    f = torch.tensor([50.0, 100.0], dtype=torch.float64)
    torch.testing.assert_close(Bernoulli().log_prob(f, torch.ones(2)), -(-f).exp(), rtol=1e-12, atol=0)


def test_sample_compares_a_uniform_number():
    f = torch.randn(100, generator=seeded(), dtype=torch.float64)
    uniform = torch.rand(100, generator=seeded(3), dtype=torch.float64)
    assert torch.equal(Bernoulli().sample(f, seeded(3)), (uniform < f.sigmoid()).double())


def test_average_against_quadrature():
    """Equal to 100-node Gauss-Hermite where that has converged (docs/method/predictive.md#checks)."""
    points, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(100))
    mean = torch.linspace(-6, 6, 61, dtype=torch.float64)[:, None]
    variance = torch.linspace(0, 4, 41, dtype=torch.float64)[None, :]
    mean, variance = torch.broadcast_tensors(mean, variance)
    logits = mean[..., None] + variance.sqrt()[..., None] * points
    exact = (logits.sigmoid() * weights).sum(-1) / math.sqrt(2 * math.pi)
    probs = Bernoulli().predictive(mean, variance).probs
    assert probs is not None
    torch.testing.assert_close(probs, exact, rtol=0, atol=1e-8)


def test_average_is_exact_without_variance_and_at_zero():
    mean = torch.linspace(-6, 6, 13, dtype=torch.float64)
    assert torch.equal(Bernoulli().predictive(mean, torch.zeros_like(mean)).probs, mean.sigmoid())
    assert (Bernoulli().predictive(torch.zeros(3), torch.tensor([0.0, 1.0, 1e6])).probs == 0.5).all()


def test_predictive_keeps_the_logits():
    mean, variance = torch.randn(3, 2), torch.rand(3, 2)
    prediction = Bernoulli().predictive(mean, variance)
    assert torch.equal(prediction.mean, mean) and torch.equal(prediction.variance, variance)
    assert prediction.noise_variance is None and torch.equal(prediction.total_variance, variance)


@pytest.mark.parametrize("bad", [-1.0, 1.5, 255.0])
def test_labels_out_of_range_are_refused(bad):
    with pytest.raises(DataError, match="0 or 1"):
        Bernoulli().validate(torch.zeros(2), torch.tensor([0.0, bad]))
    Bernoulli().validate(torch.zeros(2), torch.tensor([0.0, bad]), mask=torch.tensor([1.0, 0.0]))

"""TV-PredCP: closed forms against samples, autograd and numerical integration."""

from __future__ import annotations

import math

import pytest
import torch

from marquis.tomography.analytic import differences, differences_adjoint, total_variation
from marquis.tomography.complexity import (
    expected_absolute,
    expected_tv,
    expected_tv_slope,
    log_prior_of_lengthscale,
    log_prior_of_variance,
)
from marquis.tomography.evidence import consistent_rate
from marquis.tomography.gram import compute_grams, difference_variances, sampled_roughness
from marquis.tomography.training import tv_weight_for


def test_differences_and_their_adjoint():
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    values = torch.randn(5 * 6 + 4 * 7, generator=generator, dtype=torch.float64)
    assert float(differences(image) @ values) == pytest.approx(
        float((image * differences_adjoint(values, (5, 7))).sum()), rel=1e-12
    )
    by_hand = sum(abs(image[i, j + 1] - image[i, j]) for i in range(5) for j in range(6))
    by_hand += sum(abs(image[i + 1, j] - image[i, j]) for i in range(4) for j in range(7))
    assert float(total_variation(image)) == pytest.approx(float(by_hand), rel=1e-12)


def test_roughness_is_the_dense_one(small):
    grams = small.exact.grams
    eye = torch.eye(100, dtype=torch.float64).reshape(100, 10, 10)
    dense = differences(eye).T  # [m, dx]
    for term, roughness in zip(grams.image, grams.roughness, strict=True):
        expected = (dense @ term @ dense.T).diagonal()
        torch.testing.assert_close(difference_variances(term, (10, 10)), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(roughness, expected, rtol=1e-9, atol=1e-12)


def test_sampled_roughness_is_unbiased(small):
    estimate = sampled_roughness(small.exact.linearised, 400, torch.Generator().manual_seed(0), by_block=True)
    exact = small.exact.grams.roughness
    torch.testing.assert_close(estimate.sum(1), exact.sum(1), rtol=0.1, atol=1e-9)
    whole = sampled_roughness(small.exact.linearised, 400, torch.Generator().manual_seed(0), by_block=False)
    assert float(whole.sum()) == pytest.approx(float(exact.sum()), rel=0.1)


def test_kappa_against_samples(small):
    """The expected total variation under one block's prior, against 1e5 samples of its weights' images."""
    covariance = 0.3 * small.exact.grams.image[1]
    values, vectors = torch.linalg.eigh(covariance)
    noise = torch.randn(100_000, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = small.trained.image.flatten() + (noise * values.clamp_min(0).sqrt()) @ vectors.T
    samples = total_variation(images.reshape(-1, 10, 10))
    kappa = expected_tv(differences(small.trained.image), 0.3 * small.exact.grams.roughness[1])
    error = float(samples.std() / math.sqrt(100_000))
    assert abs(float(kappa) - float(samples.mean())) < 4 * error


def test_slope_against_autograd(small):
    mean = differences(small.trained.image)
    roughness = small.exact.grams.roughness[1]
    log_variance = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    kappa = expected_tv(mean, log_variance.exp() * roughness)
    (slope,) = torch.autograd.grad(kappa, log_variance)
    variances = log_variance.detach().exp() * roughness
    assert float(expected_tv_slope(mean, variances, variances)) == pytest.approx(float(slope), rel=1e-9)


def test_a_zero_variance_is_no_nan():
    value = expected_absolute(torch.tensor([0.3, 0.0]).double(), torch.tensor([1e-15, 1e-15]).double())
    torch.testing.assert_close(value, torch.tensor([0.3, 0.0]).double())
    variance = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    roughness = torch.tensor([[0.0, 0.2]], dtype=torch.float64)
    prior = log_prior_of_variance(torch.tensor([0.3, 0.1]).double(), roughness, variance, 2.0).sum()
    (gradient,) = torch.autograd.grad(prior, variance)
    assert bool(torch.isfinite(gradient).all())


def test_kappa_grows_with_the_variance_without_bound(small):
    mean, roughness = differences(small.trained.image), small.exact.grams.roughness[1]
    grid = torch.logspace(-6, 6, 60, dtype=torch.float64)
    kappa = expected_tv(mean, grid[:, None] * roughness)
    assert bool((kappa.diff() > 0).all())
    assert float(kappa[0]) == pytest.approx(float(mean.abs().sum()), rel=1e-2)
    assert float(kappa[-1]) > 100 * float(kappa[0])


@pytest.mark.parametrize("rate", [0.3, 3.0])
def test_the_density_of_log_variance_integrates_to_one(small, rate):
    mean, roughness = differences(small.trained.image), small.exact.grams.roughness[1:2]
    grid = torch.linspace(-30, 20, 20_001, dtype=torch.float64)
    density = torch.stack([log_prior_of_variance(mean, roughness, v[None], rate)[0] for v in grid.exp()]).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-3)


def test_the_density_of_log_lengthscale_does_not(small):
    """κ is bounded in ℓ: with the Jacobian itself (power 1) mass is missing where κ is monotone."""
    grams = compute_grams(small.exact.linearised, small.geometry, taps=True)
    mine = grams.block == 1
    mean, roughness, distance = differences(small.trained.image), grams.roughness[mine], grams.distance[mine]
    variance, rate = torch.tensor(0.3, dtype=torch.float64), 0.3
    grid = torch.linspace(-6, 14, 4001, dtype=torch.float64)
    kappa = torch.stack(
        [expected_tv(mean, (variance * torch.exp(-distance / length)) @ roughness) for length in grid.exp()]
    )
    assert float(kappa.max()) < 2 * float(kappa[-1]) + float(kappa[0])  # bounded
    logs = [log_prior_of_lengthscale(mean, roughness, distance, variance, length, rate, 1.0) for length in grid.exp()]
    mass = float(torch.trapezoid(torch.stack(logs).exp(), grid))
    assert bool((kappa.diff() >= -1e-12).all())  # here it is monotone, which it is not in general
    expected = math.exp(-rate * float(kappa[0])) - math.exp(-rate * float(kappa[-1]))
    assert mass == pytest.approx(expected, rel=1e-2)
    assert mass < 0.9


def test_rate_and_weight_are_inverse_to_each_other():
    assert consistent_rate(tv_weight_for(0.04, 820, rate=1.7), 820, 0.04) == pytest.approx(1.7)

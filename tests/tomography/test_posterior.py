"""The exact posterior and both evidences against dense linear algebra in weight space."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import marquis as mq
from marquis.errors import UnsupportedOperationError
from marquis.tomography import Dense, UNet, as_layer, deep_image_prior, simulate
from marquis.tomography.evidence import ExactData, TunedPrior, build_problem, log_evidence
from marquis.tomography.gram import compute_grams, tap_classes
from marquis.tomography.posterior import linearise
from marquis.tomography.tangent import LinearisedImage


def tuned_at(small, variance=None, noise=None, lengthscale=None) -> TunedPrior:
    variance = small.variance if variance is None else variance
    noise = small.noise if noise is None else noise
    names = tuple(small.exact.linearised.blocks)
    return TunedPrior(names, variance, noise, lengthscale, None, None, 1.0, 0, True, "by hand")


def problem_of(small, grams=None):
    grams = small.exact.grams if grams is None else grams
    terms = grams.block, grams.distance
    forward = small.geometry.forward
    return build_problem(small.exact.linearised, ExactData(grams), grams.roughness, terms, small.data, forward)


def test_blocks_partition_the_convolution_weights(small):
    linearised = small.exact.linearised
    network = small.trained.network
    convolutions = [f"{name}.weight" for name, m in network.named_modules() if isinstance(m, torch.nn.Conv2d)]
    assert sorted(name for names in linearised.blocks.values() for name in names) == sorted(convolutions)
    assert list(linearised.blocks) == ["inlet", "down.0", "down.1", "skip.0", "skip.1", "up.0", "up.1", "out"]
    assert linearised.filter_blocks() == [True, True, True, False, False, True, True, False]


def test_products_with_the_jacobian(small):
    linearised = small.exact.linearised
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(3, small.jacobian.shape[1], generator=generator, dtype=torch.float64)
    images = torch.randn(3, 100, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(linearised.jvp(weights), weights @ small.jacobian.T, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(linearised.vjp(images), images @ small.jacobian, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(linearised.image, small.trained.image, rtol=1e-5, atol=1e-6)


def test_products_one_by_one_are_the_batched_ones(small, monkeypatch):
    rows = torch.eye(100, dtype=torch.float64)[:5]
    batched = small.exact.linearised.vjp(rows)
    monkeypatch.setattr("marquis.tomography.tangent.SMALL_IMAGE", 10)
    fresh = LinearisedImage(small.trained.network, small.trained.inputs)
    torch.testing.assert_close(fresh.vjp(rows), batched, rtol=1e-12, atol=1e-14)


def test_jacobians_block_by_block_are_the_whole_one(small, monkeypatch):
    monkeypatch.setattr("marquis.tomography.tangent.WHOLE_JACOBIAN", 0)
    jacobian = torch.cat(list(small.exact.linearised.block_jacobians()), dim=1)
    torch.testing.assert_close(jacobian, small.jacobian, rtol=1e-10, atol=1e-12)


def test_gram_form_is_the_dense_product(small):
    grams = small.exact.grams
    coefficients = grams.coefficients(small.variance)
    expected = small.dense_image_covariance()
    torch.testing.assert_close(grams.image_covariance(coefficients), expected, rtol=1e-12, atol=1e-14)
    data = grams.data_covariance(coefficients, small.noise)
    torch.testing.assert_close(data, small.dense_data_covariance(), rtol=1e-12, atol=1e-14)


def test_determinant_identity(small):
    dy = len(small.matrix)
    grams = small.exact.grams
    logdet = torch.linalg.slogdet(grams.data_covariance(grams.coefficients(small.variance), small.noise))[1]
    through = small.matrix @ small.jacobian
    precision = torch.diag(1 / small.weight_variances) + through.T @ through / small.noise
    expected = dy * math.log(small.noise) + small.weight_variances.log().sum() + torch.linalg.slogdet(precision)[1]
    assert float(logdet) == pytest.approx(float(expected), rel=1e-10)


def test_posterior_is_the_one_of_weight_space(small):
    through = small.matrix @ small.jacobian
    precision = torch.diag(1 / small.weight_variances) + through.T @ through / small.noise
    expected = small.jacobian @ torch.linalg.solve(precision, small.jacobian.T)
    result = small.exact.posterior(tuned_at(small), floor=0.0)
    assert float((result.covariance - expected).norm() / expected.norm()) < 1e-9
    torch.testing.assert_close(result.variance.flatten(), expected.diagonal(), rtol=1e-8, atol=1e-12)


def test_the_engines_posterior_is_the_same(small):
    """`Laplace` on network and operator together, read at the image: other code, the same covariance and evidence."""
    network = copy.deepcopy(small.trained.network).double()
    model = nn.Sequential(network, nn.Flatten(0, 1), as_layer(small.geometry), nn.Flatten())
    names = [f"0.{name}" for names in small.exact.linearised.blocks.values() for name in names]
    likelihood = mq.Gaussian(1 / small.noise)
    chosen = lambda name, _: name in names  # noqa: E731
    la = mq.Laplace(model, likelihood, "lowrank", "exact", parameters=chosen, prior=1 / 0.3)
    la.fit([(small.trained.inputs.double(), small.data.reshape(1, -1))], progress=False)
    prediction = la.predict(small.trained.inputs.double(), at="0", joint=True)
    one = tuned_at(small, variance=torch.full_like(small.variance, 0.3))
    ours = small.exact.posterior(one, floor=0.0)
    assert float((prediction.covariance - ours.covariance).norm() / ours.covariance.norm()) < 1e-7
    problem = problem_of(small)
    noise = torch.tensor(small.noise, dtype=torch.float64)
    value = log_evidence(problem, one.variance, None, noise, "network")
    assert float(la.log_evidence()) == pytest.approx(float(value), rel=1e-6)


def test_tangent_evidence_is_the_linear_models(small):
    """At its own optimum the linear model's data and weight terms are the tangent quadratic; the network's are not."""
    problem = problem_of(small)
    noise = torch.tensor(small.noise, dtype=torch.float64)
    weights = small.exact.linearised.weights
    shifted = small.data.flatten() - small.matrix @ (small.exact.linearised.image.flatten() - small.jacobian @ weights)
    covariance = small.dense_data_covariance()
    oracle = MultivariateNormal(torch.zeros(len(covariance), dtype=torch.float64), covariance).log_prob(shifted)
    tangent = log_evidence(problem, small.variance, None, noise, "tangent")
    assert float(tangent) == pytest.approx(float(oracle), rel=1e-9)

    through = small.matrix @ small.jacobian
    precision = torch.diag(1 / small.weight_variances) + through.T @ through / small.noise
    best = torch.linalg.solve(precision, through.T @ shifted / small.noise)
    at_best = (shifted - through @ best).square().sum() / small.noise + (best.square() / small.weight_variances).sum()
    quadratic = shifted @ torch.linalg.solve(covariance, shifted)
    assert float(at_best) == pytest.approx(float(quadratic), rel=1e-10)

    network = log_evidence(problem, small.variance, None, noise, "network")
    residual = small.data.flatten() - small.matrix @ small.exact.linearised.image.flatten()
    terms = residual.square().sum() / small.noise + (weights.square() / small.weight_variances).sum()
    assert float(network - tangent) == pytest.approx(-0.5 * float(terms - quadratic), rel=1e-8)
    assert abs(float(network - tangent)) > 1


@pytest.mark.parametrize("evidence", ["network", "tangent"])
def test_gradients_of_the_evidence(small, evidence):
    problem = problem_of(small)
    logs = torch.cat([small.variance.log(), torch.tensor([small.noise], dtype=torch.float64).log()]).requires_grad_()

    def value(logs):
        return log_evidence(problem, logs[:-1].exp(), None, logs[-1].exp(), evidence)

    (gradient,) = torch.autograd.grad(value(logs), logs)
    for index in range(len(logs)):
        step = torch.zeros_like(logs)
        step[index] = 1e-5
        with torch.no_grad():
            numeric = (value(logs + step) - value(logs - step)) / 2e-5
        assert float(gradient[index]) == pytest.approx(float(numeric), rel=1e-5, abs=1e-5)


def test_a_process_over_taps(small):
    grams = compute_grams(small.exact.linearised, small.geometry, taps=True)
    for name in ("block", "distance", "image", "data", "roughness"):
        same = getattr(grams.independent(), name)
        torch.testing.assert_close(same, getattr(small.exact.grams, name), rtol=1e-12, atol=1e-14)
    assert len(grams.block) == 5 * 6 + 3
    lengthscale = torch.linspace(0.3, 2.0, 8, dtype=torch.float64)
    position = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double()
    distance = torch.cdist(position, position)
    pieces = []
    linearised = small.exact.linearised
    for index, (size, is_filter) in enumerate(zip(linearised.sizes, linearised.filter_blocks(), strict=True)):
        taps = torch.exp(-distance / lengthscale[index])
        block = torch.block_diag(*[taps] * (size // 9)) if is_filter else torch.eye(size, dtype=torch.float64)
        pieces.append(small.variance[index] * block)
    weights = torch.block_diag(*pieces)
    expected = small.jacobian @ weights @ small.jacobian.T
    image = grams.image_covariance(grams.coefficients(small.variance, lengthscale))
    torch.testing.assert_close(image, expected, rtol=1e-10, atol=1e-13)

    problem = problem_of(small, grams)
    noise = torch.tensor(small.noise, dtype=torch.float64)
    value = log_evidence(problem, small.variance, lengthscale, noise, "network")
    theta = linearised.weights
    data = small.matrix @ expected @ small.matrix.T + small.noise * torch.eye(128, dtype=torch.float64)
    terms = problem.misfit / small.noise + theta @ torch.linalg.solve(weights, theta)
    oracle = -0.5 * (terms + torch.linalg.slogdet(data)[1] + 128 * math.log(2 * math.pi))
    assert float(value) == pytest.approx(float(oracle), rel=1e-9)


def test_six_tap_distances():
    classes = tap_classes()
    assert [round(distance**2) for distance, _ in classes] == [0, 1, 2, 4, 5, 8]
    assert torch.equal(sum(pairs for _, pairs in classes), torch.ones(9, 9, dtype=torch.float64))


def test_posterior_is_below_the_prior_and_reaches_it(small):
    grams = small.exact.grams
    prior = grams.image_covariance(grams.coefficients(small.variance)).diagonal()
    posterior = small.exact.posterior(tuned_at(small), floor=0.0).variance.flatten()
    assert bool((posterior <= prior + 1e-12).all())
    assert float((posterior / prior).mean()) < 0.5
    blind = small.exact.posterior(tuned_at(small, noise=1e12), floor=0.0).variance.flatten()
    torch.testing.assert_close(blind, prior, rtol=1e-6, atol=1e-12)


def test_two_equal_sinograms_are_one_with_half_the_noise(small):
    twice = Dense(torch.cat([small.matrix, small.matrix]), 10)
    grams = compute_grams(small.exact.linearised, twice)
    both = replace(small.exact, measurement=twice, grams=grams).posterior(tuned_at(small), floor=0.0)
    once = small.exact.posterior(tuned_at(small, noise=small.noise / 2), floor=0.0)
    torch.testing.assert_close(both.covariance, once.covariance, rtol=1e-8, atol=1e-10)


def coverage(small, factor: float) -> float:
    """Share of pixels inside 95 % intervals where weights and data come from the model itself."""
    generator = torch.Generator().manual_seed(5)
    count = 500
    weights = torch.randn(count, small.jacobian.shape[1], generator=generator, dtype=torch.float64)
    images = (weights * small.weight_variances.sqrt()) @ small.jacobian.T
    noise = small.noise**0.5 * torch.randn(count, 128, generator=generator, dtype=torch.float64)
    data = images @ small.matrix.T + noise
    tuned = tuned_at(small, variance=factor * small.variance)
    prior = small.exact.grams.image_covariance(small.exact.grams.coefficients(tuned.variance))
    covariance = small.matrix @ prior @ small.matrix.T + small.noise * torch.eye(128, dtype=torch.float64)
    mean = torch.linalg.solve(covariance, data.T).T @ (small.matrix @ prior)
    result = small.exact.posterior(tuned, floor=0.0)
    low, high = result.interval(0.95)
    centred = images - mean + result.image.flatten()
    return float(((centred >= low.flatten()) & (centred <= high.flatten())).double().mean())


def test_intervals_of_the_model_itself_are_calibrated(small):
    assert coverage(small, 1.0) == pytest.approx(0.95, abs=0.01)
    assert coverage(small, 4.0) > 0.96


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"predcp": "variance"},
        {"groups": "scalar", "predcp": "variance"},
        {"groups": "scalar", "evidence": "tangent"},
    ],
)
def test_tuning_finds_a_maximum(small, options):
    tuned = small.exact.tune(small.data, **options)
    assert tuned.converged
    problem = problem_of(small)
    if "predcp" not in options:
        evidence = options.get("evidence", "network")

        def value(variance, noise):
            return float(log_evidence(problem, variance, None, torch.tensor(noise, dtype=torch.float64), evidence))

        best = value(tuned.variance, tuned.noise_variance)
        assert best == pytest.approx(tuned.log_evidence, rel=1e-9)
        for factor in (0.9, 1.1):
            assert value(tuned.variance, factor * tuned.noise_variance) < best
            assert value(factor * tuned.variance, tuned.noise_variance) < best + 1e-6
    else:
        without = small.exact.tune(small.data, **{**options, "predcp": None})
        assert tuned.log_evidence < without.log_evidence
    assert "variance up.0" in str(tuned)


def test_published_variant(small):
    prior = linearise(small.trained, small.geometry, posterior="exact", taps=True)
    tuned = prior.tune(small.data, predcp="lengthscale", rate=0.2, tempered=True)
    assert tuned.lengthscale is not None and bool((tuned.lengthscale > 0).all())
    assert bool((prior.posterior(tuned).variance > 0).all())


def test_options_that_exclude_each_other(small):
    with pytest.raises(UnsupportedOperationError, match="scalar"):
        small.exact.tune(small.data, evidence="tangent")
    with pytest.raises(UnsupportedOperationError, match="taps"):
        small.exact.tune(small.data, predcp="lengthscale")
    with pytest.raises(UnsupportedOperationError, match="exact"):
        linearise(small.trained, small.geometry, posterior="iterative", taps=True)


def test_active_dropout_is_refused(small):
    network = UNet((3, 4), range=(0.0, 1.0), dropout=0.2)
    trained = deep_image_prior(small.data, small.geometry, tv=1e-3, steps=2, network=network, progress=False)
    linearise(trained, small.geometry)
    trained.network.train()
    with pytest.raises(UnsupportedOperationError, match="training mode"):
        linearise(trained, small.geometry)


def test_samples_have_the_covariance(small):
    result = small.exact.posterior(tuned_at(small))
    # `sample` is white noise times this root: no Monte-Carlo tolerance is needed.
    torch.testing.assert_close(result._root.T @ result._root, result.covariance, rtol=1e-9, atol=1e-12)
    samples = result.sample(4000, generator=torch.Generator().manual_seed(0)) - result.image
    assert float((samples.square().mean(0) / result.std.square()).mean()) == pytest.approx(1.0, abs=0.01)


def test_log_density_against_torch(small):
    result = small.exact.posterior(tuned_at(small))
    full = MultivariateNormal(result.image.flatten(), result.covariance).log_prob(small.truth.flatten())
    assert result.log_density(small.truth) == pytest.approx(float(full), rel=1e-9)
    marginal = torch.distributions.Normal(result.image, result.std).log_prob(small.truth).sum()
    assert result.log_density(small.truth, marginal=True) == pytest.approx(float(marginal), rel=1e-9)


def test_simulated_noise_has_the_level(small):
    clean = small.geometry.forward(small.truth)
    noisy = simulate(small.truth, small.geometry, noise=0.5, generator=torch.Generator().manual_seed(3))
    assert float((noisy - clean).std() / clean.abs().mean()) == pytest.approx(0.5, rel=0.15)

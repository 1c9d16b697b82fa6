"""One suite over all models: shapes, seeds, batches, moments, missing entries, refusals."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import pytest
import torch

import marquis as mq
from helpers.autoencoder_models import (
    BERNOULLI,
    CASES,
    EXACT,
    LATENT,
    MODELS,
    SHAPE,
    TRAINED,
    data,
    generator,
    make,
    networks,
)
from marquis.autoencoders import (
    Autoencoder,
    EncoderDecoder,
    EnsembleAutoencoder,
    LearntVarianceAutoencoder,
    UncertainAutoencoder,
    VariationalAutoencoder,
    fit_posthoc,
)
from marquis.autoencoders.predictions import SampledModel, SampleMoments
from marquis.errors import DataError


@pytest.fixture(params=CASES, ids="-".join)
def model(request):
    return make(*request.param)


class TestConformance:
    def test_is_one(self, model):
        assert isinstance(model, UncertainAutoencoder)

    def test_shapes(self, model):
        x = data()
        code, image, prediction = (
            model.encode(x, 4),
            model.decode(torch.zeros(5, LATENT).double(), 4),
            model.reconstruct(x, 4),
        )
        assert code.mean.shape == code.variance.shape == prediction.latent.mean.shape == (6, LATENT)
        assert image.mean.shape == image.variance.shape == image.noise_variance.shape == (5, *SHAPE)
        assert prediction.mean.shape == prediction.variance.shape == prediction.noise_variance.shape == x.shape
        assert prediction.log_prob.shape == prediction.expected_log_prob.shape == (6,)
        assert prediction.samples is None and prediction.latent.samples is None and code.noise_variance is None
        assert all(
            v.isfinite().all() and (v >= 0).all()
            for v in (prediction.variance, prediction.total_variance, prediction.std)
        )
        torch.testing.assert_close(prediction.total_variance, prediction.variance + prediction.noise_variance)

    def test_nothing_carries_a_graph(self, model):
        prediction = model.reconstruct(data(), 2, keep=True)
        assert not any(
            t.requires_grad for t in (prediction.mean, prediction.samples, prediction.log_prob, prediction.latent.mean)
        )

    def test_seed_decides(self, model):
        x = data()
        a, b = (model.reconstruct(x, 3, generator=generator(5)) for _ in range(2))
        torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=0)
        torch.testing.assert_close(a.log_prob, b.log_prob, rtol=0, atol=0)
        other = model.reconstruct(x, 3, generator=generator(6))
        assert (not torch.equal(a.mean, other.mean)) is bool(a.draws > 1 and not isinstance(model, EnsembleAutoencoder))

    def test_same_networks_for_every_batch(self, model):
        x = data()
        together = model.reconstruct(x, 3, generator=generator(5), keep=True)
        for rows in (slice(0, 1), slice(1, 6)):
            alone = model.reconstruct(x[rows], 3, generator=generator(5), keep=True)
            torch.testing.assert_close(alone.samples, together.samples[:, rows], **EXACT)
            torch.testing.assert_close(alone.latent.samples, together.latent.samples[:, rows], **EXACT)
            torch.testing.assert_close(alone.log_prob, together.log_prob[rows], **EXACT)

    def test_encode_and_decode_are_the_halves_of_reconstruct(self, model):
        x = data()
        prediction = model.reconstruct(x, 3, generator=generator(5), keep=True)
        code = model.encode(x, 3, generator=generator(5), keep=True)
        torch.testing.assert_close(code.samples, prediction.latent.samples, **EXACT)
        torch.testing.assert_close(code.mean, prediction.latent.mean, **EXACT)
        for number, z in enumerate(code.samples):
            image = model.decode(z, 3, generator=generator(5), keep=True)
            torch.testing.assert_close(image.samples[min(number, image.draws - 1)], prediction.samples[number], **EXACT)

    def test_moments_are_those_of_the_draws(self, model):
        prediction = model.reconstruct(data(), 4, generator=generator(5), keep=True)
        assert prediction.draws == len(prediction.samples)
        torch.testing.assert_close(prediction.mean, prediction.samples.mean(0), **EXACT)
        expected = prediction.samples.var(0) if prediction.draws > 1 else torch.zeros_like(prediction.mean)
        torch.testing.assert_close(prediction.variance, expected, **EXACT)
        assert (prediction.log_prob >= prediction.expected_log_prob - 1e-12).all()

    def test_variance_identity(self, model):
        """Mean error over samples minus error of the mean is the biased variance (docs/method/autoencoders.md)."""
        x = data()
        prediction = model.reconstruct(x, 5, generator=generator(5), keep=True)
        of_draws = (prediction.samples - x).square().flatten(2).sum(2).mean(0)
        of_mean = (prediction.mean - x).square().flatten(1).sum(1)
        biased = prediction.variance.flatten(1).sum(1) * (prediction.draws - 1) / prediction.draws
        torch.testing.assert_close(of_draws - of_mean, biased, rtol=1e-12, atol=1e-12)

    def test_answers_leave_the_model_as_it_was(self, model):
        model.train()
        before = copy.deepcopy({k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)})
        flags = [m.training for m in model.modules()]
        model.reconstruct(data(), 2)
        assert flags == [m.training for m in model.modules()]
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items() if k in before)

    def test_bad_input(self, model):
        with pytest.raises(DataError, match="samples is 0"):
            model.reconstruct(data(), 0)
        with pytest.raises(DataError, match=r"floating-point data, got torch.uint8.*/ 255"):
            model.encode(torch.zeros(2, *SHAPE, dtype=torch.uint8))
        with pytest.raises(DataError, match=r"float32, the network torch\.float64"):
            model.encode(torch.zeros(2, *SHAPE))
        with pytest.raises(DataError, match="batch comes first"):
            model.reconstruct(data()[:0])
        with pytest.raises(DataError, match="codes contain NaN"):
            model.decode(torch.full((1, LATENT), math.nan, dtype=torch.float64))
        hole = data()
        hole[0, 0, 0, 0] = math.nan
        with pytest.raises(DataError, match=r"NaN or infinity \(1 of 96 values\).*missing=True"):
            model.reconstruct(hole)


@pytest.mark.parametrize("name", BERNOULLI)
def test_bernoulli_speaks_of_probabilities(name):
    model = make(name, "bernoulli")
    prediction = model.reconstruct(data(), 3, generator=generator(), keep=True)
    assert ((prediction.samples > 0) & (prediction.samples < 1)).all()
    shares = (prediction.samples * (1 - prediction.samples)).mean(0)
    torch.testing.assert_close(prediction.noise_variance, shares, **EXACT)
    p, x = prediction.samples, data()
    each = (x * p.log() + (1 - x) * (1 - p).log()).flatten(2).sum(2)
    torch.testing.assert_close(prediction.expected_log_prob, each.mean(0), **EXACT)
    torch.testing.assert_close(prediction.log_prob, torch.logsumexp(each, 0) - math.log(prediction.draws), **EXACT)
    with pytest.raises(DataError, match="from 0 to 1"):
        model.reconstruct(3 * data())


def test_gaussian_log_prob_by_hand():
    model, x = make("dropout"), data()
    prediction = model.reconstruct(x, 4, generator=generator(), keep=True)
    each = -0.5 * (prediction.samples - x).square().flatten(2).sum(2) - 8 * math.log(2 * math.pi)
    torch.testing.assert_close(prediction.expected_log_prob, each.mean(0), **EXACT)
    torch.testing.assert_close(prediction.log_prob, torch.logsumexp(each, 0) - math.log(4), **EXACT)


class TestMoments:
    def test_against_direct_formulas(self):
        values = torch.randn(9, 3, 2, generator=generator(), dtype=torch.float64) + 1e6  # where squares would cancel
        moments = SampleMoments(keep=True)
        for value in values:
            moments.add(value)
        estimate = moments.estimate()
        torch.testing.assert_close(estimate.mean, values.mean(0), rtol=1e-15, atol=0)
        torch.testing.assert_close(estimate.variance, values.var(0), rtol=1e-8, atol=0)
        torch.testing.assert_close(estimate.samples, values, rtol=0, atol=0)

    def test_memory_does_not_grow_with_the_samples(self):
        """Every code and image that a draw makes is watched; only a few may be alive at any time."""
        alive: weakref.WeakSet = weakref.WeakSet()
        most = 0

        def watch(t):
            nonlocal most
            alive.add(t)
            most = max(most, len(alive))
            return t

        class Watched(Autoencoder):
            def sampled_models(self, samples, generator=None):
                for _ in range(samples):
                    yield SampledModel(lambda x: watch(self.encoder(x)), lambda z: self.output(watch(self.decoder(z))))

        gc.collect()
        model, x = Watched(*networks()), data()
        model.reconstruct(x, 3)
        few, most = most, 0
        prediction = model.reconstruct(x, 60)
        assert prediction.draws == 60
        assert most == few <= 4
        model.reconstruct(x, 60, keep=True)
        assert most >= 60  # the watch sees what is kept


class TestMissing:
    @pytest.mark.parametrize(("name", "likelihood"), [case for case in CASES if case[0] in TRAINED])
    def test_loss_is_that_of_the_observed_entries(self, name, likelihood):
        """The likelihood of all entries is that of the observed plus that of the others; all else counts once."""
        model, x = make(name, likelihood, missing=True), data()
        seen = torch.rand(x.shape, generator=generator(2)) < 0.7

        def loss(x, mask):
            if hasattr(model, "noise"):
                model.noise.count.zero_()
            return model.loss(x, mask).detach()

        torch.testing.assert_close(loss(x, torch.ones_like(x)), loss(x, None), **EXACT)
        parts = loss(x, seen) + loss(x, ~seen) - loss(x, torch.zeros_like(x))  # what is no likelihood is in both
        torch.testing.assert_close(parts, loss(x, None), **EXACT)
        assert abs(loss(x, seen) - loss(x, None)) > 0.1

    @pytest.mark.parametrize("name", list(MODELS))
    def test_holes_in_the_data(self, name):
        model, x = make(name, missing=True), data()
        hole = x.clone()
        hole[0, 0, 0, :2] = math.nan
        zero = x.clone()
        zero[0, 0, 0, :2] = 0.0
        prediction = model.reconstruct(hole, 3, generator=generator(), keep=True)
        full = model.reconstruct(zero, 3, generator=generator(), keep=True)
        torch.testing.assert_close(prediction.samples, full.samples, **EXACT)  # the encoder saw zeros
        torch.testing.assert_close(prediction.log_prob[1:], full.log_prob[1:], **EXACT)
        noise = full.noise_variance[0, 0, 0, :2]
        if prediction.draws == 1 or not isinstance(model, (LearntVarianceAutoencoder, VariationalAutoencoder)):
            away = full.samples[:, 0, 0, 0, :2].square()
            share = (-0.5 * (away / noise + (2 * math.pi * noise).log())).sum(1).mean(0)
            torch.testing.assert_close(full.expected_log_prob[0] - prediction.expected_log_prob[0], share, **EXACT)
        with pytest.raises(DataError, match="infinity"):
            model.reconstruct(torch.full((1, *SHAPE), math.inf, dtype=torch.float64))

    def test_masked_curvature(self):
        """`fit_posthoc` with holes is `Laplace` with a mask."""
        x = data(8)
        hole = torch.rand(x.shape, generator=generator(2)) < 0.3
        trained = Autoencoder(*networks(), missing=True)
        fitted = fit_posthoc(trained, [x.masked_fill(hole, math.nan)], estimator="exact", progress=False, tune=False)
        filled = x.masked_fill(hole, 0.0)
        network = EncoderDecoder(*networks()).eval()
        by_hand = mq.Laplace(network, "gaussian", "diagonal", "exact")
        by_hand.fit([(filled, filled, ~hole)], mask_of=lambda batch: batch[2], progress=False)
        torch.testing.assert_close(fitted.laplace.curvature.diagonal(), by_hand.curvature.diagonal(), **EXACT)
        assert fitted.laplace.statistics.observed == int((~hole).sum())


def test_public_names_are_described():
    for name in mq.autoencoders.__all__:
        assert getattr(mq.autoencoders, name).__doc__


def test_deprecated_names_still_work():
    model = Autoencoder(*networks())
    with pytest.warns(DeprecationWarning, match="sampled_models"):
        assert len(list(model.draws(1))) == 1
    with pytest.warns(DeprecationWarning, match="model_at"):
        assert torch.equal(model.draw_at({}).encode(data()), model.encoder(data()))

"""Posteriors over trained autoencoders: any structure, labels that are the inputs, prior and noise by the evidence."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import marquis as mq
from helpers.autoencoder_models import EXACT, data, generator, make, networks, posthoc
from marquis.autoencoders import Autoencoder, EncoderDecoder, fit_posthoc, from_posterior
from marquis.errors import ModelMismatchError, UnsupportedOperationError
from marquis.likelihoods import Gaussian


class TestPosthoc:
    @pytest.mark.parametrize("structure", ["diagonal", "kronecker", "block", "full", "lowrank"])
    def test_any_structure(self, structure):
        fitted = posthoc(structure=structure, estimator="exact")
        assert fitted.reconstruct(data(), 3).variance.any()

    def test_draws_are_the_network_at_posterior_samples(self):
        fitted, x = make("posthoc"), data()
        weights = fitted.posterior.sample(1, generator(4))
        network = EncoderDecoder(*networks())
        expected = torch.func.functional_call(network, {k: v[0] for k, v in weights.items()}, (x,))
        prediction = fitted.reconstruct(x, 1, generator=generator(4))
        torch.testing.assert_close(prediction.mean, expected.detach(), **EXACT)

    def test_labels_are_the_inputs(self):
        x = data(20, seed=1)
        network = EncoderDecoder(*networks()).eval()
        by_hand = mq.Laplace(network, "gaussian", "diagonal", "exact").fit([(x, x)], progress=False)
        trained = Autoencoder(*networks())
        loader = DataLoader(TensorDataset(x, torch.zeros(20)), 7)  # labels of other things are ignored
        fitted = fit_posthoc(trained, loader, estimator="exact", progress=False, tune=False)
        torch.testing.assert_close(
            fitted.posterior.precision.diagonal(), by_hand.posterior.precision.diagonal(), **EXACT
        )
        assert float(fitted.laplace.statistics.sse) == pytest.approx(float(by_hand.statistics.sse), rel=1e-12)

    def test_evidence_tunes_prior_and_noise(self):
        plain, tuned = posthoc(tune=False, estimator="exact"), posthoc(estimator="exact")
        assert plain.likelihood.noise_precision == 1.0
        # MacKay: noise precision times squared residuals is the number of observations the weights do not explain.
        result, free = tuned.laplace.statistics, 20 * 16 - float(tuned.laplace.effective_parameters())
        assert float(tuned.likelihood.noise_precision * result.sse) == pytest.approx(free, rel=1e-2)
        # And prior precision times the squared weights is the number that they do.
        (precision,) = set(torch.cat([v.flatten() for v in tuned.laplace.prior.diagonal().values()]).tolist())
        squares = float(tuned.posterior.vector.square().sum())
        assert precision * squares == pytest.approx(20 * 16 - free, rel=1e-2)
        assert tuned.laplace.log_evidence() > plain.laplace.log_evidence() + 10
        assert tuned.reconstruct(data()).noise_variance[0, 0, 0, 0] == 1 / tuned.likelihood.noise_precision

    def test_some_of_the_weights(self):
        x, network = data(), EncoderDecoder(*networks()).eval()
        laplace = mq.Laplace(network, "gaussian", "diagonal", parameters="decoder.*").fit([(x, x)], progress=False)
        fitted = from_posterior(network.encoder, network.decoder, laplace)
        assert not fitted.encode(x, 3).variance.any()
        assert fitted.reconstruct(x, 3).variance.any()

    def test_a_value_of_its_own(self):
        network, x = EncoderDecoder(*networks()).eval(), data()
        laplace = mq.Laplace(network, "gaussian", "diagonal").fit([(x, x)], progress=False)
        fitted = from_posterior(network.encoder, network.decoder, laplace.posterior, Gaussian(50.0))
        before = fitted(x)
        nn.init.zeros_(network.decoder[0].weight)
        torch.testing.assert_close(fitted(x), before, rtol=0, atol=0)
        assert fitted.likelihood.noise_precision == 50.0

    def test_the_mean_is_that_of_the_posterior(self):
        """Not that of the networks, which may have been trained on since."""
        network, x = EncoderDecoder(*networks()).eval(), data()
        laplace = mq.Laplace(network, "gaussian", "diagonal").fit([(x, x)], progress=False)
        fitted = from_posterior(*networks(seed=5), laplace)
        torch.testing.assert_close(fitted(x), network(x), rtol=0, atol=0)

    def test_saved_and_loaded(self, tmp_path):
        fitted = make("posthoc")
        fitted.laplace.save(tmp_path / "posterior.safetensors")
        network = EncoderDecoder(*networks()).eval()
        loaded = from_posterior(*networks(), mq.load(tmp_path / "posterior.safetensors", network))
        a, b = (m.reconstruct(data(), 3, generator=generator()) for m in (fitted, loaded))
        torch.testing.assert_close(a.mean, b.mean, **EXACT)
        torch.testing.assert_close(a.log_prob, b.log_prob, **EXACT)

    def test_refusals(self):
        x, network = data(), nn.Sequential(*networks()).eval()
        laplace = mq.Laplace(network, "gaussian", "diagonal").fit([(x, x)], progress=False)
        with pytest.raises(ModelMismatchError, match=r"'0.1.weight'.*EncoderDecoder.*'encoder.1.weight'"):
            from_posterior(*networks(), laplace)
        with pytest.raises(UnsupportedOperationError, match="VariationalAutoencoder may be more"):
            fit_posthoc(make("vae"), [x])
        with pytest.raises(UnsupportedOperationError, match="trained before"):
            make("posthoc").loss(x, None)

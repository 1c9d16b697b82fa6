"""A posterior read through the network's tangent: against dense Jacobians, closed forms and networks drawn."""

from __future__ import annotations

import pytest
import torch
from autoencoder_models import EXACT, data, generator, make, networks, posthoc
from torch import nn
from torch.func import functional_call, jacrev

import marquis as mq
from marquis.autoencoders import EncoderDecoder, LaplacianAutoencoder, ModelSpec, from_posterior, linearised, save
from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError


def trained(**options):
    """A Laplacian autoencoder with some curvature, by a few steps of its learner alone."""
    lae = LaplacianAutoencoder(*networks(), num_data=20, generator=generator(), **options)
    optimiser = torch.optim.Adam(lae.parameters(), 1e-3)
    for step in range(5):
        lae.loss(data(10, seed=step), None).backward()
        optimiser.step()
    return lae


def tangent_by_hand(model, function, seed):
    """`f + J δ` with the dense Jacobian, for the deviation that the seed gives."""
    mean = {name: value.clone() for name, value in model.posterior.mean.items()}
    deviation = model.posterior.deviations_from(model.posterior.noise(1, generator(seed)))
    jacobian = jacrev(function)(mean)
    moved = [
        torch.einsum("op,p->o", j.reshape(-1, mean[k].numel()), deviation[k].flatten()) for k, j in jacobian.items()
    ]
    f = function(mean)
    return f + sum(moved).reshape(f.shape)


def part(weights, name):
    return {key.removeprefix(name): value for key, value in weights.items() if key.startswith(name)}


class TestAgainstDenseJacobians:
    @pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
    def test_code_decoding_and_reconstruction(self, structure):
        model, x, z = linearised(trained(structure=structure), 1.0), data(3), torch.randn(3, 2, dtype=torch.float64)
        encoder, decoder = model.encoder, model.decoder

        def code(w):
            return functional_call(encoder, part(w, "encoder."), (x,))

        def image(w):
            return functional_call(decoder, part(w, "decoder."), (z,))

        def through(w):
            return functional_call(EncoderDecoder(encoder, decoder), w, (x,))

        whole = model.reconstruct(x, 1, generator=generator(3))
        pairs = [
            (model.encode(x, 1, generator=generator(3)).mean, code),
            (model.decode(z, 1, generator=generator(3)).mean, image),
            (whole.mean, through),
            (whole.latent.mean, code),
        ]
        for said, function in pairs:
            expected = tangent_by_hand(model, function, 3)
            torch.testing.assert_close(said, expected, **EXACT)
            assert not torch.allclose(said, function(model.posterior.mean), rtol=1e-3)  # and it did move

    def test_variance_is_that_of_the_closed_form(self):
        fitted, x = posthoc(structure="full", estimator="exact"), data(4)
        closed = fitted.laplace.predict(x)
        said = linearised(fitted).reconstruct(x, 4000, generator=generator(1))
        ratio = said.variance / closed.variance.reshape(x.shape)
        assert float(ratio.min()) > 0.85 and float(ratio.max()) < 1.15  # 5 standard errors of a variance: 0.11
        away = (said.mean - fitted(x)) / (said.variance / 4000).sqrt()
        assert float(away.detach().abs().max()) < 5


class TestAgainstNetworksDrawn:
    def test_the_same_where_the_posterior_is_narrow_and_only_there(self):
        lae, x = trained(), data(4)
        gaps = []
        for temperature in (1e-6, 1e-4, 1.0):
            drawn = from_posterior(lae.encoder, lae.decoder, lae.posterior(temperature), lae.likelihood)
            straight = linearised(lae, temperature)
            a, b = (m.reconstruct(x, 5, generator=generator(2)) for m in (drawn, straight))
            gaps.append(float((a.mean - b.mean).norm() / a.variance.sum().sqrt()))
        assert gaps[0] < 2e-3 and gaps[1] < 2e-2  # second order: the gap over the deviation goes as √T
        assert gaps[0] < 0.2 * gaps[1] and gaps[2] > 0.1

    def test_variance_is_proportional_to_the_temperature(self):
        lae, x = trained(), data(4)
        one, nine = (linearised(lae, t).reconstruct(x, 6, generator=generator(2)) for t in (1.0, 9.0))
        torch.testing.assert_close(nine.variance, 9 * one.variance, **EXACT)
        torch.testing.assert_close(nine.latent.variance, 9 * one.latent.variance, **EXACT)

    def test_the_temperature_of_training_by_default(self):
        lae, x = trained(temperature=0.3), data(4)
        a, b = (m.reconstruct(x, 3, generator=generator(2)) for m in (linearised(lae), linearised(lae, 0.3)))
        torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=0)


def test_draws_of_all_batches_are_the_same():
    model, x = linearised(trained()), data(6)
    whole = model.reconstruct(x, 3, generator=generator(5), keep=True)
    some = model.reconstruct(x[2:4], 3, generator=generator(5), keep=True)
    torch.testing.assert_close(some.samples, whole.samples[:, 2:4], **EXACT)


def test_some_of_the_weights():
    x, network = data(), EncoderDecoder(*networks()).eval()
    laplace = mq.Laplace(network, "gaussian", "diagonal", parameters="decoder.*").fit([(x, x)], progress=False)
    said = linearised(from_posterior(network.encoder, network.decoder, laplace)).reconstruct(x, 3)
    assert not said.latent.variance.any() and said.variance.any()


def test_bernoulli_and_holes():
    likely = linearised(make("posthoc", "bernoulli")).reconstruct(data(), 5)
    assert float(likely.mean.min()) > 0 and float(likely.mean.max()) < 1 and likely.variance.any()
    holes = data()
    holes[0, 0, 0, :2] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        linearised(trained()).reconstruct(holes, 2)
    assert linearised(trained(missing=True)).reconstruct(holes, 2).log_prob.isfinite().all()


def test_a_value_of_its_own():
    lae, x = trained(), data()
    model = linearised(lae)
    before = model.reconstruct(x, 2, generator=generator())
    nn.init.zeros_(lae.decoder[0].weight)
    torch.testing.assert_close(model.reconstruct(x, 2, generator=generator()).mean, before.mean, rtol=0, atol=0)


class NoTangent(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Doubled(nn.Module):
    def forward(self, x):
        return NoTangent.apply(x)


def test_refusals(tmp_path):
    with pytest.raises(UnsupportedOperationError, match="VariationalAutoencoder has no posterior"):
        linearised(make("vae"))
    with pytest.raises(DataError, match="fit_posthoc"):
        linearised(make("posthoc"), 0.5)
    with pytest.raises(DataError, match="temperature"):
        linearised(trained(), -1.0)
    with pytest.raises(DataError, match="not trained yet"):
        linearised(LaplacianAutoencoder(*networks()))
    with pytest.raises(ModelMismatchError, match="LinearisedAutoencoder"):
        save(tmp_path / "model.safetensors", linearised(make("posthoc")), ModelSpec("lae-posthoc", (1, 4, 4), 2))
    lae = trained()
    odd = from_posterior(lae.encoder, nn.Sequential(*lae.decoder, Doubled()), lae.posterior())
    assert odd.reconstruct(data(), 2).variance.any()
    with pytest.raises(UnsupportedOperationError, match=r"forward-mode derivative.*by networks drawn"):
        linearised(odd).reconstruct(data(), 2)

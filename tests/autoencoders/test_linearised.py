"""A posterior read through the network's tangent: against dense Jacobians, closed forms and networks drawn."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import marquis as mq
from helpers.autoencoder_models import EXACT, NoTangent, data, generator, make, networks, posthoc
from marquis.autoencoders import (
    Autoencoder,
    EncoderDecoder,
    LaplacianAutoencoder,
    ModelSpec,
    fit_posthoc,
    from_posterior,
    linearised,
    save,
)
from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.posterior import Posterior
from marquis.structures import Diagonal, Layout
from marquis.tasks import imputation
from marquis.tasks.batches import SameSeed
from marquis.tasks.ood import scores


def trained(**options):
    """A Laplacian autoencoder with some curvature, by a few steps of its learner alone."""
    lae = LaplacianAutoencoder(*networks(), num_data=20, generator=generator(), **options)
    optimiser = torch.optim.Adam(lae.parameters(), 1e-3)
    for step in range(5):
        lae.loss(data(10, seed=step), None).backward()
        optimiser.step()
    return lae


class Parts(EncoderDecoder):
    """One part of the network, or both, as a function of all its weights."""

    def forward(self, x, part="both"):
        return {"encoder": self.encoder, "decoder": self.decoder, "both": super().forward}[part](x)


def tangent_by_hand(model, x, part, seed):
    """`f + J δ` with the dense Jacobian, for the deviation that the seed gives; and `f`."""
    whole = copy.deepcopy(Parts(model.encoder, model.decoder)).eval()

    def function(weights):
        return functional_call(whole, weights, (x, part))

    mean = {name: value.clone() for name, value in model.posterior.mean.items()}
    deviation = model.posterior.deviations_from(model.posterior.noise(1, generator(seed)))
    jacobian = jacrev(function)(mean)
    moved = [
        torch.einsum("op,p->o", j.reshape(-1, mean[k].numel()), deviation[k].flatten()) for k, j in jacobian.items()
    ]
    f = function(mean)
    return f + sum(moved).reshape(f.shape), f


class Transposed(nn.Module):
    """A decoder that has its weights in common with the encoder."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(weight.new_zeros(16))

    def forward(self, z):
        return (z.tanh() @ self.weight + self.bias).unflatten(1, (1, 4, 4))


def over_all_weights(encoder, decoder):
    """An autoencoder with a posterior of equal width over every weight that it has."""
    mean = {name: value.detach() for name, value in EncoderDecoder(encoder, decoder).named_parameters()}
    layout = Layout.of(mean)
    precision = Diagonal(layout, torch.full((layout.total,), 20.0, dtype=torch.float64))
    return from_posterior(encoder, decoder, Posterior(layout, mean, precision))


def check_against_dense_jacobians(model, x, still=()):
    """Code, decoding and reconstruction; all of them move except those named, around a mean that is known."""
    z = torch.randn(len(x), 2, dtype=torch.float64, generator=generator(7))
    whole = model.reconstruct(x, 1, generator=generator(3), keep=True)
    answers = [
        (model.encode(x, 1, generator=generator(3), keep=True), x, "encoder"),
        (whole.latent, x, "encoder"),
        (model.decode(z, 1, generator=generator(3), keep=True), z, "decoder"),
        (whole, x, "both"),
    ]
    for prediction, passed, part in answers:
        expected, unmoved = tangent_by_hand(model, passed, part, 3)
        torch.testing.assert_close(prediction.samples[0], expected, **EXACT)
        assert torch.allclose(prediction.samples[0], unmoved, rtol=1e-3) == (part in still)
        assert prediction.mean_known
        torch.testing.assert_close(prediction.mean, unmoved, **EXACT)
        torch.testing.assert_close(prediction.variance, (expected - unmoved).square(), **EXACT)


class TestAgainstDenseJacobians:
    @pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
    def test_code_decoding_and_reconstruction(self, structure):
        check_against_dense_jacobians(linearised(trained(structure=structure), 1.0), data(3))

    @pytest.mark.parametrize("parameters", [mq.Subnetwork(40, by="random"), "decoder.*"])
    def test_some_of_the_weights(self, parameters):
        x, network = data(3), EncoderDecoder(*networks()).eval()
        laplace = mq.Laplace(network, "gaussian", "diagonal", parameters=parameters)
        laplace.fit([(x, x)], progress=False, generator=generator())
        model = linearised(from_posterior(network.encoder, network.decoder, laplace))
        check_against_dense_jacobians(model, x, ("encoder",) if parameters == "decoder.*" else ())

    def test_pooling_upsampling_and_a_network_left_in_training_mode(self):
        encoder = nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(12, 2)),
        )
        decoder = nn.Sequential(
            *(nn.Linear(2, 12), nn.Unflatten(1, (3, 2, 2)), nn.Dropout(0.5), nn.Upsample(scale_factor=2)),
            nn.Conv2d(3, 1, 3, padding=1),
        )
        EncoderDecoder(encoder, decoder)(data().float())  # so that there are statistics to speak of
        model = linearised(over_all_weights(encoder.double(), decoder.double())).train()
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        check_against_dense_jacobians(model, data(3))
        assert model.encoder[1].training
        assert before and all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())

    def test_a_module_that_stands_twice_in_a_network(self):
        torch.manual_seed(0)
        twice = nn.Linear(5, 5)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), twice, nn.Tanh(), twice, nn.Linear(5, 2)).double()
        decoder = nn.Sequential(nn.Linear(2, 16), nn.Unflatten(1, (1, 4, 4))).double()
        drawn = over_all_weights(encoder, decoder)
        model, x = linearised(drawn), data(3)
        for _ in range(2):  # torch would leave it changed after the first time
            check_against_dense_jacobians(model, x)
            sampled = drawn.posterior.sample(1, generator(3))
            by_hand = copy.deepcopy(EncoderDecoder(drawn.encoder, drawn.decoder))
            for name, value in sampled.items():
                by_hand.get_parameter(name).data = value[0]
            torch.testing.assert_close(
                drawn.reconstruct(x, 1, generator=generator(3)).mean, by_hand(x).detach(), **EXACT
            )

    def test_a_weight_that_encoder_and_decoder_share(self):
        shared = nn.Linear(16, 2).double()
        drawn = over_all_weights(nn.Sequential(nn.Flatten(), shared), Transposed(shared.weight))
        check_against_dense_jacobians(linearised(drawn), data(3))
        weights = {name: value[0] for name, value in drawn.posterior.sample(1, generator(3)).items()}
        for part, x, prediction in (
            ("both", data(3), drawn.reconstruct(data(3), 1, generator=generator(3))),
            ("decoder", torch.ones(1, 2).double(), drawn.decode(torch.ones(1, 2).double(), 1, generator=generator(3))),
        ):
            expected = functional_call(Parts(drawn.encoder, drawn.decoder), weights, (x, part))
            torch.testing.assert_close(prediction.mean, expected, **EXACT)

    def test_variance_is_that_of_the_closed_form(self):
        fitted, x = posthoc(structure="full", estimator="exact"), data(4)
        closed = fitted.laplace.predict(x)
        prediction = linearised(fitted).reconstruct(x, 4000, generator=generator(1))
        ratio = prediction.variance / closed.variance.reshape(x.shape)
        assert float(ratio.min()) > 0.85 and float(ratio.max()) < 1.15  # 5 standard errors of a variance: 0.11
        away = (prediction.mean - fitted(x)) / (prediction.variance / 4000).sqrt()
        assert float(away.detach().abs().max()) < 5


class TestAgainstNetworksDrawn:
    def test_the_same_where_the_posterior_is_narrow_and_only_there(self):
        lae, x = trained(), data(4)
        gaps = []
        for temperature in (1e-6, 1e-4, 1.0):
            drawn = from_posterior(lae.encoder, lae.decoder, lae.posterior(temperature), lae.likelihood)
            straight = linearised(lae, temperature)
            a, b = (m.reconstruct(x, 5, generator=generator(2), keep=True) for m in (drawn, straight))
            gaps.append(float((a.samples.mean(0) - b.samples.mean(0)).norm() / a.variance.sum().sqrt()))
        assert gaps[0] < 2e-3 and gaps[1] < 2e-2  # second order: the gap over the deviation goes as √T
        assert gaps[0] < 0.2 * gaps[1] and gaps[2] > 0.1

    def test_variance_is_proportional_to_the_temperature(self):
        lae, x = trained(), data(4)
        one, nine = (linearised(lae, t).reconstruct(x, 6, generator=generator(2)) for t in (1.0, 9.0))
        torch.testing.assert_close(nine.variance, 9 * one.variance, **EXACT)
        torch.testing.assert_close(nine.latent.variance, 9 * one.latent.variance, **EXACT)

    def test_the_temperature_of_training_by_default(self):
        lae, x = trained(posterior_temperature=0.3), data(4)
        a, b = (m.reconstruct(x, 3, generator=generator(2)) for m in (linearised(lae), linearised(lae, 0.3)))
        torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=0)


def test_draws_of_all_batches_are_the_same():
    model, x = linearised(trained()), data(6)
    whole = model.reconstruct(x, 3, generator=generator(5), keep=True)
    some = model.reconstruct(x[2:4], 3, generator=generator(5), keep=True)
    torch.testing.assert_close(some.samples, whole.samples[:, 2:4], **EXACT)


def test_means_are_exact_with_few_draws_and_variances_are_around_them():
    model, x = linearised(trained(), 1.0), data(4)
    f = EncoderDecoder(model.encoder, model.decoder)(x).detach()
    few = model.reconstruct(x, 3, generator=generator(1), keep=True)
    torch.testing.assert_close(few.mean, f, **EXACT)
    torch.testing.assert_close(few.variance, (few.samples - f).square().mean(0), **EXACT)
    assert not torch.allclose(few.samples.mean(0), f, rtol=1e-2)  # three draws alone would not know
    hidden = imputation.top_half(x.shape[1:])
    filled = imputation.impute(model, x, hidden, samples=2, averaged=3, fill=0.0, generator=generator(2))
    between, within = filled.samples.var(0), filled.within_variance  # versions are exact means: nothing counts twice
    expected = torch.where(hidden, between + within + filled.noise_variance, 0)
    torch.testing.assert_close(filled.total_variance, expected, **EXACT)
    assert bool((within > 0).any()) and not linearised(make("posthoc", "bernoulli")).reconstruct(data(), 3).mean_known


def test_the_error_of_few_draws_is_that_of_the_mean_and_the_spread_around_it():
    model, x = linearised(trained(), 1.0), data(4)
    message = scores(model, x, 2, generator=generator(4), progress=False)["error"]
    same = SameSeed(model, generator(4)).generator()
    kept = model.reconstruct(x, 2, generator=same, keep=True)
    f = EncoderDecoder(model.encoder, model.decoder)(x).detach()
    expected = ((f - x).square() + (kept.samples - f).square().mean(0)).flatten(1).sum(1)
    torch.testing.assert_close(message, expected, **EXACT)


def test_an_encoder_that_sees_the_mask():
    x = data(6).flatten(1)
    x[0, 3] = x[2, 5] = torch.nan
    encoder, decoder = nn.Linear(32, 2).double(), nn.Linear(2, 16).double()
    drawn = fit_posthoc(Autoencoder(encoder, decoder, missing="mask"), [x], progress=False)
    model = linearised(drawn)
    assert model.laplace is drawn.laplace is not None
    prediction = model.encode(x, 2, generator=generator(1))
    mean = encoder(torch.cat([x.nan_to_num(0.0), (~x.isnan()).double()], 1)).detach()
    torch.testing.assert_close(prediction.mean, mean, **EXACT)
    assert prediction.variance.any()


def test_attention_has_a_tangent():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.Sequential(nn.Flatten(0, 1), layer, nn.Flatten(), nn.Linear(16, 2))
    decoder = nn.Sequential(nn.Linear(2, 16), nn.Unflatten(1, (1, 4, 4)))
    check_against_dense_jacobians(linearised(over_all_weights(encoder.double(), decoder.double())), data(3))


def test_bernoulli_and_holes():
    likely = linearised(make("posthoc", "bernoulli")).reconstruct(data(), 5)
    assert float(likely.mean.min()) > 0 and float(likely.mean.max()) < 1 and likely.variance.any()
    incomplete = data()
    incomplete[0, 0, 0, :2] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        linearised(trained()).reconstruct(incomplete, 2)
    assert linearised(trained(missing=True)).reconstruct(incomplete, 2).log_prob.isfinite().all()


def test_a_value_of_its_own():
    lae, x = trained(), data()
    model = linearised(lae)
    before = model.reconstruct(x, 2, generator=generator())
    nn.init.zeros_(lae.decoder[0].weight)
    torch.testing.assert_close(model.reconstruct(x, 2, generator=generator()).mean, before.mean, rtol=0, atol=0)


@pytest.mark.parametrize("linear", [False, True])
def test_in_another_precision(linear):
    drawn = from_posterior(*networks(), trained().posterior())
    model, x = linearised(drawn) if linear else drawn, data()
    exact = model.reconstruct(x, 3, generator=generator())
    rounded = model.float().reconstruct(x.float(), 3, generator=generator())
    assert rounded.mean.dtype == torch.float32
    torch.testing.assert_close(rounded.mean.double(), exact.mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(rounded.variance.double(), exact.variance, rtol=1e-3, atol=1e-4)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


def test_a_network_that_writes_to_its_buffers():
    lae = trained()
    plain, counting = (
        linearised(from_posterior(lae.encoder, nn.Sequential(*lae.decoder, *more), lae.posterior()))
        for more in ((), (Counting(),))
    )
    a, b = (model.reconstruct(data(), 2, generator=generator()) for model in (plain, counting))
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=0)
    assert a.variance.any() and counting.decoder[-1].calls == 0


class Doubled(nn.Module):
    def forward(self, x):
        return NoTangent.apply(x)


class ThroughNumpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(2 * x.detach().numpy())


def test_refusals(tmp_path):
    for kind, name in (("vae", "Variational"), ("mean-field", "MeanField"), ("ensemble", "Ensemble")):
        with pytest.raises(UnsupportedOperationError, match=f"{name}Autoencoder has no Laplace posterior"):
            linearised(make(kind))
    with pytest.raises(DataError, match="fit_posthoc"):
        linearised(make("posthoc"), 0.5)
    with pytest.raises(DataError, match="temperature"):
        linearised(trained(), -1.0)
    with pytest.raises(DataError, match="not trained yet"):
        linearised(LaplacianAutoencoder(*networks()))
    with pytest.raises(ModelMismatchError, match="LinearisedAutoencoder"):
        save(tmp_path / "model.safetensors", linearised(make("posthoc")), ModelSpec("lae-posthoc", (1, 4, 4), 2))
    lae = trained()
    for layer in (Doubled(), ThroughNumpy()):
        odd = from_posterior(lae.encoder, nn.Sequential(*lae.decoder, layer), lae.posterior())
        assert odd.reconstruct(data(), 2).variance.any()
        with pytest.raises(UnsupportedOperationError, match=r"forward-mode derivative.*sampled weights"):
            linearised(odd).reconstruct(data(), 2)
    with pytest.raises(DataError, match="shapes cannot be multiplied"):  # and not as a missing derivative
        linearised(lae).decode(torch.ones(1, 5).double(), 1)

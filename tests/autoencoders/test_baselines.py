"""The baselines against what is known about them exactly (docs/method/autoencoders.md#checks)."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from marquis.autoencoders import (
    Autoencoder,
    DropoutAutoencoder,
    EncoderDecoder,
    EnsembleAutoencoder,
    LearntVarianceAutoencoder,
    MeanFieldAutoencoder,
    UnitDropout,
    VariationalAutoencoder,
    for_data,
    variational,
)
from marquis.autoencoders.dropout import with_dropout
from marquis.autoencoders.learnt_variance import soft_clip
from marquis.autoencoders.network import reinitialised
from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Gaussian

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def networks(d=6, latent=2, seed=0):
    encoder, decoder = for_data((d,), latent, 0.1, seed=seed)
    return encoder.double(), decoder.double()


def flat(network):
    """Kinds of the layers of nested sequential networks, in order."""
    return [type(module).__name__ for module in network.modules() if not isinstance(module, nn.Sequential)]


class Constant(nn.Module):
    """The same outputs for whatever input; a decoder that cannot learn anything else."""

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(value.clone())

    def forward(self, z):
        return self.value.expand(len(z), *self.value.shape)


def linear(weight, bias):
    layer = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


class TestVariational:
    D, K, NOISE = 5, 2, 0.3

    def problem(self, shift=0.0, spread=1.0):
        """A linear VAE with orthogonal loadings, so that the posterior of the code is a product; and log p(x)."""
        loadings = torch.linalg.qr(randn(self.D, self.K))[0] * torch.tensor([1.7, 0.6], dtype=torch.float64)
        offset, variance = randn(self.D, seed=1), self.NOISE**2
        inner = (loadings.T @ loadings).diagonal() + variance
        project = loadings.T / inner.unsqueeze(1)
        encoder = linear(project, -project @ offset + shift)
        log_sigma = Constant((0.5 * (variance / inner).log()) + math.log(spread))
        decoder = linear(loadings, offset)
        model = VariationalAutoencoder(encoder, decoder, log_sigma, likelihood=Gaussian(1 / variance))
        x = randn(7, self.D, seed=2)
        covariance = loadings @ loadings.T + variance * torch.eye(self.D, dtype=torch.float64)
        exact = MultivariateNormal(offset, covariance).log_prob(x)
        posterior = Normal((x - offset) @ project.T, (variance / inner).sqrt().expand(7, self.K))
        return model, x, exact, posterior

    @pytest.fixture
    def signs(self, monkeypatch):
        """Instead of Gaussian noise, all vectors of signs: they average any quadratic exactly."""
        rows = itertools.cycle(itertools.product([-1.0, 1.0], repeat=self.K))

        def noise(shape, like, generator):
            return torch.tensor(next(rows), dtype=like.dtype).expand(shape)

        monkeypatch.setattr(variational, "normal", noise)

    def test_kl(self):
        mu, log_sigma = randn(4, 3), randn(4, 3, seed=1)
        q = Independent(Normal(mu, log_sigma.exp()), 1)
        prior = Independent(Normal(torch.zeros_like(mu), torch.ones_like(mu)), 1)
        torch.testing.assert_close(variational.kl_to_prior(mu, log_sigma), kl_divergence(q, prior), **EXACT)

    def test_bound_is_tight_at_the_exact_posterior(self, signs):
        model, x, exact, _ = self.problem()
        torch.testing.assert_close(model.elbo(x, samples=4), exact, **EXACT)

    def test_every_importance_weight_is_the_evidence_at_the_exact_posterior(self):
        model, x, exact, _ = self.problem()
        for samples in (1, 13):
            torch.testing.assert_close(model.log_marginal(x, samples), exact, **EXACT)

    def test_gap_of_the_bound_is_the_divergence_from_the_posterior(self, signs):
        model, x, exact, posterior = self.problem(shift=0.4, spread=1.3)
        q = Normal(*(part.detach() for part in (model.code(x)[0], model.code(x)[1].exp())))
        gap = kl_divergence(q, posterior).sum(1)
        assert (gap > 0.1).all()
        torch.testing.assert_close(model.elbo(x, samples=4), exact - gap, **EXACT)

    def test_bound_below_importance_samples_below_truth(self):
        model, x, exact, _ = self.problem(shift=0.1, spread=1.3)
        generator = torch.Generator().manual_seed(0)
        bound = model.elbo(x, 10_000, generator=generator)
        result = model.log_marginal(x, 10_000, generator=generator)
        assert (bound < result).all()
        torch.testing.assert_close(result, exact, rtol=0, atol=0.05)
        assert ((exact - bound) > 0.1).all()  # so the tolerance above separates the two

    def test_loss_is_the_weighted_bound_per_datum(self):
        x = randn(5, 6)
        model = VariationalAutoencoder(*networks(), kl_weight=0.0)
        model.double()
        kl = variational.kl_to_prior(*model.code(x)).mean()

        def loss(weight):
            model.noise.count.zero_()
            model.kl_weight = weight
            return model.loss(x, None)

        torch.testing.assert_close(loss(2.5) - loss(0.0), 2.5 * kl, **EXACT)
        model.noise.count.zero_()
        noise = torch.randn(5, 2, dtype=torch.float64, generator=model.noise.next(x.device))
        fit, _, _ = model.log_terms(x, None, *model.code(x), noise)
        torch.testing.assert_close(loss(1.0), kl - fit.mean(), **EXACT)

    def test_code_has_exact_moments_whatever_the_samples(self):
        model = VariationalAutoencoder(*networks()).double()
        x = randn(3, 6)
        for prediction in (model.encode(x, 5), model.reconstruct(x, 5).latent):
            torch.testing.assert_close(prediction.mean, model.code(x)[0], **EXACT)
            torch.testing.assert_close(prediction.variance, (2 * model.code(x)[1]).exp(), **EXACT)

    def test_networks_share_nothing(self):
        model = VariationalAutoencoder(*networks())
        parts = [model.encoder, model.sigma_encoder, model.decoder, model.variance_decoder]
        seen = [p.data_ptr() for part in parts for p in part.parameters()]
        assert len(set(seen)) == len(seen) == 4 * 6
        assert not torch.equal(model.encoder[0].weight, model.sigma_encoder[0].weight)

    def test_prior_samples(self):
        model = VariationalAutoencoder(*networks()).double()
        generator = torch.Generator().manual_seed(3)
        drawn, means = model.sample(4, generator), model.sample(4, generator, noise=False)
        assert drawn.shape == means.shape == (4, 6)
        torch.testing.assert_close(drawn, model.sample(4, torch.Generator().manual_seed(3)))
        fixed = VariationalAutoencoder(linear(randn(2, 6), randn(2)), Constant(randn(6)), likelihood=Gaussian(1e20))
        expected = fixed.double().decoder.value.detach().expand(2, 6)
        torch.testing.assert_close(fixed.sample(2), expected, atol=1e-8, rtol=0)
        bits = VariationalAutoencoder(*networks(), likelihood="bernoulli").double().sample(50)
        assert set(bits.unique().tolist()) <= {0.0, 1.0}

    def test_refusals(self):
        with pytest.raises(DataError, match="kl_weight is -1"):
            VariationalAutoencoder(*networks(), kl_weight=-1)
        encoder, decoder = networks()
        with pytest.raises(UnsupportedOperationError, match="no variance to learn"):
            VariationalAutoencoder(encoder, decoder, None, decoder, "bernoulli")
        with pytest.raises(UnsupportedOperationError, match="latent=K"):
            VariationalAutoencoder(Constant(randn(2)), decoder, Constant(randn(2))).sample(1)


class TestLearntVariance:
    def model(self, log_sigma):
        """Mean 0.3 for everything, the same log σ for everything."""
        model = LearntVarianceAutoencoder(
            nn.Identity(), Constant(torch.full((3,), 0.3, dtype=torch.float64)), Constant(log_sigma)
        )
        return model.double()

    def unclipped(self, log_sigma):
        """What the variance decoder has to say for this log σ after the clip at -3."""
        return -3 + torch.log(torch.expm1(log_sigma + 3))

    def test_optimum_is_the_mean_squared_residual(self):
        x = randn(50, 3)
        residuals = (x - 0.3).square().mean(0)
        model = self.model(self.unclipped(0.5 * residuals.log()))
        model.loss(x, None).backward()
        torch.testing.assert_close(model.variance_decoder.value.grad, torch.zeros(3, dtype=torch.float64), **EXACT)

    def test_optimum_of_the_published_loss_is_twice_that(self):
        x = randn(50, 3)
        twice = 2 * (x - 0.3).square().mean(0)
        start = (0.5 * twice.log()).requires_grad_()
        published = ((x - 0.3).square() * (-2 * start).exp() + start).sum(1).mean()  # no 1/2
        (gradient,) = torch.autograd.grad(published, start)
        torch.testing.assert_close(gradient, torch.zeros(3, dtype=torch.float64), **EXACT)
        model = self.model(self.unclipped(start.detach()))
        model.loss(x, None).backward()
        assert (model.variance_decoder.value.grad.abs() > 0.1).all()

    def test_loss_is_the_normalised_density(self):
        x, log_sigma = randn(4, 3), randn(3, seed=1)
        scale = soft_clip(log_sigma, -3.0).exp()
        expected = -Normal(torch.full((3,), 0.3, dtype=torch.float64), scale).log_prob(x).sum(1).mean()
        torch.testing.assert_close(self.model(log_sigma).loss(x, None), expected, **EXACT)

    def test_one_clip_in_training_and_at_test(self):
        model = self.model(torch.full((3,), -50.0, dtype=torch.float64))
        x = torch.full((2, 3), 0.3, dtype=torch.float64)
        prediction = model.reconstruct(x)
        torch.testing.assert_close(prediction.noise_variance, torch.full_like(x, math.exp(-6)), **EXACT)
        torch.testing.assert_close(-prediction.log_prob.mean(), model.train().loss(x, None), **EXACT)

    def test_second_decoder_is_another_network_of_the_same_form(self):
        encoder, decoder = networks()
        model = LearntVarianceAutoencoder(encoder, decoder)
        assert str(model.variance_decoder) == str(decoder)
        assert not torch.equal(model.variance_decoder[0].weight, decoder[0].weight)


class TestDropout:
    def test_without_dropout_there_is_no_variance(self):
        model = DropoutAutoencoder(*networks(), p=0.0)
        x = randn(3, 6)
        prediction = model.reconstruct(x, 7)
        assert prediction.draws == 7
        assert not prediction.variance.any() and not prediction.latent.variance.any()
        torch.testing.assert_close(prediction.mean, model(x), **EXACT)

    def test_linear_layer_is_right_on_average(self, monkeypatch):
        """All 2^5 thinned networks, each with its probability: the average is the network itself."""
        p, x, layer = 0.3, randn(4, 5), linear(randn(3, 5, seed=1), randn(3, seed=2))
        dropout = UnitDropout(p).eval()
        dropout.seed = 0
        total = torch.zeros(4, 3, dtype=torch.float64)
        for stay in itertools.product([True, False], repeat=5):
            monkeypatch.setattr(dropout, "kept", lambda shape, seed, stay=stay: torch.tensor(stay).view(1, 5))
            total += (1 - p) ** sum(stay) * p ** (5 - sum(stay)) * layer(dropout(x)).detach()
        torch.testing.assert_close(total, layer(x).detach(), **EXACT)

    def test_units_stay_with_the_right_probability(self):
        dropout, n = UnitDropout(0.2), 20_000
        share = dropout.kept(torch.Size([n]), 5).double().mean()
        assert abs(share - 0.8) < 4 * math.sqrt(0.16 / n)

    def test_one_network_for_all_data_at_test_one_per_datum_in_training(self):
        model = DropoutAutoencoder(*networks(d=40), p=0.5)
        x = randn(1, 40).expand(6, 40)
        samples = model.reconstruct(x, 3, keep=True).samples
        torch.testing.assert_close(samples, samples[:, :1].expand_as(samples), **EXACT)
        assert samples.diff(dim=0).abs().amax(2).all()
        outputs = model.train()(x)
        assert (outputs.diff(dim=0).abs().amax(1) > 1e-3).all()

    def test_training_draws_with_the_right_probability(self):
        dropout, n = UnitDropout(0.2).train(), 20_000
        dropout.source = torch.Generator().manual_seed(0)
        x = dropout(torch.ones(2, n // 2, dtype=torch.float64))
        assert abs((x > 0).double().mean() - 0.8) < 4 * math.sqrt(0.16 / n)
        assert set(x.unique().tolist()) == {0.0, 1.25}

    def test_before_every_layer_but_the_first(self):
        encoder, decoder = for_data((1, 16, 16), 2, 0.1)
        before = copy.deepcopy(encoder.state_dict())
        model = DropoutAutoencoder(encoder, decoder, p=0.1)
        there = ["Conv2d", "Tanh", "MaxPool2d", "UnitDropout", "Conv2d", "Tanh", "MaxPool2d", "Flatten"]
        there += ["UnitDropout", "Linear", "Tanh", "UnitDropout", "Linear"]
        back = ["Linear", "Tanh", "UnitDropout", "Linear", "Tanh", "Unflatten"]
        back += ["Upsample", "UnitDropout", "Conv2d", "Tanh", "Upsample", "UnitDropout", "Conv2d"]
        assert flat(model.encoder) == there
        assert flat(model.decoder) == back
        assert not any(isinstance(m, UnitDropout) for m in encoder.modules())
        assert all(torch.equal(a, b) for a, b in zip(before.values(), encoder.state_dict().values(), strict=True))

    def test_code_only_if_asked(self):
        z = randn(1, 2)
        decoder = linear(randn(3, 2), randn(3))
        plain = DropoutAutoencoder(nn.Identity(), decoder, p=0.5)
        thinned = DropoutAutoencoder(nn.Identity(), decoder, p=0.5, on_code=True)
        assert not plain.decode(z, 20).variance.any()
        assert thinned.decode(z, 20).variance.all()

    def test_nested_and_own(self):
        nested = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Sequential(nn.Linear(4, 2)))
        assert flat(with_dropout(nested, 0.1)) == ["Linear", "BatchNorm1d", "UnitDropout", "Linear"]
        own = EncoderDecoder(nn.Linear(3, 3), nn.Sequential(UnitDropout(0.4), nn.Linear(3, 3)))
        assert [m.p for m in with_dropout(own, 0.1).modules() if isinstance(m, UnitDropout)] == [0.4]

    def test_refusals(self):
        with pytest.raises(UnsupportedOperationError, match=r"EncoderDecoder.*not an nn.Sequential.*UnitDropout"):
            with_dropout(EncoderDecoder(nn.Linear(3, 3), nn.Linear(3, 3)), 0.1)
        with pytest.raises(DataError, match="p=1"):
            DropoutAutoencoder(*networks(), p=1.0)


class TestEnsemble:
    def test_identical_members(self):
        member = Autoencoder(*networks())
        ensemble = EnsembleAutoencoder.of([member, copy.deepcopy(member), copy.deepcopy(member)])
        x = randn(4, 6)
        prediction, alone = ensemble.reconstruct(x), member.reconstruct(x)
        assert prediction.draws == 3
        assert not prediction.variance.any() and not prediction.latent.variance.any()
        torch.testing.assert_close(prediction.mean, alone.mean, **EXACT)
        torch.testing.assert_close(prediction.log_prob, alone.log_prob, **EXACT)

    def test_members_start_and_vary(self):
        ensemble = EnsembleAutoencoder(*networks(), seed=7)
        again = EnsembleAutoencoder(*networks(), seed=7)
        weights = [member.encoder[0].weight for member in ensemble.members]
        assert len(weights) == 5 and len({float(w.detach().sum()) for w in weights}) == 5
        assert all(torch.equal(w, m.encoder[0].weight) for w, m in zip(weights, again.members, strict=True))
        x = randn(4, 6)
        prediction = ensemble.reconstruct(x)
        outputs = torch.stack([member(x) for member in ensemble.members]).detach()
        torch.testing.assert_close(prediction.mean, outputs.mean(0), **EXACT)
        torch.testing.assert_close(prediction.variance, outputs.var(0), **EXACT)
        torch.testing.assert_close(ensemble(x).detach(), outputs.mean(0), **EXACT)

    def test_each_member_gets_its_own_gradient(self):
        ensemble, x = EnsembleAutoencoder(*networks(), members=3), randn(4, 6)
        ensemble.loss(x, None).backward()
        for member in ensemble.members:
            alone = Autoencoder(*copy.deepcopy((member.encoder, member.decoder)))
            alone.zero_grad()
            alone.loss(x, None).backward()
            for own, expected in zip(member.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(own.grad, expected.grad, **EXACT)

    def test_all_members_are_trained_and_saved_once(self):
        ensemble = EnsembleAutoencoder(*networks(), members=3)
        assert len(list(ensemble.parameters())) == len(ensemble.state_dict()) == 3 * 12

    def test_refusals(self):
        with pytest.raises(DataError, match="members is 0"):
            EnsembleAutoencoder(*networks(), members=0)
        with pytest.raises(DataError, match="at least one member"):
            EnsembleAutoencoder.of([])


class TestMeanField:
    def narrow(self, **options):
        model = MeanFieldAutoencoder(*networks(), num_data=20, **options)
        with torch.no_grad():
            for width in model.method.widths:
                width.fill_(-60.0)  # σ = softplus(-60) = 9e-27
        return model

    def test_without_width_and_prior_it_is_plain_training(self):
        model, x = self.narrow(prior_scale=1e10), randn(5, 6)
        plain = Autoencoder(copy.deepcopy(model.encoder), copy.deepcopy(model.decoder))
        model.loss(x, None).backward()
        plain.loss(x, None).backward()
        ours = [*model.encoder.parameters(), *model.decoder.parameters()]
        for own, expected in zip(ours, plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, expected.grad, **EXACT)

    def test_loss_is_nll_plus_its_share_of_the_divergence(self):
        model, x = self.narrow(prior_scale=1.0), randn(5, 6)
        plain = Autoencoder(model.encoder, model.decoder)
        kl = sum(
            kl_divergence(Normal(m, s), Normal(torch.zeros_like(m), torch.ones_like(m))).sum()
            for m, s in zip(model.method.means, model.method.sigmas, strict=True)
        )
        torch.testing.assert_close(model.loss(x, None), plain.loss(x, None) + kl / 20, **EXACT)

    def test_one_set_of_means_and_the_given_networks_untouched(self):
        encoder, decoder = networks()
        before = copy.deepcopy(encoder.state_dict())
        model = MeanFieldAutoencoder(encoder, decoder, num_data=20)
        assert len(list(model.parameters())) == 2 * 12  # means and widths
        assert model.method.means[0] is model.encoder[0].weight
        assert all(torch.equal(a, b) for a, b in zip(before.values(), encoder.state_dict().values(), strict=True))
        start = torch.cat([p.detach().flatten() for p in model.encoder.parameters()])
        assert start.abs().max() <= 0.2
        assert all(((w > -5) & (w < -4)).all() for w in model.method.widths)

    def test_num_data_is_needed(self):
        with pytest.raises(DataError, match="num_data="):
            MeanFieldAutoencoder(*networks()).loss(randn(5, 6), None)


class TestFreshCopies:
    def test_seeded_and_leaving_the_stream_alone(self):
        network = networks()[0]
        torch.manual_seed(3)
        a, after = reinitialised(network, seed=1), torch.rand(1)
        torch.manual_seed(3)
        assert torch.equal(torch.rand(1), after)
        b = reinitialised(network, seed=1)
        assert torch.equal(a[0].weight, b[0].weight) and not torch.equal(a[0].weight, network[0].weight)

    def test_no_second_start_for_bare_parameters(self):
        with pytest.raises(UnsupportedOperationError, match=r"decoder \(Constant\).*no reset_parameters"):
            reinitialised(EncoderDecoder(nn.Linear(2, 2), Constant(randn(2))))

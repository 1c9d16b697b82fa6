"""One suite over all models: shapes, seeds, batches, moments, missing entries, refusals, training on the digits."""

from __future__ import annotations

import copy
import functools
import gc
import math
import warnings
import weakref

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import marquis as mq
from marquis.autoencoders import (
    Autoencoder,
    BaseAutoencoder,
    DropoutAutoencoder,
    EncoderDecoder,
    EnsembleAutoencoder,
    LaplacianAutoencoder,
    LearntVarianceAutoencoder,
    MeanFieldAutoencoder,
    PosteriorAutoencoder,
    UncertainAutoencoder,
    VariationalAutoencoder,
    fit_posthoc,
    for_data,
    from_posterior,
)
from marquis.autoencoders.base import adam, num_data_of
from marquis.autoencoders.estimate import Draw, Moments
from marquis.errors import DataError, ModelMismatchError, UnsupportedOperationError
from marquis.likelihoods import Gaussian

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPE, LATENT = (1, 4, 4), 2


def networks(seed=0, dtype=torch.float64):
    encoder, decoder = for_data(SHAPE, LATENT, 0.25, seed=seed)
    return encoder.to(dtype), decoder.to(dtype)


def data(n=6, seed=0):
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def posthoc(likelihood="gaussian", missing=False, **options):
    trained = Autoencoder(*networks(), likelihood, missing=missing)
    return fit_posthoc(trained, [data(20, seed=1)], progress=False, **options)


MODELS = {
    "plain": lambda **o: Autoencoder(*networks(), **o),
    "learnt-variance": lambda **o: LearntVarianceAutoencoder(*networks(), **o),
    "vae": lambda **o: VariationalAutoencoder(*networks(), **o),
    "dropout": lambda **o: DropoutAutoencoder(*networks(), **o),
    "ensemble": lambda **o: EnsembleAutoencoder(*networks(), members=3, seed=1, **o),
    "mean-field": lambda **o: MeanFieldAutoencoder(*networks(), num_data=20, generator=generator(), **o),
    "posthoc": lambda **o: posthoc(**o),
    "laplacian": lambda **o: LaplacianAutoencoder(*networks(), num_data=20, generator=generator(), **o),
}
BERNOULLI = [name for name in MODELS if name != "learnt-variance"]
CASES = [*((name, "gaussian") for name in MODELS), *((name, "bernoulli") for name in BERNOULLI)]
TRAINED = [name for name in MODELS if name not in ("posthoc", "laplacian")]  # the latter has tests of its own


@functools.cache
def cached(name, likelihood, missing):
    torch.manual_seed(0)
    options = {} if likelihood == "gaussian" else {"likelihood": likelihood}
    return MODELS[name](missing=missing, **options)


def make(name, likelihood="gaussian", missing=False):
    return copy.deepcopy(cached(name, likelihood, missing))


@pytest.fixture(params=CASES, ids="-".join)
def model(request):
    return make(*request.param)


class TestConformance:
    def test_is_one(self, model):
        assert isinstance(model, UncertainAutoencoder)

    def test_shapes(self, model):
        x = data()
        code, image, said = (
            model.encode(x, 4),
            model.decode(torch.zeros(5, LATENT).double(), 4),
            model.reconstruct(x, 4),
        )
        assert code.mean.shape == code.variance.shape == said.latent.mean.shape == (6, LATENT)
        assert image.mean.shape == image.variance.shape == image.noise_variance.shape == (5, *SHAPE)
        assert said.mean.shape == said.variance.shape == said.noise_variance.shape == x.shape
        assert said.log_prob.shape == said.expected_log_prob.shape == (6,)
        assert said.samples is None and said.latent.samples is None and code.noise_variance is None
        assert all(v.isfinite().all() and (v >= 0).all() for v in (said.variance, said.total_variance, said.std))
        torch.testing.assert_close(said.total_variance, said.variance + said.noise_variance)

    def test_nothing_carries_a_graph(self, model):
        said = model.reconstruct(data(), 2, keep=True)
        assert not any(t.requires_grad for t in (said.mean, said.samples, said.log_prob, said.latent.mean))

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
        said = model.reconstruct(x, 3, generator=generator(5), keep=True)
        code = model.encode(x, 3, generator=generator(5), keep=True)
        torch.testing.assert_close(code.samples, said.latent.samples, **EXACT)
        torch.testing.assert_close(code.mean, said.latent.mean, **EXACT)
        for number, z in enumerate(code.samples):
            image = model.decode(z, 3, generator=generator(5), keep=True)
            torch.testing.assert_close(image.samples[min(number, image.draws - 1)], said.samples[number], **EXACT)

    def test_moments_are_those_of_the_draws(self, model):
        said = model.reconstruct(data(), 4, generator=generator(5), keep=True)
        assert said.draws == len(said.samples)
        torch.testing.assert_close(said.mean, said.samples.mean(0), **EXACT)
        expected = said.samples.var(0) if said.draws > 1 else torch.zeros_like(said.mean)
        torch.testing.assert_close(said.variance, expected, **EXACT)
        assert (said.log_prob >= said.expected_log_prob - 1e-12).all()

    def test_variance_identity(self, model):
        """methods.md 6.5: mean over draws of the error, minus the error of the mean, is the biased variance."""
        x = data()
        said = model.reconstruct(x, 5, generator=generator(5), keep=True)
        of_draws = (said.samples - x).square().flatten(2).sum(2).mean(0)
        of_mean = (said.mean - x).square().flatten(1).sum(1)
        biased = said.variance.flatten(1).sum(1) * (said.draws - 1) / said.draws
        torch.testing.assert_close(of_draws - of_mean, biased, rtol=1e-12, atol=1e-12)

    def test_answers_leave_the_model_as_it_was(self, model):
        model.train()
        before = copy.deepcopy({k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)})
        flags = [m.training for m in model.modules()]
        model.reconstruct(data(), 2)
        assert flags == [m.training for m in model.modules()]
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items() if k in before)

    def test_bad_input(self, model):
        with pytest.raises(DataError, match="samples=0"):
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
    said = model.reconstruct(data(), 3, generator=generator(), keep=True)
    assert ((said.samples > 0) & (said.samples < 1)).all()
    shares = (said.samples * (1 - said.samples)).mean(0)
    torch.testing.assert_close(said.noise_variance, shares, **EXACT)
    p, x = said.samples, data()
    each = (x * p.log() + (1 - x) * (1 - p).log()).flatten(2).sum(2)
    torch.testing.assert_close(said.expected_log_prob, each.mean(0), **EXACT)
    torch.testing.assert_close(said.log_prob, torch.logsumexp(each, 0) - math.log(said.draws), **EXACT)
    with pytest.raises(DataError, match="from 0 to 1"):
        model.reconstruct(3 * data())


def test_gaussian_log_prob_by_hand():
    model, x = make("dropout"), data()
    said = model.reconstruct(x, 4, generator=generator(), keep=True)
    each = -0.5 * (said.samples - x).square().flatten(2).sum(2) - 8 * math.log(2 * math.pi)
    torch.testing.assert_close(said.expected_log_prob, each.mean(0), **EXACT)
    torch.testing.assert_close(said.log_prob, torch.logsumexp(each, 0) - math.log(4), **EXACT)


class TestMoments:
    def test_against_direct_formulas(self):
        values = torch.randn(9, 3, 2, generator=generator(), dtype=torch.float64) + 1e6  # where squares would cancel
        moments = Moments(keep=True)
        for value in values:
            moments.add(value)
        torch.testing.assert_close(moments.mean, values.mean(0), rtol=1e-15, atol=0)
        torch.testing.assert_close(moments.variance, values.var(0), rtol=1e-8, atol=0)
        torch.testing.assert_close(moments.samples, values, rtol=0, atol=0)

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
            def draws(self, samples, generator=None):
                for _ in range(samples):
                    yield Draw(lambda x: watch(self.encoder(x)), lambda z: self.output(watch(self.decoder(z))))

        gc.collect()
        model, x = Watched(*networks()), data()
        model.reconstruct(x, 3)
        few, most = most, 0
        said = model.reconstruct(x, 60)
        assert said.draws == 60
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
        said = model.reconstruct(hole, 3, generator=generator(), keep=True)
        full = model.reconstruct(zero, 3, generator=generator(), keep=True)
        torch.testing.assert_close(said.samples, full.samples, **EXACT)  # the encoder saw zeros
        torch.testing.assert_close(said.log_prob[1:], full.log_prob[1:], **EXACT)
        noise = full.noise_variance[0, 0, 0, :2]
        if said.draws == 1 or not isinstance(model, (LearntVarianceAutoencoder, VariationalAutoencoder)):
            away = full.samples[:, 0, 0, 0, :2].square()
            share = (-0.5 * (away / noise + (2 * math.pi * noise).log())).sum(1).mean(0)
            torch.testing.assert_close(full.expected_log_prob[0] - said.expected_log_prob[0], share, **EXACT)
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
        said = fitted.reconstruct(x, 1, generator=generator(4))
        torch.testing.assert_close(said.mean, expected.detach(), **EXACT)

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
        found, free = tuned.laplace.statistics, 20 * 16 - float(tuned.laplace.effective_parameters())
        assert float(tuned.likelihood.noise_precision * found.sse) == pytest.approx(free, rel=1e-2)
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


class TestTraining:
    def trainer(self, epochs=3, **options):
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        return Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet, **options)

    def fit(self, model, epochs=3, x=None):
        x = mq.data.load("digits").x[:512] if x is None else x
        test = mq.data.load("digits", "test").x
        trainer = self.trainer(epochs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about numbers of workers and the like
            trainer.fit(model, DataLoader(TensorDataset(x), 64), DataLoader(TensorDataset(test), 359))
        return trainer

    def build(self, name, **options):
        torch.manual_seed(0)
        shape = for_data((1, 8, 8), 2, 0.25, seed=0)
        kinds = {
            "plain": Autoencoder,
            "learnt-variance": LearntVarianceAutoencoder,
            "vae": VariationalAutoencoder,
            "dropout": DropoutAutoencoder,
            "ensemble": functools.partial(EnsembleAutoencoder, members=3),
            "mean-field": MeanFieldAutoencoder,
            "laplacian": functools.partial(LaplacianAutoencoder, num_data=512),
        }
        return kinds[name](*shape, lr=5e-3, **options)

    @pytest.mark.parametrize("name", [*TRAINED, "laplacian"])
    def test_digits(self, name):
        model, test = self.build(name), mq.data.load("digits", "test").x

        def score():
            said = model.reconstruct(test, 10, generator=generator())
            return float(-said.expected_log_prob.mean()), float((said.mean - test).square().flatten(1).sum(1).mean())

        loss, error = score()
        trainer = self.fit(model)
        after, better = score()
        assert after < loss - 1 and better < 0.6 * error
        assert float(trainer.callback_metrics["validation_loss"]) == pytest.approx(after, rel=0.1)
        assert trainer.callback_metrics["validation_error"] > 0
        if name == "mean-field":
            assert model.num_data == model.method.num_data == 512

    @pytest.mark.parametrize("name", ["vae", "dropout"])
    def test_seeded_training_repeats(self, name):
        runs = []
        for _ in range(2):
            model = self.build(name)
            torch.manual_seed(1)
            self.fit(model, epochs=1)
            runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert torch.equal(*runs)

    @pytest.mark.parametrize("name", TRAINED)
    def test_resumed_run_is_an_uninterrupted_one(self, name, tmp_path):
        x = mq.data.load("digits").x[:256]

        def run(model, epochs, resume=None):
            trainer = self.trainer(epochs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loader = DataLoader(TensorDataset(x), 64)
                trainer.fit(model, loader, DataLoader(TensorDataset(x[:32]), 32), ckpt_path=resume)
            return trainer

        whole = self.build(name)
        run(whole, 2)
        run(self.build(name), 1).save_checkpoint(tmp_path / "half.ckpt")
        resumed = self.build(name)
        torch.manual_seed(99)  # a new process has another global stream
        run(resumed, 2, tmp_path / "half.ckpt")
        for expected, found in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
            assert torch.equal(expected, found)

    def test_missing_entries(self):
        x = mq.data.load("digits").x[:512].clone()
        x[torch.rand(x.shape, generator=generator()) < 0.3] = math.nan
        model, test = self.build("plain", missing=True), mq.data.load("digits", "test").x
        before = model.reconstruct(test).expected_log_prob.mean()
        self.fit(model, x=x)
        assert model.reconstruct(test).expected_log_prob.mean() > before + 1
        with pytest.raises(DataError, match="missing=True"):
            self.fit(self.build("plain"), x=x)

    def test_divergence_is_said(self):
        model = self.build("plain")
        nn.init.constant_(model.decoder[0].weight, math.inf)
        with pytest.raises(DataError, match="training diverged"):
            self.fit(model)

    def test_rate_halves_on_a_plateau(self):
        model = self.build("plain")
        configured = model.configure_optimizers()
        schedule = configured["lr_scheduler"]["scheduler"]
        assert (schedule.factor, schedule.patience) == (0.5, 5)
        assert configured["lr_scheduler"]["monitor"] == "validation_loss"
        assert configured["optimizer"].defaults["lr"] == 5e-3

    def test_every_parameter_is_trained_at_its_rate(self):
        for name in TRAINED:
            model = self.build(name)
            groups = model.configure_optimizers()["optimizer"].param_groups
            trained = [p for group in groups for p in group["params"]]
            assert {id(p) for p in trained} == {id(p) for p in model.parameters()} and len(trained) == len(set(trained))
            assert all(group["lr"] == 5e-3 for group in groups)

    def test_without_validation_data(self):
        model = self.build("plain")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer(1).fit(model, DataLoader(TensorDataset(mq.data.load("digits").x[:64]), 32))

    def test_unknown_number_of_data(self):
        class Stream(IterableDataset):
            def __iter__(self):
                yield from mq.data.load("digits").x[:64]

        with pytest.raises(DataError, match="pass num_data="), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer(1).fit(self.build("mean-field"), DataLoader(Stream(), 32))


class TestOptimiser:
    def test_fused_where_there_is_one(self):
        group = {"params": [nn.Parameter(torch.zeros(2))]}
        assert adam([group], 1e-3).defaults["fused"] is True

    def test_ordinary_where_there_is_none(self):
        group = {"params": [nn.Parameter(torch.zeros(2, device="meta"))]}
        assert not adam([group], 1e-3).defaults["fused"]

    def test_same_steps(self):
        start = torch.randn(5, generator=generator(), dtype=torch.float64)
        parameters = [nn.Parameter(start.clone()) for _ in range(2)]
        ours, plain = adam([{"params": parameters[:1]}], 0.1), torch.optim.Adam(parameters[1:], 0.1)
        for _ in range(5):
            for parameter, optimiser in zip(parameters, (ours, plain), strict=True):
                optimiser.zero_grad()
                parameter.pow(4).sum().backward()
                optimiser.step()
        torch.testing.assert_close(parameters[0], parameters[1], **EXACT)


def test_names():
    assert issubclass(PosteriorAutoencoder, BaseAutoencoder)
    for name in mq.autoencoders.__all__:
        assert getattr(mq.autoencoders, name).__doc__
    assert num_data_of.__doc__

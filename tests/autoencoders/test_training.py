"""Every model under Lightning on the 8x8 digits: it learns, repeats, resumes; its optimiser."""

from __future__ import annotations

import functools
import math
import warnings

import pytest
import torch
from autoencoder_models import EXACT, TRAINED, generator
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import marquis as mq
from marquis.autoencoders import (
    Autoencoder,
    DropoutAutoencoder,
    EnsembleAutoencoder,
    LaplacianAutoencoder,
    LearntVarianceAutoencoder,
    MeanFieldAutoencoder,
    VariationalAutoencoder,
    for_data,
)
from marquis.autoencoders.base import adam
from marquis.errors import DataError


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

"""Autoencoders that several studies share: training, resuming, failures, further epochs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from marquis.autoencoders import LaplacianAutoencoder, build
from marquis.errors import DataError, NumericalError
from marquis.likelihoods import Heteroscedastic
from marquis_experiments.laplacian_autoencoder import models
from marquis_experiments.laplacian_autoencoder.models import (
    ESTIMATORS,
    MODELS,
    Images,
    Recipe,
    is_trained,
    model,
    train_in_parallel,
)
from marquis_experiments.laplacian_autoencoder.table2_hessians import study as hessians

TINY = Recipe("digits", 96, 1, "dense", 0.1, batch=32)


@pytest.fixture(scope="module")
def images() -> Images:
    return Images.load(TINY)


def test_models_are_trained_once_and_come_back_as_they_were(tmp_path, images, monkeypatch):
    for key in ("ae", "vae", "posthoc-exact", "online-sketched"):
        first = model(tmp_path, key, 0, TINY, images).require()
        with monkeypatch.context() as patch:
            patch.setattr(models, "_train", lambda *_: pytest.fail("trained twice"))
            again = model(tmp_path, key, 0, TINY, images).require()
        x = images.test[:5].x
        answers = [one.reconstruct(x, 3, generator=torch.Generator().manual_seed(0)) for one in (first, again)]
        assert torch.equal(answers[0].mean, answers[1].mean) and torch.equal(answers[0].variance, answers[1].variance)
    weights = [model(tmp_path, "ae", seed, TINY, images).require().state_dict() for seed in (0, 1)]
    assert any(not torch.equal(a, b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True))


def test_training_is_adam_over_shuffled_batches(tmp_path, images):
    got = model(tmp_path, "ae", 4, TINY, images)
    encoder, decoder = build((1, 8, 8), 2, 0.1, kind="dense", seed=4)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3, fused=True)
    x = images.train.x
    for rows in torch.randperm(96, generator=torch.Generator().manual_seed(4)).split(32):
        optimiser.zero_grad()
        (0.5 * (decoder(encoder(x[rows])) - x[rows]).square().flatten(1).sum(1)).mean().backward()
        optimiser.step()
    assert got.steps == 3
    for ours, theirs in ((got.require().encoder, encoder), (got.require().decoder, decoder)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("key", [key for key in MODELS if key.startswith("online-")])
def test_online_keys_are_what_they_say(key, tmp_path, images):
    learner = model(tmp_path, key, 0, TINY, images).require()
    assert isinstance(learner, LaplacianAutoencoder) and learner.online is not None
    settings = learner.online.settings
    assert learner.online.num_data == 96 and learner.online.state.steps == 3
    second = key.split("-")[1]
    kronecker = second == "kronecker"
    assert learner.online.structure == ("kronecker" if kronecker else "diagonal")
    assert learner.online.estimator == (second if second in ESTIMATORS else "sketched")
    assert isinstance(learner.likelihood, Heteroscedastic) == (second == "variance")
    assert settings.every == (10 if second == "exact" else 20 if kronecker else 1)
    if key.endswith("-paper-code"):
        assert settings.factor == 0.5 and settings.scale == "dataset" and settings.noise_precision == 1
    elif "-paper" in key:
        rate = {"rate": "learning-rate", "1e-4": 1e-4, "paper": "batch"}[key.partition("paper-")[2] or "paper"]
        assert settings.forgetting == rate and settings.prior_precision == 0
        assert settings.curvature_at == "mean" and settings.noise_precision == 1
    else:
        message = {"noise_precision": "learnt", "prior_precision": 1.0, "posterior_temperature": 0.01}
        if "-temperature-" in key:
            message["posterior_temperature"] = float(key.rpartition("-")[2])
        elif key.endswith("-unit-noise") or second == "variance":  # the decoder predicts the noise
            message["noise_precision"] = 1.0
        elif key.endswith("-learnt-prior"):
            message["prior_precision"] = "learnt"
        assert {name: getattr(settings, name) for name in message} == message


def test_a_lost_file_is_trained_again(tmp_path, images):
    first = model(tmp_path, "ae", 0, TINY, images).require()
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    again = model(tmp_path, "ae", 0, TINY, images).require()
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_failed_training_is_a_result(tmp_path, images, monkeypatch):
    def dies(*_: Any):
        yield torch.tensor(1.0)
        raise NumericalError("the precision has decayed to zero")

    with monkeypatch.context() as patch:
        patch.setattr(models, "_steps", dies)
        model(tmp_path, "online-sketched-paper", 0, TINY, images)
    kept = model(tmp_path, "online-sketched-paper", 0, TINY, images)  # not trained again
    assert kept.model is None and kept.failed == "after 1 steps: the precision has decayed to zero"
    with pytest.raises(NumericalError, match="could not be trained"):
        kept.require()
    run = hessians.STUDY.start("quick", tmp_path / "hessians", settings={"recipe": TINY, "test": 5, "noise": 5})
    with monkeypatch.context() as patch:
        patch.setattr(models, "_steps", dies)
        row = hessians.one_row(run, images, "online-sketched-paper", 0)
    assert row["failed"] == kept.failed and "nlp" not in row


def test_an_infinite_loss_ends_training(tmp_path, images, monkeypatch):
    monkeypatch.setattr(models, "_steps", lambda *_: iter([torch.tensor(1.0), torch.tensor(math.inf)]))
    assert model(tmp_path, "ae", 0, TINY, images).failed == "after 1 steps: the loss is inf"


def test_early_stopping_has_images_of_its_own(tmp_path):
    recipe = Recipe("digits", 96, 2, "dense", 0.1, batch=32, validation=32, patience=1)
    images = Images.load(recipe)
    assert images.validation is not None and len(images.train) == 96 and len(images.validation) == 32
    learner = model(tmp_path, "online-sketched", 0, recipe, images).require()
    assert isinstance(learner, LaplacianAutoencoder) and learner.online is not None
    assert learner.online.num_data == 96 and learner.online.state.steps in (3, 6)


def test_unknown_models_and_too_few_images_are_refused(tmp_path, images):
    with pytest.raises(DataError, match="online-sketched"):
        model(tmp_path, "online", 0, TINY, images)
    with pytest.raises(DataError, match="has 1438 training images"):
        Images.load(Recipe("digits", 5000))


def test_models_are_trained_ahead_on_two_cores_as_they_would_be_on_one(tmp_path, images):
    expected = [("ae", 1), ("posthoc-sketched", 1), ("online-sketched", 1), ("ae", 1)]
    lines: list[str] = []
    for folder in (tmp_path / "two", tmp_path / "two"):  # the second time there is nothing left to do
        train_in_parallel(folder, TINY, expected, images, partial(Images.load, TINY), lines.append, workers=2)
        assert sorted(text.split(":")[0] for text in lines) == ["ae, seed 1", "online-sketched, seed 1"]
    assert not is_trained(tmp_path / "two", "posthoc-sketched", 1, TINY, images)
    assert not is_trained(tmp_path / "two", "ae", 1, replace(TINY, epochs=2), images)
    for key in ("ae", "online-sketched"):
        assert is_trained(tmp_path / "two", key, 1, TINY, images)
        there, here = (model(tmp_path / name, key, 1, TINY, images).require() for name in ("two", "one"))
        pairs = zip(there.parameters(), here.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def test_further_epochs_go_on_from_the_finished_model_with_a_falling_rate(tmp_path, images, monkeypatch):
    recipe = replace(TINY, falling=2)
    assert [recipe.rate(step, 4) for step in range(5)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert TINY.rate(9, 10) == 1 and "falling" not in TINY.described()
    for refused in ({"falling": 0}, {"falling": 2, "validation": 10}):
        with pytest.raises(DataError, match="falling"):
            Recipe(**refused)
    for key in ("ae", "online-sketched"):
        further = model(tmp_path, key, 0, recipe, images)
        assert further.steps == 6 and is_trained(tmp_path, key, 0, TINY, images)
        # Written out: the orders of the second and third epoch, and the learner's own streams where they stopped.
        own = model(tmp_path, key, 0, TINY, images).require().train()
        order = torch.Generator().manual_seed(0)
        orders = [torch.randperm(96, generator=order) for _ in range(3)][1:]
        optimiser = torch.optim.Adam(own.parameter_groups(), TINY.lr)
        for step, rows in enumerate(row for each in orders for row in each.split(32)):
            for group in optimiser.param_groups:
                group["lr"] = TINY.lr * (1 - step / 6)
            loss = own.loss(images.train.x[rows], None)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        pairs = list(zip(further.require().parameters(), own.parameters(), strict=True))
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)
        start = model(tmp_path, key, 0, TINY, images).require().parameters()
        assert not any(torch.equal(a, b) for (a, _), b in zip(pairs, start, strict=True))
    monkeypatch.setattr(models, "_steps", lambda *_: iter([torch.tensor(float("nan"))]))
    assert model(tmp_path, "ae", 1, recipe, images).failed == "the loss is nan"  # that of the epochs before

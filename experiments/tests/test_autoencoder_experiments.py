"""The experiments `hessians` and `latent-map` at their quick size, and what they are made of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr

from marquis.autoencoders import Autoencoder, LaplacianAutoencoder, build, fit_posthoc, for_data
from marquis.errors import DataError, NumericalError
from marquis.priors import BoundPrior
from marquis.report.latent_map import OVER_DRAWS, LatentMap
from marquis_experiments import hessians, hessians_report, latent_map, shared_autoencoders
from marquis_experiments.ahead import train_ahead
from marquis_experiments.hessians import log_density, scores, with_unit_noise
from marquis_experiments.shared_autoencoders import MODELS, Images, Recipe, is_trained, model

TINY = Recipe("digits", 96, 1, "dense", 0.1, batch=32)


@pytest.fixture(scope="module")
def images() -> Images:
    return Images.load(TINY)


@pytest.fixture(scope="module")
def posterior():
    """A small float64 autoencoder with a post-hoc posterior, and its data."""
    x = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    encoder, decoder = for_data((1, 4, 4), 2, 0.1, seed=0)
    plain = Autoencoder(encoder.double(), decoder.double())
    return fit_posthoc(plain, x.split(10), "diagonal", "exact", progress=False), x, plain


# Scores


def test_scores_against_the_kept_draws(posterior):
    own, x, _ = posterior
    test, train = x[:15], x[15:25]
    found = scores(own, test, train, 7, seed=3)
    said = own.reconstruct(test, 7, generator=torch.Generator().manual_seed(3), keep=True)
    each = (said.samples - test).square().flatten(2).sum(2)
    assert found["nlp"] == pytest.approx(float(each.mean()), rel=1e-12)
    assert found["mse"] == pytest.approx(
        float((said.samples.mean(0) - test).square().flatten(1).sum(1).mean()), rel=1e-12
    )
    assert found["variance"] == pytest.approx(found["nlp"] - found["mse"], rel=1e-9)  # the identity of methods.md 6.5
    assert found["log_p"] == pytest.approx(float(said.log_prob.mean()), rel=1e-10)
    assert found["log_p_error"] == pytest.approx(float(said.log_prob.std()) / 15**0.5, rel=1e-10)
    assert found["noise_precision"] == pytest.approx(float(own.likelihood.noise_precision), rel=1e-12)
    assert found["temperature"] == 1 and found["draws"] == 7


def test_refitted_noise_is_the_most_likely_one_on_training_images(posterior):
    own, x, _ = posterior
    test, train = x[:15], x[15:25]
    found = scores(own, test, train, 5, seed=1)
    drawn = own.reconstruct(train, 5, generator=torch.Generator().manual_seed(1), keep=True).samples
    beta = torch.tensor(found["noise_refitted"], dtype=torch.float64, requires_grad=True)
    torch.distributions.Normal(drawn, beta.rsqrt()).log_prob(train).sum().backward()
    assert abs(float(beta.grad * beta.detach())) < 1e-9 * drawn.numel()  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    on_test = own.reconstruct(test, 5, generator=torch.Generator().manual_seed(1), keep=True).samples
    each = torch.distributions.Normal(on_test, beta.detach().rsqrt()).log_prob(test).flatten(2).sum(2)
    mixture = torch.logsumexp(each, 0) - math.log(5)
    assert found["log_p_refitted"] == pytest.approx(float(mixture.mean()), rel=1e-10)


def test_log_density_of_one_network_is_a_gaussian():
    error = torch.tensor([[2.0, 5.0]], dtype=torch.float64)
    expected = -0.5 * 3 * math.log(2 * math.pi / 4.0) - 0.5 * 4.0 * error[0]
    assert torch.allclose(log_density(error, 3, 4.0), expected, rtol=1e-14)


def test_a_plain_autoencoder_has_one_draw_and_no_variance(posterior):
    _, x, plain = posterior
    found = scores(plain, x[:10], x[10:20], 50, seed=0)
    assert found["draws"] == 1 and found["variance"] == 0 and found["nlp"] == found["mse"]
    assert found["temperature"] is None


def test_unit_noise_is_what_a_fit_with_fixed_noise_finds(posterior):
    _, x, plain = posterior
    made = with_unit_noise(fit_posthoc(plain, x.split(10), "diagonal", "exact", progress=False))
    direct = fit_posthoc(plain, x.split(10), "diagonal", "exact", tune=False, progress=False)
    assert direct.laplace is not None and made.laplace is not None
    direct.laplace.tune("evidence", noise=False)
    assert float(made.likelihood.noise_precision) == 1  # pyright: ignore[reportAttributeAccessIssue]
    ours, theirs = made.laplace.prior, direct.laplace.prior
    assert isinstance(ours, BoundPrior) and isinstance(theirs, BoundPrior)
    # Two starts of one search: as close as its tolerance lets them come.
    assert float(ours.precision) == pytest.approx(float(theirs.precision), rel=1e-2)


# Shared models


def test_models_are_trained_once_and_come_back_as_they_were(tmp_path, images, monkeypatch):
    for key in ("ae", "vae", "posthoc-exact", "online-sketched"):
        first = model(tmp_path, key, 0, TINY, images).require()
        with monkeypatch.context() as patch:
            patch.setattr(shared_autoencoders, "_made", lambda *_: pytest.fail("trained twice"))
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
    assert learner.online.estimator == ("sketched" if kronecker else second)
    assert settings.every == (10 if second == "exact" else 20 if kronecker else 1)
    if key.endswith("-paper-code"):
        assert settings.factor == 0.5 and settings.scale == "dataset" and settings.noise_precision == 1
    elif key.endswith("-paper"):
        assert settings.prior_precision == 0 and settings.curvature_at == "mean" and settings.noise_precision == 1
    else:
        said = {"noise_precision": "learnt", "prior_precision": 1.0, "temperature": 0.01}
        if "-temperature-" in key:
            said["temperature"] = float(key.rpartition("-")[2])
        elif key.endswith("-unit-noise"):
            said["noise_precision"] = 1.0
        elif key.endswith("-learnt-prior"):
            said["prior_precision"] = "learnt"
        assert {name: getattr(settings, name) for name in said} == said


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
        patch.setattr(shared_autoencoders, "_steps", dies)
        model(tmp_path, "online-sketched-paper", 0, TINY, images)
    kept = model(tmp_path, "online-sketched-paper", 0, TINY, images)  # not trained again
    assert kept.model is None and kept.failed == "after 1 steps: the precision has decayed to zero"
    with pytest.raises(NumericalError, match="could not be trained"):
        kept.require()
    settings = hessians.Settings(TINY, test=5, noise=5, samples=2)
    row = hessians.one_row(tmp_path / "cells", tmp_path, settings, images, "online-sketched-paper", 0, print)
    assert row["failed"] == kept.failed and "nlp" not in row


def test_an_infinite_loss_ends_training(tmp_path, images, monkeypatch):
    monkeypatch.setattr(shared_autoencoders, "_steps", lambda *_: iter([torch.tensor(1.0), torch.tensor(math.inf)]))
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


# Pages


def test_hessians_quick(tmp_path, monkeypatch):
    page = hessians.run("quick", tmp_path / "hessians", say=lambda _: None)
    text = page.read_text(encoding="utf-8")
    assert "Not complete" not in text and "failed" not in text and "reached" not in text  # digits: no paper to reach
    for name in hessians.ROWS:
        assert text.count(f"| {hessians_report.label_of(name)} |") == 2
    for picture in ("hessians.png", "hessians-reconstructions.png"):
        assert (page.parent / picture).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(hessians, "scores", lambda *_: pytest.fail("computed twice"))
    assert hessians.run("quick", tmp_path / "hessians", say=lambda _: None).read_text(encoding="utf-8") == text
    results = json.loads((page.parent / "results.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in results["rows"]}
    for name in rows:
        assert rows[name]["variance"] == pytest.approx(rows[name]["nlp"] - rows[name]["mse"], rel=1e-3, abs=1e-4)
    # A network drawn after training is worse than one that was trained with its posterior.
    assert rows["posthoc-exact-unit-noise"]["nlp"] > rows["posthoc-exact"]["nlp"] > rows["online-sketched"]["nlp"]
    # The maps find the models of the table in the folder that both share.
    trained: list[str] = []
    latent_map.run("quick", tmp_path / "latent-map", say=trained.append)
    assert sum("trained" in line for line in trained) == 1  # the VAE alone


def test_latent_map_quick(tmp_path):
    page = latent_map.run("quick", tmp_path / "latent-map", say=lambda _: None)
    text = page.read_text(encoding="utf-8")
    assert (page.parent / "latent-map.png").read_bytes().startswith(b"\x89PNG")
    for label in latent_map.SHOWN.values():
        assert f"| {label} |" in text and f"- {label}: uncertainty" in text
    found = json.loads((page.parent / "results.json").read_text(encoding="utf-8"))["models"]
    assert all(one["near"] > 0 and one["ratio"] == pytest.approx(one["far"] / one["near"]) for one in found.values())


def a_map(std: torch.Tensor, points: torch.Tensor) -> LatentMap:
    return LatentMap(points, std, (-1.0, 3.0, 0.0, 1.0), ("a", "b"), OVER_DRAWS)


def test_near_and_far_of_a_map_that_is_the_distance():
    generator = torch.Generator().manual_seed(0)
    rows, columns = 9, 13
    std = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    points = torch.tensor([[-0.77, 0.13], [1.31, 0.58]], dtype=torch.float64)
    distances = torch.empty(rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            across, up = j / (columns - 1), i / (rows - 1)
            distances[i, j] = min(math.hypot(across - (float(x) + 1) / 4, up - float(y)) for x, y in points)
    grows, falls = (latent_map.near_and_far(a_map(one, points)) for one in (1 + distances, 2 - distances))
    assert grows["rank_correlation"] == pytest.approx(1) and grows["ratio"] > 1
    assert falls["rank_correlation"] == pytest.approx(-1) and falls["ratio"] < 1
    noise = latent_map.near_and_far(a_map(std, points))
    assert noise["rank_correlation"] == pytest.approx(spearmanr(distances.flatten(), std.flatten())[0], rel=1e-9)
    assert "does **not** grow" in latent_map.verdict({"m": {"failed": None, **falls}})
    assert "grows away" in latent_map.verdict({"m": {"failed": None, **grows}})


def a_row(name: str, seed: int, nlp: float, **changes: Any) -> dict[str, Any]:
    numbers = {"nlp": nlp, "mse": nlp - 0.1, "variance": 0.1, "log_p": -nlp, "log_p_refitted": -nlp, "mse_error": 0.3}
    fixed = {"noise_precision": 1.0, "noise_refitted": 2.0, "temperature": 0.5, "prior_precision": 1.0, "steps": 9}
    return {"name": name, "seed": seed, "failed": None, "train_seconds": 1.0, **numbers, **fixed, **changes}


def report(folder: Path, rows: list[dict[str, Any]], planned: list[tuple[str, int]]) -> str:
    recipe = {**vars(Recipe()), "data": "mnist"}
    settings = {"recipe": recipe, "seeds": 1, "main_seeds": 2, "test": 100, "noise": 50, "samples": 10}
    results = {"size": "default", "settings": settings, "planned": planned, "rows": rows}
    return hessians_report.write_report(folder, results).read_text(encoding="utf-8")


def test_report_says_what_was_reached_and_what_was_not(tmp_path):
    rows = [
        a_row("online-sketched", 0, 25.0),
        a_row("online-sketched", 1, 25.2),
        a_row("online-exact", 0, 25.3),
        a_row("online-exact-paper-code", 0, 31.0),
        a_row("online-approximate", 0, 24.0),
        {"name": "online-sketched-paper", "seed": 0, "failed": "decayed", "train_seconds": 2.0, "steps": 3},
    ]
    planned = [(row["name"], row["seed"]) for row in rows] + [("posthoc-exact", 0)]
    text = report(tmp_path, rows, planned)
    assert "Not run yet: post-hoc exact, noise learnt (seed 0)" in text
    assert "online sketched, default: 25.1 / 25.0 against the paper's 25.8 / 25.7 (online exact): reached, -0.7" in text
    assert (
        "preset paper-code: 31.0 / 30.9 against the paper's 25.8 / 25.7 (online exact): **not reached**, +5.2" in text
    )
    assert "online sketched, preset paper could not be trained: decayed" in text
    assert "| online sketched, preset paper | 0 | *failed*" in text
    assert (
        "beats 1 of 3 rows; is level (within 0.4," in text
        and "is beaten by online approximate, default (+1.10)" in text
    )
    assert "25.10 ± 0.14" in text and "25.8 ± 0.2 / 25.7 ± 0.2" in text
    assert "Not complete" not in report(tmp_path, rows[:5], planned[:5])


def test_report_says_what_the_paper_forgets(tmp_path):
    rows = [a_row("online-sketched-paper", 0, 60.0, steps=1000)]
    text = report(tmp_path, rows, [("online-sketched-paper", 0)])
    left = (1 - 64 / 10_000) ** 1000
    assert f"{left:.2g} of its start value" in text and f"standard deviation {left**-0.5:.3g}" in text


def test_report_says_how_much_of_the_distance_is_the_noise(tmp_path):
    names = {"posthoc-exact-unit-noise": 110.0, "posthoc-exact": 40.0, "online-exact": 30.0}
    rows = [a_row(name, 0, nlp) for name, nlp in names.items()]
    text = report(tmp_path, rows, [(name, 0) for name in names])
    assert "110.0 with the noise fixed at 1, 40.0 with it learnt, 30.0 online. Learning the noise closes 88%" in text


def test_models_are_trained_ahead_on_two_cores_as_they_would_be_on_one(tmp_path, images):
    wanted = [("ae", 1), ("posthoc-sketched", 1), ("online-sketched", 1), ("ae", 1)]
    said: list[str] = []
    for folder in (tmp_path / "two", tmp_path / "two"):  # the second time there is nothing left to do
        train_ahead(folder, TINY, wanted, images, partial(Images.load, TINY), said.append, workers=2)
        assert sorted(text.split(":")[0] for text in said) == ["ae, seed 1", "online-sketched, seed 1"]
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
    monkeypatch.setattr(shared_autoencoders, "_steps", lambda *_: iter([torch.tensor(float("nan"))]))
    assert model(tmp_path, "ae", 1, recipe, images).failed == "the loss is nan"  # that of the epochs before

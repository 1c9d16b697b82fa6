"""The study `lae-default`: its readings against the library's, its choices, and the closed sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from marquis.autoencoders import from_posterior, linearised
from marquis.errors import DataError
from marquis.likelihoods import Gaussian
from marquis_experiments.laplacian_autoencoder.default import training
from marquis_experiments.laplacian_autoencoder.default.candidates import PRESENT, Training, by_name, trainings
from marquis_experiments.laplacian_autoencoder.default.choice import choices, freeze, frozen
from marquis_experiments.laplacian_autoencoder.default.reading import read
from marquis_experiments.laplacian_autoencoder.default.study import STUDY, adapted, cells, images, opened, partial


def test_the_protocol_counts():
    assert len(trainings()) == 20 and len(by_name()) == 132 and PRESENT.name in by_name()
    every = cells(STUDY.settings("default"))
    assert len(every) == 480 + 40
    assert [cell.seed for cell in every[:160]] == [0] * 160
    assert [cell.data for cell in every[:56]] == ["mnist"] * 28 + ["fashion-mnist"] * 28


@pytest.mark.parametrize("linear", [False, True])
def test_readings_agree_with_the_library(linear: bool):
    settings = {"architecture": "dense", "width": 0.1, "batch": 16, "epochs": 1}
    x = torch.rand(48, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    trained = training.train(Training("one", "diagonal", 1.0), x, settings, 0)
    posterior, likelihood = trained.posterior, trained.likelihood
    assert posterior is not None
    noise = torch.full((1, 5, 5), 2.0)
    cold, warm = read(trained.model, posterior, likelihood, x, (0.25, 1.0), linear, 40, [noise, noise])
    model = from_posterior(trained.model.encoder, trained.model.decoder, posterior, likelihood)
    model = linearised(model) if linear else model
    expected = model.reconstruct(x, 40, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(warm.mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(warm.variance, expected.variance, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(warm.latent_variance, expected.latent.variance.sum(1), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(warm.log_prob, expected.log_prob, rtol=1e-4, atol=1e-3)
    model.likelihood = Gaussian(2.0)
    equal = model.reconstruct(x, 40, generator=torch.Generator().manual_seed(0)).log_prob
    torch.testing.assert_close(warm.log_prob_equal, equal, rtol=1e-4, atol=1e-3)
    if linear:
        torch.testing.assert_close(cold.variance, 0.25 * warm.variance, rtol=1e-3, atol=1e-6)
    else:
        assert not torch.allclose(cold.variance, 0.25 * warm.variance, rtol=1e-2)


def test_quick_run_keeps_the_sets_closed_until_the_choices_are_frozen(tmp_path: Path):
    run = STUDY.start("quick", tmp_path, say=lambda text: None)
    first = cells(run.settings)[0]
    with pytest.raises(DataError, match="no frozen choices"):
        opened(run, first, {"rows": []})
    page = STUDY.run("quick", tmp_path, say=lambda text: None)
    results = json.loads((page.parent / "results.json").read_text())
    assert len(results["rows"]) == results["cells"] == 8 and not any("failed" in row for row in results["rows"])
    assert len(results["opened"]) == 4 and PRESENT.name in results["opened"][1]["scores"]
    last = cells(run.settings.replace(alternations=1))[-1]
    assert last.split == "adapted" and adapted(run, last, images(run, "digits", "adapted").train)["scores"]
    held = frozen(run.folder, results)
    assert held["choices"] == choices(results)
    with pytest.raises(DataError, match="other rows"):
        freeze(run.folder, {**results, "rows": results["rows"][1:]})
    (run.folder / "choices.json").write_text(json.dumps({**held, "choices": {}}))
    with pytest.raises(DataError, match="changed"):
        opened(run, first, results)
    path = next(run.cells.glob("digits-a-*.json"))
    path.unlink()
    stopped = partial(run)
    assert len(stopped["rows"]) == 7 and "opened" not in stopped
    assert "7 of 8 cells run" in STUDY.text(stopped) and "nothing is decided" in STUDY.text(stopped)

"""The study `lae-default`: its readings against the library's, its choices, and the closed sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from marquis.autoencoders import from_posterior, linearised
from marquis.errors import DataError
from marquis.likelihoods import Gaussian
from marquis_experiments.laplacian_autoencoder.default import training
from marquis_experiments.laplacian_autoencoder.default.beliefs import KINDS, POSTHOC, below, gains, outcome
from marquis_experiments.laplacian_autoencoder.default.candidates import (
    PRESENT,
    Training,
    by_name,
    candidates_of,
    trainings,
)
from marquis_experiments.laplacian_autoencoder.default.choice import SCORES, choices, freeze, frozen
from marquis_experiments.laplacian_autoencoder.default.evaluation import evaluate_posterior
from marquis_experiments.laplacian_autoencoder.default.stages import Cell, finalists, first, planned, second, third
from marquis_experiments.laplacian_autoencoder.default.study import STUDY, adapted, opened, partial


def test_the_protocol_counts():
    assert len(trainings()) == 20 and len(by_name()) == 132 and PRESENT.name in by_name()
    settings = STUDY.settings("default")
    assert planned(settings) == 14 + 10 + 16
    cells = first(settings, [])
    assert len(cells) == 14 and {cell.split for cell in cells} == {"a"} and {cell.seed for cell in cells} == {0}


def rows_of(cells: list[Cell], best: str) -> list[dict[str, Any]]:
    """Return rows in which the candidates of a training are worse, the further behind `best` they are in the list."""
    names = list(by_name())
    start = next(i for i, name in enumerate(names) if by_name()[name].training.name == best)
    rows = []
    for cell in cells:
        worth = {c.name: -float((names.index(c.name) - start) % len(names)) for c in candidates_of(cell.training)}
        scores = {
            name: {"density": v, "auroc": dict.fromkeys(SCORES, v), "coverage": 0.9 + v} for name, v in worth.items()
        }
        place = {"seed": cell.seed, "data": cell.data, "split": cell.split, "training": cell.training.name}
        rows.append({**place, "seconds": 1.0, "scores": scores, "evidence": {}})
    return rows


def test_stages_keep_the_trainings_that_rank_best():
    settings = STUDY.settings("default")
    rows = rows_of(first(settings, []), "online-kronecker-0.1-one")
    kept = second(settings, rows)
    assert [cell.training.name for cell in kept if cell.data == "mnist"] == [
        "plain-predicted",
        "online-kronecker-0.1-per-output",
        "online-kronecker-0.1-predicted",
        "online-kronecker-1-per-output",
        "online-kronecker-1-predicted",
    ]
    rows += rows_of(kept, "online-kronecker-0.1-one")
    expected = ["online-diagonal-0.01-one", "plain-one", "online-kronecker-0.1-one", "online-kronecker-1-one"]
    assert [training.name for training in finalists(settings, rows)] == expected
    last = third(settings, rows)
    assert len(last) == 16 and {(cell.seed, cell.split) for cell in last} == {(1, "b"), (2, "c")}
    rows += rows_of(last, "online-diagonal-1-one")  # what later seeds say changes no finalist
    assert [training.name for training in finalists(settings, rows)] == expected
    chosen = choices({"rows": rows})["combined"]["candidate"]
    assert by_name()[chosen].training.name in expected


@pytest.mark.parametrize("linear", [False, True])
def test_evaluations_agree_with_the_library(linear: bool):
    settings = {"architecture": "dense", "width": 0.1, "batch": 16, "epochs": 1}
    x = torch.rand(48, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    trained = training.train(Training("one", "diagonal", 1.0), x, settings, 0)
    posterior, likelihood = trained.posterior, trained.likelihood
    assert posterior is not None
    noise = torch.full((1, 5, 5), 2.0, dtype=torch.float64)  # as the online learner has it
    cold, warm = evaluate_posterior(trained.model, posterior, likelihood, x, (0.25, 1.0), linear, 40, [noise, noise])
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
    closed = Cell(0, "digits", "all", Training("one"))
    with pytest.raises(DataError, match="no frozen choices"):
        opened(run, closed, {"rows": []})
    page = STUDY.run("quick", tmp_path, say=lambda text: None)
    results = json.loads((page.parent / "results.json").read_text())
    assert len(results["rows"]) == results["cells"] == 8 and not any("failed" in row for row in results["rows"])
    assert len(results["opened"]) == results["to_open"] == 8 and PRESENT.name in results["opened"][0]["scores"]
    text = page.read_text()
    assert "Opened once, trained on digits" in text and "Confirmation:" in text and "nothing is decided" not in text
    more = STUDY.start("quick", tmp_path, say=lambda text: None, settings={"alternations": 1})
    assert adapted(more, Cell(0, "digits", "a", Training("one")))["scores"]
    held = frozen(run.folder, results)
    assert held["choices"] == choices(results)
    with pytest.raises(DataError, match="other rows"):
        freeze(run.folder, {**results, "rows": results["rows"][1:]})
    (run.folder / "choices.json").write_text(json.dumps({**held, "choices": {}}))
    with pytest.raises(DataError, match="changed"):
        opened(run, closed, results)
    path = next(run.cells.glob("digits-b-*.json"))
    path.unlink()
    stopped = partial(run)
    assert len(stopped["rows"]) == 7 and "opened" not in stopped
    assert "7 of 8 cells run" in STUDY.text(stopped) and "nothing is decided" in STUDY.text(stopped)


def test_statements_of_before_are_judged_by_two_standard_errors():
    def row(seed: int, **areas: float) -> dict[str, Any]:
        near = {"kmnist": dict.fromkeys(KINDS, areas["near"]), "rotated": dict.fromkeys(KINDS, areas["near"])}
        every = {**near, "noise": dict.fromkeys(KINDS, areas["far"])}
        ours = {POSTHOC: {"auroc": every}, PRESENT.name: {"auroc": {k: dict.fromkeys(KINDS, 0.9) for k in every}}}
        return {"data": "mnist", "seed": seed, "scores": ours}

    results = {"opened": [row(0, near=0.8, far=1.0), row(1, near=0.81, far=1.0)]}
    near = gains(results, POSTHOC, PRESENT.name, near_digits=True)["mean_rank"]
    assert near == pytest.approx([-0.1, -0.09])
    assert gains(results, POSTHOC, PRESENT.name)["mean_rank"] == pytest.approx([-0.1 / 3, -0.08 / 3])
    assert below(near) and not below([-0.1, 0.09])
    assert [outcome(True, True), outcome(True, False), outcome(False)] == ["confirmed", "in part", "refuted"]

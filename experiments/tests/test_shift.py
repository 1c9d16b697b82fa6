"""Rotated digits: the rotation, the shared Jacobian, and the whole experiment at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from marquis.laplace import Laplace
from marquis.subnetwork import Subnetwork
from marquis_experiments.common.images import Labelled
from marquis_experiments.common.study import Settings
from marquis_experiments.linearised_laplace.shift import study as shift
from marquis_experiments.linearised_laplace.shift.methods import (
    Digits,
    Moments,
    NextBatches,
    by_evidence,
    candidates,
    logit_variances,
    sampled_swag,
)
from marquis_experiments.linearised_laplace.shift.page import against_map, rows_of

TINY = {"train": 90, "validation": 20, "test": 20, "width": 2, "epochs": 1, "samples": 2, "snapshots": 2, "step": 90}


def images(count: int, height: int = 28, width: int = 28) -> Tensor:
    return torch.rand(count, 1, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_quarter_turns_are_exact_and_counter_clockwise(quarters: int):
    x = images(3)
    torch.testing.assert_close(shift.rotate(x, 90.0 * quarters), torch.rot90(x, quarters, (2, 3)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("degrees", "height", "width"), [(20, 28, 28), (140, 28, 28), (35, 12, 20)])
def test_rotation_is_the_one_of_scipy(degrees: float, height: int, width: int):
    x = images(1, height, width)
    expected = ndimage.rotate(x[0, 0].numpy(), degrees, reshape=False, order=1, mode="grid-constant")
    np.testing.assert_allclose(shift.rotate(x, degrees)[0, 0].numpy(), expected, rtol=1e-8, atol=1e-9)


def small() -> tuple[torch.nn.Module, Digits, Settings]:
    torch.manual_seed(0)
    network = shift.NarrowResNet(2, 1).double()
    x, y = images(12), torch.arange(12) % 10
    network.train()(x)  # batch statistics that are not those of an untrained network
    digits = Digits(Labelled(x, y), Labelled(x[:5], y[:5]), [images(4)], y[:4])
    return network.eval(), digits, shift.STUDY.settings("quick").replace(**TINY, shares=(0.05, 0.01), compared=0.05)


def test_one_jacobian_gives_what_each_posterior_alone_predicts():
    network, digits, settings = small()
    total = sum(p.numel() for p in network.parameters())
    scores = torch.rand(total, generator=torch.Generator().manual_seed(3))
    result, statistics = candidates(network, digits, settings, scores, seed=0)
    x = digits.x_test[0]
    variances = logit_variances(network, x, {name: [one.with_prior(3.0)] for name, one in result.items()})
    alone = {
        "diagonal": {"structure": "diagonal"},
        "last layer": {"structure": "full", "parameters": "last-layer"},
        "subnetwork 5 % by SWAG": {"parameters": Subnetwork(0.05, by=scores)},
        "subnetwork 1 % by SWAG": {"parameters": Subnetwork(0.01, by=scores)},
        "subnetwork 5 % by Laplace variance": {"parameters": Subnetwork(0.05, by="variance")},
    }
    for name, options in alone.items():
        laplace = Laplace(network, "categorical", prior=3.0, **options).fit(digits.train.batches(), progress=False)
        torch.testing.assert_close(variances[name][0], laplace.predict(x).variance, rtol=1e-8, atol=1e-12)
        laplace.update(laplace.prior.with_precision(1.0)).tune()  # the fixed point, from the same start
        weights = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
        assert by_evidence(result[name], weights, statistics) == pytest.approx(
            float(laplace.prior.precision[0]), rel=1e-6
        )
    assert set(result) - set(alone) == {"subnetwork 5 % at random"}


def test_batches_go_on_where_the_last_snapshot_stopped():
    y = torch.arange(10)
    batches = NextBatches(Labelled(y.double(), y), 2, 3, seed=0)
    seen = [torch.cat([labels for _, labels in batches]) for _ in range(5)]
    assert [len(part) for part in seen] == [6] * 5
    for epoch in torch.cat(seen).split(10):
        assert sorted(epoch.tolist()) == list(range(10))


def test_swag_without_variance_is_its_mean_network():
    network, digits, settings = small()
    flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
    moments = Moments(flat, torch.zeros_like(flat))
    (result,) = sampled_swag(network, moments, digits, settings)
    network.train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # pyright: ignore[reportAttributeAccessIssue]
    with torch.no_grad():
        network(digits.train.x)
        expected = network.eval()(digits.x_test[0]).softmax(1)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)


def test_runs_without_mnist_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "nothing"))
    page = shift.STUDY.run("quick", tmp_path, tmp_path / "nothing", lambda _: None, TINY)
    results = json.loads((page.parent / "results.json").read_text())
    assert results["settings"]["data"] == "digits"
    by_method = {row["method"]: row for row in rows_of(results)}
    assert {
        "MAP",
        "MAP, temperature",
        "diagonal, evidence",
        "last layer, validation",
        "SWAG, diagonal",
        "MC dropout",
    } <= set(by_method)
    assert "deep ensemble" in by_method and sum("subnetwork" in name for name in by_method) == 8
    for row in by_method.values():
        assert len(row["scores"]) == 3 and all(np.isfinite(score["nll"]) for score in row["scores"])
    # A temperature does not change which class is the largest; a linearised posterior hardly.
    for name in ("MAP, temperature", "subnetwork 0.5 % by SWAG, validation"):
        assert [s["accuracy"] for s in by_method[name]["scores"]] == pytest.approx(
            [s["accuracy"] for s in by_method["MAP"]["scores"]], abs=0.06
        )
    assert (page.parent / "shift.png").stat().st_size > 5_000
    cells = sorted((page.parent / "cells").glob("*.json"))
    stamps = [path.stat().st_mtime_ns for path in cells]
    shift.STUDY.run("quick", tmp_path, tmp_path / "nothing", lambda _: None, TINY)
    assert [path.stat().st_mtime_ns for path in cells] == stamps


def test_a_run_that_continues_takes_every_committed_cell(tmp_path: Path):
    run = shift.STUDY.start(out=tmp_path, say=lambda _: None, go_on=True)
    _, digits, _ = small()

    def computed(seed: int) -> dict[str, Any]:
        raise AssertionError("computed again")

    experiment = shift.Experiment(run, run.settings, digits)
    cells = [(name, seed) for seed in (0, 1, 2) for name in ("map", "laplace", "swag", "dropout")]
    continued = [experiment.cell(name, seed, computed) for name, seed in [*cells, ("ensemble", 0)]]
    assert len(continued) == len(shift.STUDY.committed()["cells"])


def test_differences_are_paired_by_network():
    def row(method: str, seed: int, nll: float) -> dict:
        return {"method": method, "seed": seed, "scores": [{"nll": 0.1}, {"nll": nll}]}

    rows = [row("MAP", 0, 3.0), row("MAP", 1, 5.0), row("other", 0, 2.0), row("other", 1, 4.0)]
    assert against_map(rows, "other", [0, 90]) == [-1.0, -1.0]
    assert against_map([*rows, row("ensemble", 0, 3.0)], "ensemble", [0, 90]) == [-1.0]

"""The small experiments at their quick size: they run, resume, and their numbers keep the order the tutorial claims."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from marquis.likelihoods import Gaussian
from marquis.priors import Prior
from marquis_experiments.common.networks import mlp
from marquis_experiments.common.study import SIZES
from marquis_experiments.linearised_laplace import logistic, toy_classification, uci
from marquis_experiments.linearised_laplace.evidence_loop import precisions_by_name, to_mode, train_with_evidence
from marquis_experiments.linearised_laplace.toy_regression import study as toy_regression
from marquis_experiments.linearised_laplace.toy_regression.study import noisy_sine, two_clusters


def pictures_exist(page: Path) -> None:
    named = re.findall(r"\]\(([\w.-]+\.png)\)", page.read_text())
    assert named
    for name in named:
        assert (page.parent / name).stat().st_size > 5_000


def results(page: Path) -> dict:
    return json.loads((page.parent / "results.json").read_text())


def test_logistic_error_is_small_falls_with_n_and_resumes(tmp_path: Path):
    page = logistic.STUDY.run("quick", tmp_path, say=lambda _: None)
    pictures_exist(page)
    rows = results(page)["rows"]
    worst = {n: max(abs(r["log_evidence"] - r["exact"]) for r in rows if r["n"] == n) for n in logistic.NUMBERS}
    assert worst[10] < 0.1 and worst[800] < 0.005
    assert worst[800] < worst[200] < worst[50]
    assert results(page)["probit"]["largest"] == pytest.approx(0.0131, abs=1e-4)
    # Along a ray that few data leave open, MAP is surer than the truth, and Laplace is closer to it.
    for row in (row for row in rows if row["n"] <= 50):
        ray = row["diagonal"]
        assert abs(ray["laplace"][-1] - ray["exact"][-1]) < abs(ray["map"][-1] - ray["exact"][-1])
    stamp = (tmp_path / "quick/cells/n10-s0.json").stat().st_mtime_ns
    logistic.STUDY.run("quick", tmp_path, say=lambda _: None)
    assert (tmp_path / "quick/cells/n10-s0.json").stat().st_mtime_ns == stamp


def test_logistic_grid_agrees_with_a_gaussian_it_can_integrate():
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    mode, precision = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    _, log_joint, area = logistic.grid_of(x, y, mode, precision, 201)
    # An input of zero says nothing: the evidence is one half.
    assert float(torch.logsumexp(log_joint, 0)) + math.log(area) == pytest.approx(math.log(0.5), abs=1e-10)


def test_toy_regression_quick(tmp_path: Path):
    page = toy_regression.STUDY.run("quick", tmp_path, say=lambda _: None)
    pictures_exist(page)
    result = results(page)
    for row in result["sizes"]["rows"]:
        assert 0 < row["effective"] <= row["weights"]
    cases = result["subnetwork-tanh"]["cases"]
    whole = cases["full, all weights"]["regions"]
    assert whole["between"] > whole["at the data"] and whole["away"] > whole["at the data"]
    for name, case in cases.items():
        if name.startswith("full") and case["weights"] < cases["full, all weights"]["weights"]:
            assert case["regions"]["between"] <= whole["between"] * (1 + 1e-9)  # conditioning narrows
    low, high = result["precisions"]["0.1"], result["precisions"]["100"]
    assert max(low["sd"]) > max(high["sd"])


def test_toy_classification_quick(tmp_path: Path):
    page = toy_classification.STUDY.run("quick", tmp_path, say=lambda _: None)
    pictures_exist(page)
    cases = results(page)["methods"]["cases"]
    for name, case in cases.items():
        if name.startswith("linearised"):
            far = zip(case["confidence"], cases["MAP"]["confidence"], strict=True)
            assert all(laplace < point for laplace, point in far)
            assert case["accuracy"] == cases["MAP"]["accuracy"]  # probit with two classes may not flip many
    assert cases["MAP"]["confidence"][-1] > 0.95


def test_uci_quick_without_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "nothing"))
    page = uci.STUDY.run("quick", tmp_path, tmp_path / "nothing", say=lambda _: None)
    pictures_exist(page)
    rows = results(page)["rows"]
    assert {row["kind"] for row in rows} == {"standard", "gap"}
    for row in rows:
        assert all(math.isfinite(row[key]) for key in ("map", "linearised", "sampled", "sampled_gaussian"))
        assert row["linearised"] > row["map"]
        assert 0 < row["effective"] < row["weights"]


def test_uci_network_is_an_ordinary_one():
    network = uci.OneHiddenLayer(3, 4).double()
    first = nn.Linear(3, 4).double()
    with torch.no_grad():
        weights = dict(network.named_parameters())
        first.weight.copy_(torch.cat([weights[f"inputs.{i}.weight"] for i in range(3)], 1))
        first.bias.copy_(weights["inputs.0.bias"])
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x), network.output(torch.tanh(first(x))))


def test_uci_jobs_are_all_there_once():
    for size in SIZES:
        settings = uci.STUDY.settings(size)
        jobs = uci.jobs(settings)
        assert len(set(jobs)) == len(jobs) == sum(settings.standard.values()) + sum(settings.gap.values())
        assert all(count <= uci.GAPS[name] for name, count in settings.gap.items())


def test_to_mode_solves_ridge_regression():
    x, y = two_clusters(5)
    network = nn.Linear(1, 1, bias=False).double()
    gradient = to_mode(network, x, y, Gaussian(4.0), {"weight": 2.0})
    expected = 4 * (x * y).sum() / (4 * x.square().sum() + 2)
    assert float(network.weight.detach()) == pytest.approx(float(expected), rel=1e-9)
    assert gradient < 1e-9


def test_loop_keeps_the_round_of_largest_evidence_and_leaves_the_network_alone():
    x, y = noisy_sine(20, 0)
    network = mlp(1, (4,), 1, nn.Tanh, 0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    trained = train_with_evidence(network, x, y, Gaussian(10.0), Prior(0.5, groups="layer"), rounds=4, iterations=40)
    assert trained.log_evidence == max(trained.rounds)
    assert float(trained.laplace.log_evidence()) == pytest.approx(trained.log_evidence, rel=1e-9)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_precisions_by_name_follow_the_groups():
    network = mlp(1, (2,), 1, nn.Tanh, 0)
    prior = Prior({"first": 3.0, "rest": 5.0}, groups={"first": "0.*", "rest": "*"})
    assert precisions_by_name(network, prior) == {"0.weight": 3.0, "0.bias": 3.0, "2.weight": 5.0, "2.bias": 5.0}

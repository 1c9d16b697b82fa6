"""`adapted-evidence`: its networks, its verdict, and a quick run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from marquis.priors.normalised import normalised_groups
from marquis_experiments.linearised_laplace.adapted_evidence import study
from marquis_experiments.linearised_laplace.adapted_evidence.networks import NETWORKS, WIDTHS, SmallCNN, build, scaled
from marquis_experiments.linearised_laplace.adapted_evidence.page import clear
from marquis_experiments.linearised_laplace.adapted_evidence.study import STUDY, Stopped, mean_variance
from marquis_experiments.linearised_laplace.classifiers import Recipe

IMAGES = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("CNN", {"1", "5"}),
        ("ResNet", {"stem", "first", "second"}),
        ("pre-ResNet", {"first"}),  # the others feed a sum, or are read by the skip connection too
        ("FixUp", set()),
        ("transformer", set()),  # its norms follow residual sums
    ],
)
def test_networks_are_small_and_normalised_where_the_page_says(name, layers):
    network = build(name, 0).double().eval()
    assert network(IMAGES).shape == (3, 10)
    assert sum(weight.numel() for weight in network.parameters()) < 2000
    assert set(normalised_groups(network, dict(network.named_parameters()), IMAGES)) == layers
    again, other = build(name, 0).state_dict(), build(name, 1).state_dict()
    weights = build(name, 0).state_dict()
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert any(not torch.equal(weights[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", NETWORKS)
def test_wide_networks_are_as_large_as_the_tutorials(name):
    network = build(name, 0, wide=True)
    assert network(IMAGES.float()).shape == (3, 10)
    assert sum(weight.numel() for weight in network.parameters()) == pytest.approx(46_000, rel=0.02)


def test_fixup_starts_as_if_the_block_were_not_there():
    network = build("FixUp", 0).double()
    before = network(IMAGES)
    with torch.no_grad():
        network.first.weight.mul_(2.0)  # pyright: ignore
    torch.testing.assert_close(network(IMAGES), before)


@pytest.mark.parametrize("k", [0.1, 10.0])
def test_scaling_a_normalised_layer_leaves_the_function(k):
    network = build("CNN", 0).double()
    assert isinstance(network, SmallCNN)
    network.train()
    network(IMAGES)  # so that the statistics are not those of the start
    network.eval()
    twin = scaled(network, k)
    torch.testing.assert_close(twin(IMAGES), network(IMAGES), rtol=1e-10, atol=1e-12)
    assert torch.equal(twin[5].weight, network[5].weight * k)  # pyright: ignore
    with torch.no_grad():
        network[5].weight.mul_(k)  # pyright: ignore  # alone, the statistics being frozen, it is another function
    assert float((twin(IMAGES) - network(IMAGES)).detach().abs().max()) > 1e-3


def test_stopped_training_follows_the_whole_schedule():
    whole = Recipe(10, 32, 1e-2)
    stopped = Stopped(whole, 4)
    assert stopped.epochs == 4 and stopped.factor(3.5) == whole.factor(3.5) > 0.5
    assert stopped.factor(4.0) > 0.3 > Recipe(4, 32, 1e-2).factor(4.0)


def test_a_difference_is_clear_above_three_standard_errors():
    assert clear([0.10, 0.11, 0.12])
    assert not clear([-0.10, -0.11, -0.12]) and not clear([0.1, -0.1, 0.06]) and not clear([0.5])


def test_mean_variance_of_covariances_is_that_of_their_diagonals():
    covariance = torch.eye(3).expand(2, 3, 3) * 2 + 0.5
    assert mean_variance(covariance) == pytest.approx(2.5) == mean_variance(torch.full((2, 3), 2.5))


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "nothing"))
    # Smaller still than the quick size: this file has seconds.
    small = {"train": 40, "test": 60, "epochs": (3,), "wide": ("CNN",), "wide_seeds": 1}
    monkeypatch.setitem(WIDTHS, "CNN", (5, 6))
    monkeypatch.setattr(study, "ACCURACY", {"tolerance": 0.05, "theta_tolerance": 0.05})
    page = STUDY.run("quick", tmp_path, tmp_path / "nothing", lambda _: None, small)
    results = json.loads((page.parent / "results.json").read_text())
    for name in ("adapted-evidence-training.png", "adapted-evidence-scale.png"):
        assert (page.parent / name).stat().st_size > 5_000
    (row,) = results["rows"]
    assert all(math.isfinite(result["nll"]) for result in row["tuned"].values())
    for kind in ("single", "multiple"):  # theta-star maximises what the network's weights do not
        assert row["tuned"][f"adapted, {kind}"]["log_evidence"] > row["tuned"][f"naive, {kind}"]["log_evidence"]
    (wide,) = results["wide"]
    assert wide["weights"] > row["weights"] and set(wide["tuned"]) < set(row["tuned"])
    for kind in ("single", "multiple"):
        assert wide["tuned"][f"adapted, {kind}"]["log_evidence"] > wide["tuned"][f"naive, {kind}"]["log_evidence"]
    one, ten = (scale["tuned"] for scale in results["scales"])
    assert max(scale["moved"] for scale in results["scales"]) < 1e-4
    change = {way: abs(ten[way]["variance"] / one[way]["variance"] - 1) for way in one}
    assert change["adapted, normalised"] < 0.1 < 0.5 < change["naive, single"]  # 0.1: the tolerance of the tuning
    stamp = (page.parent / "cells/CNN-s0.json").stat().st_mtime_ns
    STUDY.run("quick", tmp_path, tmp_path / "nothing", lambda _: None, small)
    assert (page.parent / "cells/CNN-s0.json").stat().st_mtime_ns == stamp

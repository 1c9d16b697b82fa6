"""The experiment `vl` at its quick size, its cache, its page and its scores."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from marquis.errors import DataError
from marquis_experiments.common import cells
from marquis_experiments.common.metrics import classification_scores, expected_calibration_error
from marquis_experiments.variational_laplace.fashion_mnist.page import chosen_tempering, comparisons, figure_2, line
from marquis_experiments.variational_laplace.fashion_mnist.regularisers import EmpiricalFisher, SquaredGradient
from marquis_experiments.variational_laplace.fashion_mnist.study import STUDY, best_tempering


def test_scores_against_torchmetrics_and_by_hand():
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(500, 7, generator=generator)).softmax(1)
    labels = torch.randint(7, (500,), generator=generator)
    theirs = multiclass_calibration_error(probs, labels, num_classes=7, n_bins=15, norm="l1")
    assert expected_calibration_error(probs, labels) == pytest.approx(float(theirs), abs=1e-6)
    hand = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    result = classification_scores(hand, torch.tensor([0, 1, 1]))
    assert result["accuracy"] == pytest.approx(2 / 3)
    assert result["nll"] == pytest.approx(-(torch.tensor([0.9, 0.1, 0.6]).log().mean().item()))
    assert result["ece"] == pytest.approx((abs(1 - 1.8) + abs(1 - 0.6)) / 3)
    assert expected_calibration_error(hand, torch.tensor([0, 1, 1]), bins=1) == pytest.approx(abs(2 / 3 - 0.8))


def test_cells_are_computed_once_for_the_same_settings(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"value": len(calls)}

    first = cells.cell(tmp_path, "a", {"epochs": 2, "widths": (1, 2)}, compute)
    assert first == {"epochs": 2, "widths": [1, 2], "value": 1}
    assert cells.cell(tmp_path, "a", {"epochs": 2, "widths": (1, 2)}, compute) == first
    assert cells.cell(tmp_path, "a", {"epochs": 3, "widths": (1, 2)}, compute)["value"] == 2
    (tmp_path / "a.json").write_text('{"settings": {"ep')
    assert cells.cell(tmp_path, "a", {"epochs": 3, "widths": (1, 2)}, compute)["value"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick size on scikit-learn's digits, which are always there."""
    out = tmp_path_factory.mktemp("vl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARQUIS_DATA", str(out / "no data here"))
        patch.setenv("HOME", str(out))
        lines: list[str] = []
        page = STUDY.run("quick", out, None, lines.append)
        again: list[str] = []
        before = {path: path.stat().st_mtime_ns for path in (out / "quick" / "cells").iterdir()}
        STUDY.run("quick", out, None, again.append)
        after = {path: path.stat().st_mtime_ns for path in (out / "quick" / "cells").iterdir()}
    return page, lines, before == after


def test_quick_run_writes_everything(quick):
    page, lines, _ = quick
    results = json.loads((page.parent / "results.json").read_text())
    assert len(results["grid"]) == 6 and len(results["multiplier"]) == 4 and len(results["resnet"]) == 3
    assert len(results["overfitting"]) == 6
    assert len(results["regularisers"]) == 4 and len(lines) == 23
    for picture in ("vl-tempering.png", "vl-multiplier.png", "vl-overfitting.png", "vl-epochs.png"):
        assert (page.parent / picture).stat().st_size > 10_000
    for row in [*results["grid"], *results["resnet"], *results["overfitting"]]:
        assert 0 <= row["mean"]["ece"] <= 1 and len(row["curve"]) == row["epochs"]
        assert ("sampled" in row) == (row["method"] != "map")
    for row in results["overfitting"]:
        assert [epoch for epoch, _ in row["watched"]] == [2, 4]
        assert row["watched"][-1][1] == row["validation"]["nll"]  # the last look is the finished network
        assert (row["train"], row["epochs"]) == (64, 4)


def test_an_unfinished_run_has_its_rows_and_a_page_that_says_what_is_missing(quick, tmp_path):
    page, _, _ = quick
    complete = json.loads((page.parent / "results.json").read_text())
    assert "not run yet" not in STUDY.text(complete)
    part = {name: complete[name] for name in ("size", "settings")} | {"grid": complete["grid"][:2]}
    text = STUDY.text(part)
    assert "Cells not run yet: 4 of the grid and its further seeds, 6 of the network that overfits, 3 of" in text
    assert "### The narrow PreactResNet-18" not in text and "| VI (mean) |" in text
    assert STUDY.draw is not None
    STUDY.draw(tmp_path, part)
    assert [path.name for path in tmp_path.iterdir()] == ["vl-tempering.png"]


def test_a_row_is_in_the_results_on_disk_as_soon_as_it_is_computed(tmp_path):
    run = STUDY.start("quick", tmp_path, say=lambda text: None)
    for seed in range(2):
        run.cell(f"s{seed}", {"seed": seed}, lambda: {"value": 1}, "grid")
        on_disk = json.loads((tmp_path / "quick" / "results.json").read_text())
        assert [row["seed"] for row in on_disk["grid"]] == list(range(seed + 1)) and on_disk["size"] == "quick"


def test_unweighted_square_is_the_empirical_fisher_with_one_fixed_variance():
    """The same loss and gradient in the mean, up to the KL's constant."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softplus(), torch.nn.Linear(4, 2)).double()
    x, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 1, 0, 1, 0])
    fisher = EmpiricalFisher(network, "categorical", num_data=6, tempering=0.0)
    square = SquaredGradient(network, "categorical", num_data=6, tempering=0.0)
    square.weight = 0.01
    with torch.no_grad():
        for width in fisher.widths:
            width.fill_(0.5 * math.log(0.01))
    losses = [method.step(x, y) for method in (fisher, square)]
    assert losses[0].item() == pytest.approx(losses[1].item())
    for loss in losses:
        loss.backward()
    for one, two in zip(fisher.means, square.means, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)


def test_committed_rows_are_continued():
    committed = STUDY.committed()
    run = STUDY.start(go_on=True, say=lambda text: None)
    names = ("architecture", "method", "tempering", "multiplier", "seed", "epochs", "width", "data", "train", "test")
    for part in ("grid", "multiplier", "regularisers", "resnet", "overfitting"):
        key = {name: committed[part][0][name] for name in (*names, "batch", "lr")}
        key |= {name: committed[part][0][name] for name in ("weight", "watch_every") if name in committed[part][0]}
        assert run.stored("no such file", key, part) is not None


def test_finished_cells_are_not_computed_again(quick):
    assert quick[2]


def row(method, tempering, nll, validation=None, ece=0.1):
    scores = {"nll": nll, "accuracy": 0.9, "ece": ece}
    return {
        "method": method,
        "tempering": tempering,
        "seed": 0,
        "diverged": False,
        "validation": {"nll": validation or nll},
        "mean": scores,
        "sampled": scores,
        "cpu_seconds_per_epoch": 1.0,
    }


def test_tempering_is_chosen_on_validation_not_on_test():
    grid = [row("vl", 0.1, 0.5, validation=0.2), row("vl", 1.0, 0.3, validation=0.4)]
    assert best_tempering(grid, "vl") == 0.1
    with pytest.raises(DataError, match="diverged"):
        best_tempering(grid, "vi")


def test_vl_wins_only_by_more_than_the_seeds_differ():
    grid = [row("vl", 0.1, 0.40), {**row("vl", 0.1, 0.50), "seed": 1}, row("vi", 0.1, 0.46), row("map", 0.1, 0.9)]
    gaps = {(c.score, c.other): c for c in comparisons(grid)}
    assert gaps["NLL", "VI (mean)"].gap == pytest.approx(0.01) and gaps["NLL", "VI (mean)"].spread == pytest.approx(0.1)
    assert gaps["NLL", "VI (mean)"].shown()["outcome"] == "within the range of the seeds"
    assert gaps["NLL", "MAP"].won and gaps["ECE", "MAP"].shown()["outcome"] == "no"
    assert comparisons([row("map", 0.1, 0.9)]) == []


def test_one_seed_wins_nothing():
    """A difference between single runs is not set against a range of zero."""
    grid = [row("vl", 0.1, 0.1), row("vi", 0.1, 0.5), row("map", 0.1, 0.05)]
    outcomes = {c.other: (c.won, c.shown()["outcome"]) for c in comparisons(grid) if c.score == "NLL"}
    assert outcomes["VI (mean)"] == (False, "one seed") and outcomes["MAP"] == (False, "no")


def test_seeds_added_at_a_chosen_tempering_do_not_change_the_choice():
    grid = [row("vl", 0.1, 0.5, validation=0.2), row("vl", 1.0, 0.3, validation=0.4)]
    grid.append({**row("vl", 0.1, 0.5, validation=0.9), "seed": 1})
    assert best_tempering(grid, "vl") == 0.1


def test_runs_that_diverged_are_left_out():
    diverged = {**row("vi", 1.0, 0.5), "diverged": True}
    rows = [row("vl", 0.1, 0.4), diverged]
    assert chosen_tempering(rows, "VI (mean)") is None
    assert format(line(rows, "VI (mean)")["nll"], ".3f") == "diverged"


def test_settings_of_the_other_parts_say_nothing_of_overfitting(quick):
    """Cells of earlier versions, which had no such part, stay valid."""
    for path in (quick[0].parent / "cells").glob("*.json"):
        known = json.loads(path.read_text())
        watched = path.name.startswith(("overfit-", "multiplier-"))
        assert ("watch_every" in known["settings"]) == watched == ("watched" in known["result"])


def test_figure_2_claims_need_both_temperings():
    def row(method: str, tempering: float, multiplier: float, bound: float, nll: float) -> dict[str, Any]:
        scored = {"diverged": False, "elbo_by_draws": bound, "mean": {"nll": nll}}
        return {"method": method, "tempering": tempering, "multiplier": multiplier, **scored}

    rows = [
        *(row("vi", 1.0, 1.0, -1.2, 0.4), row("vi", 1.0, 10.0, -0.8, 0.6)),
        *(row("vl", 1.0, 1.0, -0.9, 0.5), row("vl", 1.0, 10.0, -0.9, 0.55)),
    ]
    both = figure_2(rows)
    assert both["unconverged"] and both["robust"]
    assert (both["bounds"], both["ranges"]) == ("-1.20 against -0.80", "0.050 against 0.200")
    more = [
        *(row("vi", 0.1, 1.0, -0.4, 0.40), row("vi", 0.1, 10.0, -0.5, 0.41)),
        *(row("vl", 0.1, 1.0, -0.4, 0.40), row("vl", 0.1, 10.0, -0.4, 0.45)),
    ]
    neither = figure_2([*rows, *more])
    assert not neither["unconverged"] and not neither["robust"]
    assert not figure_2([])["unconverged"]

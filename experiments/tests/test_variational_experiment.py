"""The experiment `vl` at its quick size, its cache, its page and its scores."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from marquis.errors import DataError
from marquis_experiments import EXPERIMENTS, cells, find
from marquis_experiments.metrics import classification_scores, expected_calibration_error
from marquis_experiments.variational import SETTINGS, best_tempering, run
from marquis_experiments.variational_overfitting import verdict
from marquis_experiments.variational_report import write_report
from marquis_experiments.variational_tables import VARIANTS


def test_scores_against_torchmetrics_and_by_hand():
    generator = torch.Generator().manual_seed(0)
    probs = (3 * torch.randn(500, 7, generator=generator)).softmax(1)
    labels = torch.randint(7, (500,), generator=generator)
    theirs = multiclass_calibration_error(probs, labels, num_classes=7, n_bins=15, norm="l1")
    assert expected_calibration_error(probs, labels) == pytest.approx(float(theirs), abs=1e-6)
    hand = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    found = classification_scores(hand, torch.tensor([0, 1, 1]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["nll"] == pytest.approx(-(torch.tensor([0.9, 0.1, 0.6]).log().mean().item()))
    assert found["ece"] == pytest.approx((abs(1 - 1.8) + abs(1 - 0.6)) / 3)
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


def test_unknown_experiment_is_named():
    with pytest.raises(DataError, match="did you mean 'vl'"):
        find("vll")
    assert find("vl").run is run
    assert all(summary for _, summary in EXPERIMENTS.values())


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick size on scikit-learn's digits, which are always there."""
    out = tmp_path_factory.mktemp("vl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARQUIS_DATA", str(out / "no data here"))
        patch.setenv("HOME", str(out))
        lines: list[str] = []
        page = run("quick", out, None, lines.append)
        again: list[str] = []
        before = {path: path.stat().st_mtime_ns for path in (out / "quick" / "cells").iterdir()}
        run("quick", out, None, again.append)
        after = {path: path.stat().st_mtime_ns for path in (out / "quick" / "cells").iterdir()}
    return page, lines, before == after


def test_quick_run_writes_everything(quick):
    page, lines, _ = quick
    results = json.loads((page.parent / "results.json").read_text())
    assert len(results["grid"]) == 6 and len(results["multiplier"]) == 4 and len(results["resnet"]) == 3
    assert len(results["overfitting"]) == 6
    assert len(lines) == 19
    text = page.read_text()
    assert all(f"| {variant} |" in text for variant in VARIANTS)
    assert "CIFAR-10, CIFAR-100 and SVHN: not run" in text
    for picture in ("vl-tempering.png", "vl-multiplier.png", "vl-overfitting.png"):
        assert (page.parent / picture).stat().st_size > 10_000
        assert f"({picture})" in text
    for row in [*results["grid"], *results["resnet"], *results["overfitting"]]:
        assert 0 <= row["mean"]["ece"] <= 1 and len(row["curve"]) == row["epochs"]
        assert ("sampled" in row) == (row["method"] != "map")
    for row in results["overfitting"]:
        assert [epoch for epoch, _ in row["watched"]] == [2, 4]
        assert row["watched"][-1][1] == row["validation"]["nll"]  # the last look is the finished network
        assert (row["train"], row["epochs"]) == (64, 4)


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


@pytest.mark.parametrize(
    ("nll", "says"),
    [(0.1, "All of it comes out."), (0.9, "| NLL | VL < MAP | -0.3000 | 0.0000 | **not as in the paper** |")],
)
def test_page_says_whether_the_order_came_out(tmp_path, nll, says):
    grid = [row("vl", 0.1, nll, ece=0.01), row("vi", 0.1, 0.5), row("map", 0.1, 0.6)]
    text = write_report(tmp_path, results_of(grid)).read_text()
    assert says in text
    assert ("does not come out as a whole" in text) == (nll == 0.9)
    assert "grid: 3 of 6 cells; multiplier: 0 of 4 cells; resnet: 0 of 3 cells; overfitting: 0 of 6 cells" in text


def test_a_difference_within_the_seeds_is_undecided(tmp_path):
    grid = [row("vl", 0.1, 0.40), row("vl", 0.1, 0.50), row("vi", 0.1, 0.46), row("map", 0.1, 0.9)]
    text = write_report(tmp_path, results_of(grid)).read_text()
    assert "| NLL | VL < VI (mean) | +0.0100 | 0.1000 | as in the paper, but within the range" in text
    assert "| NLL | VL < MAP | +0.4500 | 0.1000 | as in the paper |" in text


def test_what_was_not_run_is_not_called_diverged(tmp_path):
    diverged = {**row("vi", 1.0, 0.5), "diverged": True}
    text = write_report(tmp_path, results_of([row("vl", 0.1, 0.4), row("vl", 1.0, 0.4), diverged])).read_text()
    assert "| 0.1 | VI (mean) | not run |" in text
    assert "| 1 | VI (mean) | diverged |" in text


def results_of(grid, resnet=(), overfitting=()):
    settings = asdict(SETTINGS["quick"])
    parts = {"grid": grid, "multiplier": [], "resnet": list(resnet), "overfitting": list(overfitting)}
    return {"size": "quick", "settings": settings, **parts}


@pytest.mark.parametrize(
    ("nll", "ece", "says"),
    [
        (0.1, 0.01, "yes. Where the network overfits, the whole of the paper's order comes out. With each method"),
        (0.55, 0.2, "only in part. With each method at its own β, VL is better by more than the seeds differ: NLL against MAP; worse by more than that: NLL against VI (mean), VI (10 samples) and ECE against VI (mean), "),  # noqa: E501
        (0.9, 0.2, "no. Where the network overfits, the paper's order does not come out either."),
    ],
)  # fmt: skip
def test_verdict_where_the_network_overfits(tmp_path, nll, ece, says):
    rows = [
        {**row(*what), "watched": watched, "training": {"nll": 0.01}}
        for what, watched in (
            (("vl", 0.1, nll, None, ece), [[2, 0.5], [4, 0.6]]),
            (("vi", 0.1, 0.5), [[2, 0.5], [4, 0.6]]),
            (("map", 0.1, 0.6), [[2, 0.5], [4, 1.6]]),
        )
    ]
    assert verdict(rows).startswith(says)
    grid = [row("vl", 0.1, 0.9), row("vi", 0.1, 0.5), row("map", 0.1, 0.6)]
    text = write_report(tmp_path, results_of(grid, overfitting=rows)).read_text()
    assert (
        "least after epoch 2, 0.50, and 1.60 in the end, with 0.010 on the training images: so it does overfit" in text
    )
    assert text.count(says) == 2  # in the grid's explanation and in the section of its own
    rows[2]["watched"] = [[2, 0.5], [4, 0.55]]
    text = write_report(tmp_path, results_of(grid, overfitting=rows)).read_text()
    assert "hardly overfits, and this part decides nothing" in text
    assert "has not been tested" in write_report(tmp_path, results_of(grid)).read_text()


@pytest.mark.parametrize(
    ("nll", "says"),
    [
        (0.9, "VL is the worst in NLL; the best in accuracy and ECE.** One seed and 1 epoch(s) are too few"),
        (0.55, "VL is in the middle in NLL; the best in accuracy and ECE.**"),
        (0.1, "VL is the best in NLL, accuracy and ECE.**"),
    ],
)
def test_standing_of_the_narrow_network_is_said(tmp_path, nll, says):
    resnet = [row("vl", 0.1, nll), row("vi", 0.1, 0.5), row("map", 0.1, 0.6)]
    text = write_report(tmp_path, results_of([], resnet)).read_text()
    assert says in text
    assert ("it is what the paper finds" in text) == (nll == 0.1)
    assert ("does not support the paper's order" in text) == (nll != 0.1)


def test_the_papers_way_to_choose_the_tempering_is_shown_where_it_differs(tmp_path):
    kept = {"watched": [[2, 0.5], [4, 1.6]], "training": {"nll": 0.01}}
    chosen = [row("vl", 0.1, 0.4), row("vi", 0.1, 0.5), row("map", 0.1, 0.6, validation=0.5)]
    rows = [{**r, **kept} for r in [*chosen, row("map", 0.3, 0.55, validation=0.7, ece=0.02)]]
    text = write_report(tmp_path, results_of([], overfitting=rows)).read_text()
    assert "Chosen by test NLL, as in the paper, MAP would have β = 0.3, NLL 0.550 and ECE 0.020." in text
    assert "Chosen by test NLL" not in write_report(tmp_path, results_of([], overfitting=rows[:3])).read_text()


def test_settings_of_the_other_parts_say_nothing_of_overfitting(quick):
    """Cells of earlier versions, which had no such part, stay valid."""
    for path in (quick[0].parent / "cells").glob("*.json"):
        known = json.loads(path.read_text())
        assert ("watch_every" in known["settings"]) == path.name.startswith("overfit-")
        assert ("watched" in known["result"]) == path.name.startswith("overfit-")


def test_page_from_stored_cells_trains_nothing(quick, monkeypatch):
    page, lines, _ = quick
    monkeypatch.setattr("marquis_experiments.variational._train", lambda *_: pytest.fail("trained"))
    monkeypatch.setenv("MARQUIS_DATA", str(page.parent / "no data here"))
    monkeypatch.setenv("HOME", str(page.parent))
    (page.parent / "cells" / "resnet-map-b0.1-m10-s0.json").unlink(missing_ok=True)
    (page.parent / "cells" / "cnn-vl-b1-m1-s0.json").unlink()
    again: list[str] = []
    run("quick", page.parent.parent, None, again.append, only_stored=True)
    assert len(again) < len(lines)
    assert "multiplier: 3 of 4 cells" in page.read_text()

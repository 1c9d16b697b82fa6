"""The study `claims` at its quick size, and the arithmetic behind its tables."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from marquis.autoencoders import LaplacianAutoencoder, for_data
from marquis.likelihoods import Gaussian
from marquis.online.settings import NEW_NAMES, OnlineSettings
from marquis_experiments.laplacian_autoencoder.claims import page as claims_page
from marquis_experiments.laplacian_autoencoder.claims import study as claims
from marquis_experiments.laplacian_autoencoder.claims import training
from marquis_experiments.laplacian_autoencoder.claims.study import STUDY


def pictures_exist(page: Path) -> None:
    named = re.findall(r"\]\(([\w.-]+\.png)\)", page.read_text())
    assert named
    for name in named:
        assert (page.parent / name).stat().st_size > 5_000


def test_claims_runs_all_parts_on_the_digits_and_goes_on_where_it_stopped(tmp_path: Path):
    lines: list[str] = []
    page = STUDY.run("quick", tmp_path, say=lines.append)
    pictures_exist(page)
    rows = json.loads((page.parent / "results.json").read_text())["rows"]
    assert {row["part"] for row in rows} == set(claims.PARTS) - {"fashion", "fashion-width"}
    assert len(lines) == len(rows)
    assert not [row for row in rows if "failed" in row]
    # Parts share cells: fewer files than rows, and the same numbers under both names.
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "quick/cells").iterdir()}
    assert len(files) < len(rows)
    default = [
        r for r in rows if (r["part"], r["label"]) in {("ablation", claims_page.DEFAULT), ("width", "default, width 1")}
    ]
    assert len(default) == 2 and default[0]["error"] == default[1]["error"]
    STUDY.run("quick", tmp_path, say=lambda _: None)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "quick/cells").iterdir()} == files


def test_the_ablation_is_the_whole_grid_and_its_bold_line_is_the_librarys_default():
    rows = claims.ablation((1.0, 0.01))
    assert len(rows) == 1 + 2 * 2 * 2 + 2
    labels = {label: options for label, _, options in rows}
    assert labels[claims_page.DEFAULT] == claims.DEFAULT
    own = OnlineSettings()
    assert {name: getattr(own, NEW_NAMES.get(name, name)) for name in claims.DEFAULT} == claims.DEFAULT
    one_away = claims.ablation((1.0, 0.01), main=True)
    assert len(one_away) == 1 + 4 + 2  # plain; the default and each switch by itself; two presets


def test_the_matched_temperature_gives_the_same_stationary_precision():
    settings = STUDY.settings("default")
    by_label = {label: options for label, _, options in claims.forgetting(settings)}
    matched, usual = by_label["learning rate, T matched"], by_label["B/N, T = 0.01"]
    share = training.BATCH / training.number_of_training_images(settings)
    # H settles at (B/N)/α times the data's curvature (docs/method/online.md); the precision is H/T.
    assert share / matched["forgetting"] / matched["temperature"] == pytest.approx(1 / usual["temperature"], rel=5e-3)


def test_a_training_that_fails_is_a_row_with_a_reason(tmp_path: Path):
    job = training.Job("ablation", "x", "laplacian", 0, 2, 2e-3, options={"forgetting": 0.999, "preset": "paper"})
    settings = STUDY.settings("quick").replace(train=640)
    row = training.evaluate(replace(job, epochs=8), settings, training.read(job, settings, None))
    assert "precision" in row["failed"]
    assert claims_page.of([{**row, "label": "x"}], "x") == []


def test_outliers_keep_grey_levels_and_splits_do_not_overlap():
    job = training.Job("ablation", "x", "plain", 3, 1, 1e-3)
    images = training.read(job, STUDY.settings("default"), None)
    other = training.read(replace(job, seed=4), STUDY.settings("default"), None)
    assert len(images.train) == training.number_of_training_images(STUDY.settings("default"))
    assert len(images.train) + len(images.test) == 1797
    assert not torch.equal(images.test, other.test)
    for outside in images.outside.values():
        assert not torch.equal(outside, images.test)
        assert torch.equal(outside.flatten(1).sort(1).values, images.test.flatten(1).sort(1).values)


def test_scores_are_those_of_the_library_and_refitting_changes_only_the_noise():
    encoder, decoder = for_data((1, 8, 8), 2, 0.25, seed=0)
    model = LaplacianAutoencoder(encoder, decoder, num_data=50, generator=torch.Generator().manual_seed(0)).double()
    x = torch.rand(50, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model.loss(x, None).backward()
    prediction = training.scored(model, x, 7, batch=20)
    whole = model.reconstruct(x, 7, generator=torch.Generator().manual_seed(0), keep=True)
    assert whole.samples is not None
    torch.testing.assert_close(prediction.log_prob, whole.log_prob, rtol=1e-10, atol=0)
    torch.testing.assert_close(prediction.output_variance, whole.variance.flatten(1).sum(1), rtol=1e-10, atol=0)
    errors = (whole.samples - x).square().flatten(2).sum(2)
    torch.testing.assert_close(prediction.sampled_errors, errors, rtol=1e-10, atol=0)
    # By hand, with torch's own density: refit on these very data, then on others.
    for train in (errors, 3 * errors):
        precision = 64 / float(train.mean())
        densities = torch.stack([Gaussian(precision).log_prob(sample, x) for sample in whole.samples])
        expected = densities.logsumexp(0) - math.log(7)
        torch.testing.assert_close(training.log_mixture(errors, 64, train), expected, rtol=1e-10, atol=1e-10)
    best = training.log_mixture(errors[:1], 64, errors[:1]).mean()
    for factor in (0.5, 2.0):
        assert training.log_mixture(errors[:1], 64, factor * errors[:1]).mean() < best


def test_differences_are_paired_by_seed():
    def row(label: str, seed: int, value: float) -> claims_page.Row:
        return {"label": label, "seed": seed, "refitted_log_prob": value}

    rows = [row("a", 0, 5.0), row("a", 1, 105.0), row("b", 1, 100.0), row("b", 0, 2.0), row("a", 2, 7.0)]
    gap, error = claims_page.difference(rows, "a", "b")
    assert (gap, error) == (4.0, pytest.approx(1.0))

"""The experiment on tables: its splits, holes and outliers, its interval score, and the whole at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import marquis as mq
from marquis_experiments.tables.data import (
    HiddenTable,
    OutlierTable,
    columns,
    hidden_table,
    hide,
    outlier_table,
    random_source,
    split,
)
from marquis_experiments.tables.methods import DETECTORS, IMPUTERS, imputation_scores, interval_scores, outlier_scores
from marquis_experiments.tables.page import compared
from marquis_experiments.tables.study import STUDY


def test_quick_run_end_to_end(tmp_path: Path):
    page = STUDY.run("quick", tmp_path, say=lambda line: None)
    written = page.read_text()
    for picture in ("tabular-outliers.png", "tabular-rmse.png"):
        assert (page.parent / picture).stat().st_size > 5000 and picture in written
    results = json.loads((page.parent / "results.json").read_text())
    assert {row["method"] for row in results["outliers"]} == set(DETECTORS)
    assert all(0 <= row["auroc"] <= 1 for row in results["outliers"])
    assert {row["method"] for row in results["imputation"]} == set(IMPUTERS)
    assert all(0 < row["rmse"] < 2 and row["pattern"] == "30 %" for row in results["imputation"])
    times = {path: path.stat().st_mtime_ns for path in (page.parent / "cells").iterdir()}
    STUDY.run("quick", tmp_path, say=lambda line: None)  # from the cells
    assert times == {path: path.stat().st_mtime_ns for path in (page.parent / "cells").iterdir()}
    assert page.read_text() == written


def test_holes_have_the_shares_they_are_said_to_have():
    x = np.random.default_rng(0).normal(size=(4000, 6))
    for pattern, share in (("10 %", 0.1), ("30 %", 0.3), ("50 %", 0.5), ("large", 0.3)):
        hidden = hide(x, pattern, np.zeros(6), random_source(pattern))
        assert abs(hidden.mean() - share) < 0.012 and not hidden.all(1).any()
        above = hidden[x > 0].mean() - hidden[x < 0].mean()
        assert abs(above - (0.3 if pattern == "large" else 0.0)) < 0.02
    tiny = hide(np.ones((3000, 1)), "50 %", np.zeros(1), random_source(0))
    assert not tiny.any()  # the only entry of a row is kept
    with pytest.raises(mq.DataError, match="'half'"):
        hide(x, "half", np.zeros(6), random_source(0))


def test_splits_are_fresh_and_apart():
    x = np.arange(100.0)[:, None]
    (a, b), (c, _) = (split(x, random_source(word), 50, 20) for word in "ab")
    assert len(a) == 50 and len(b) == 20 and not set(a[:, 0]) & set(b[:, 0])
    assert set(a[:, 0]) != set(c[:, 0])
    np.testing.assert_array_equal(a, split(x, random_source("a"), 50, 20)[0])
    with pytest.raises(mq.DataError, match="constant"):
        split(np.ones((10, 1)), random_source("a"), 5, 5)


def test_the_table_is_itself_where_nothing_is_hidden():
    result = hidden_table("wine", "30 %", 0, 100)
    seen = ~np.isnan(result.holes)
    assert result.truth.shape == (100, 13) and abs(seen.mean() - 0.7) < 0.05
    np.testing.assert_array_equal(result.holes[seen], result.truth[seen])
    np.testing.assert_allclose(result.truth.std(0), 1, rtol=1e-9)  # the unit, before anything was hidden
    assert not np.array_equal(result.holes, hidden_table("wine", "30 %", 1, 100).holes, equal_nan=True)


def test_permuted_rows_keep_their_columns_and_lose_their_dependence():
    made = outlier_table("breast cancer", "permuted", 0, 200, 150)
    names = [np.corrcoef(part[:, 0], part[:, 2])[0, 1] for part in (made.inside, made.outside)]  # radius and perimeter
    assert names[0] > 0.95 and abs(names[1]) < 0.4
    assert abs(made.outside.mean(0) - made.inside.mean(0)).max() < 0.7


def test_a_class_is_left_out_of_training_and_is_what_is_strange():
    made = outlier_table("wine", 2, 0, 80, 40)
    x, y = columns("wine")
    assert (len(made.train), len(made.inside), len(made.outside)) == (80, 39, 40)
    train, inside = split(x[y != 2], random_source("outliers", "wine", 2, 0), 80, 40)
    np.testing.assert_allclose(made.train * train.std(0) + train.mean(0), train, rtol=1e-9)
    np.testing.assert_allclose(made.inside * train.std(0) + train.mean(0), inside, rtol=1e-9)
    back = made.outside * train.std(0) + train.mean(0)
    away = abs(back[:, None] - x[y == 2][None]).max(2)
    assert (away.min(1) < 1e-9).all() and len(set(away.argmin(1))) == 40  # different rows of the class


def test_unknown_tables_are_refused():
    with pytest.raises(mq.DataError, match="'whine'"):
        columns("whine")


def test_interval_score_by_hand_and_least_at_the_right_width():
    result = interval_scores(np.array([0.5, -2.0, 3.0]), np.array([1.0, 1.5, 3.0]))
    assert result["coverage"] == pytest.approx(2 / 3, rel=1e-12)
    assert result["width"] == pytest.approx(2 * 5.5 / 3, rel=1e-12)
    assert result["interval_score"] == pytest.approx((2 + (3 + 20 * 0.5) + 6) / 3, rel=1e-12)
    away = np.random.default_rng(0).normal(size=20000)
    scores = [interval_scores(away, np.full(20000, h))["interval_score"] for h in (1.2, 1.645, 2.2)]
    assert scores[1] < scores[0] and scores[1] < scores[2]


def test_methods_see_what_is_there():
    """Two columns that are the same number: everyone but the mean finds it, and the permuted rows are found."""
    source = np.random.default_rng(0)
    x = source.normal(size=(200, 1)) @ np.ones((1, 2)) + 0.05 * source.normal(size=(200, 2))
    incomplete = x.copy()
    incomplete[150:, 1] = np.nan
    table, truth = HiddenTable(incomplete, x), x[150:]
    for method in ("IterativeImputer", "KNNImputer"):
        assert imputation_scores(method, table, 0)["rmse"] < 0.2
    assert imputation_scores("column mean", table, 0)["rmse"] > 0.7
    received = imputation_scores("IterativeImputer", table, 0)
    assert 0.75 < received["coverage"] <= 1 and received["width"] < 0.5
    strange = OutlierTable(x[:150], truth, np.c_[truth[:, 0], truth[::-1, 1]])
    for method in ("LocalOutlierFactor", "PCA"):
        assert outlier_scores(method, strange, 0)["auroc"] > 0.8
    inside = OutlierTable(x[:150], truth[::2], truth[1::2])
    assert 0.2 < outlier_scores("PCA", inside, 0)["auroc"] < 0.8


def test_paired_differences():
    assert compared([0.9, 0.8, 0.7], [0.8, 0.7, 0.61], larger_is_better=True) == 1
    assert compared([0.9, 0.8, 0.7], [0.8, 0.7, 0.61], larger_is_better=False) == -1
    assert compared([0.9, 0.8, 0.7], [0.8, 0.9, 0.7], larger_is_better=True) == 0
    assert compared([0.9], [0.1], larger_is_better=True) == 0  # one split decides nothing

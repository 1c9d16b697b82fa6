"""Intervals of imputed entries and outlier p-values: finite-sample coverage, averaged over calibration sets."""

from __future__ import annotations

import numpy as np
import pytest

import marquis as mq
from marquis.sklearn import LaplacianAutoencoder

SETS, CALIBRATION, NEW = 120, 39, 60
ALPHA = 0.1


def rows(count: int, source: np.random.Generator) -> np.ndarray:
    """Rows of heavy-tailed noise around a line, which no Gaussian interval fits."""
    t = source.normal(size=(count, 1))
    return t @ np.array([[1.0, -1.0, 0.5, 2.0]]) + 0.3 * source.standard_t(2.5, size=(count, 4))


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(max_iter=5, random_state=0).fit(rows(150, np.random.default_rng(0)))


def test_coverage_of_imputed_entries_and_of_outlier_p_values(model):
    """At least 1 - alpha and at most 1 - alpha + 1/(n + 1), within the error of the simulation (about .005)."""
    source = np.random.default_rng(1)
    held, upper, small = [], [], []
    for number in range(SETS):
        model.conformalize(rows(CALIBRATION, source), 0.5, random_state=number)
        new = rows(NEW, source)
        missing = source.random(new.shape) < 0.5
        low, high = model.impute_interval(np.where(missing, np.nan, new), ALPHA)
        held.append(((low <= new) & (new <= high))[missing].mean())
        counts = (~np.isnan(model._conformal[0].scores)).sum(0)
        upper.append((1 - ALPHA + 1 / (counts + 1)).mean())
        assert np.array_equal(low[~missing], new[~missing]) and np.array_equal(high[~missing], new[~missing])
        small.append((model.outlier_p_values(new) <= ALPHA).mean())
    assert 1 - ALPHA - 0.015 < np.mean(held) < np.mean(upper) + 0.015
    assert np.mean(small) == pytest.approx(ALPHA, abs=0.015)  # 4 of 40 ranks: exactly alpha for continuous scores
    strange = np.array([[3.0, 3.0, 3.0, -6.0]])
    assert model.outlier_p_values(strange) == [1 / (CALIBRATION + 1)]


def test_too_few_rows_and_no_rows(model):
    X = rows(5, np.random.default_rng(2))
    X[0, 0] = np.nan
    with pytest.warns(UserWarning, match="too few"):
        low, high = model.conformalize(rows(6, np.random.default_rng(3))).impute_interval(X)
    assert low[0, 0] == -np.inf and high[0, 0] == np.inf
    with pytest.raises(mq.DataError, match="conformalize"):
        LaplacianAutoencoder(max_iter=1).fit(rows(40, np.random.default_rng(4))).impute_interval(X)

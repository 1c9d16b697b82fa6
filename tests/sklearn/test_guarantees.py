"""Intervals of imputed entries and outlier p-values: finite-sample coverage, averaged over calibration sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
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


def test_constant_columns_are_certain():
    X = np.hstack([rows(60, np.random.default_rng(5)), np.full((60, 1), 7.0)])
    model = LaplacianAutoencoder(max_iter=1, random_state=0).fit(X[:30]).conformalize(X[30:])
    holes = X[:2].copy()
    holes[:, 3:] = np.nan
    low, high = model.impute_interval(holes, 0.3)
    assert (low[:, 4] == 7).all() and (high[:, 4] == 7).all() and (low[:, 3] < high[:, 3]).all()


def mixed(count: int, source: np.random.Generator) -> pd.DataFrame:
    """A number with heavy tails, a kind that follows from it but for noise, a flag that follows from neither."""
    number = source.standard_t(2.5, size=count)
    kind = np.array(["low", "middle", "high"])[np.digitize(number + 0.8 * source.normal(size=count), [-0.7, 0.7])]
    return pd.DataFrame({"number": number, "kind": kind, "flag": source.random(count) < 0.3})


@pytest.fixture(scope="module")
def model_of_mixed() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(max_iter=3, random_state=0).fit(mixed(200, np.random.default_rng(0)))


def test_coverage_of_imputed_categories(model_of_mixed):
    """As for numbers: at least 1 - alpha, and no more than randomised sets may hold."""
    source = np.random.default_rng(6)
    held: dict[str, list[float]] = {"number": [], "kind": [], "flag": []}
    upper = []
    for number in range(60):
        model_of_mixed.conformalize(mixed(CALIBRATION, source), 0.5, random_state=number)
        new = mixed(NEW, source)
        for place, name in enumerate(new):
            missing = source.random(NEW) < 0.5
            holes = new.assign(**{name: new[name].astype(object).where(~missing)})
            if name == "number":
                low, high = model_of_mixed.impute_interval(holes.astype({name: float}), ALPHA)
                held[name].append(((low[:, 0] <= new[name]) & (new[name] <= high[:, 0]))[missing].mean())
                assert np.isnan(low[:, 1:]).all()
                continue
            sets = model_of_mixed.impute_set(holes, ALPHA, random_state=1000 + number)[name]
            inside = sets.to_numpy()[np.arange(NEW), sets.columns.get_indexer(new[name])]
            held[name].append(inside[missing].mean())
            assert inside[~missing].all() and (sets.to_numpy()[~missing].sum(1) == 1).all()
            upper.append(1 - ALPHA + 1 / (len(model_of_mixed._conformal[1][place].scores) + 1))
    for name, shares in held.items():
        assert 1 - ALPHA - 0.02 < np.mean(shares) < np.mean(upper) + 0.02, name


def test_new_levels_and_tables_without_categories(model, model_of_mixed):
    table = mixed(40, np.random.default_rng(7))
    fresh = table.assign(kind="new")
    sets = model_of_mixed.conformalize(fresh, 0.5).impute_set(table.assign(kind=None), 0.2)["kind"]
    assert sets.to_numpy().all()  # calibrated on levels that no set holds
    assert not model_of_mixed.impute_set(fresh)["kind"].to_numpy().any()
    model.conformalize(rows(CALIBRATION, np.random.default_rng(8)))
    with pytest.raises(mq.UnsupportedOperationError, match="impute_interval"):
        model.impute_set(rows(3, np.random.default_rng(9)))

"""Columns without a unit (constant ones), and columns whose unit double precision cannot hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer

import marquis as mq
from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder, LaplacianImputer
from marquis.sklearn.columns import OUTLIER, columns_of, without_copies

SMALL = {"hidden_layer_sizes": (8,), "max_iter": 4, "samples": 5, "random_state": 0}
LABELS = np.array(["number 0", "'k'", "number 2", "number 3"], dtype=object)


def table(constant: float, holes: bool = True) -> np.ndarray:
    """Three columns that vary and, in the second place, one that does not."""
    source = np.random.RandomState(0)
    X = source.normal(size=(60, 4))
    X[:, 2] += 2 * X[:, 0]
    X[:, 1] = constant
    return np.where(source.rand(*X.shape) < 0.2, np.nan, X) if holes else X


@pytest.mark.parametrize("constant", [1e-6, 7.0, 0.0, -0.1, 1e300, 1e-310])
def test_constants_come_back_exactly(constant):
    X = table(constant)
    model = LaplacianAutoencoder(**SMALL).fit(X)
    result, missing = model.impute(X, 4), np.isnan(X[:, 1])
    assert missing.any()
    assert (result.mean[:, 1] == constant).all() and (result.samples[:, :, 1] == constant).all()
    assert (result.std[:, 1] == 0).all() and (result.std[:, 0][np.isnan(X[:, 0])] > 0).all()
    assert (model.sample(20)[:, 1] == constant).all() and len(np.unique(model.sample(20)[:, 0])) == 20
    rows, std = model.inverse_transform(model.transform(X), return_std=True)
    assert (rows[:, 1] == constant).all() and (std[:, 1] == 0).all() and (std[:, [0, 2, 3]] > 0).all()
    for own in (model.noise_std_, model.missing_std_):
        assert own[1] == 0 and (own[[0, 2, 3]] > 0).all()
    filled = LaplacianImputer(LaplacianAutoencoder(**SMALL), random_state=0).fit_transform(X)
    np.testing.assert_array_equal(filled[:, 1], SimpleImputer(strategy="most_frequent").fit_transform(X)[:, 1])


def test_a_constant_column_has_no_influence_on_the_others():
    """As if it were not there: neither on the noise, which zeros that cost nothing would make small, nor on codes."""
    X = table(7.0)
    with_it, without = (LaplacianAutoencoder(**SMALL).fit(part) for part in (X, X[:, [0, 2, 3]]))
    rest = X[:, [0, 2, 3]]
    np.testing.assert_array_equal(with_it.noise_std_[[0, 2, 3]], without.noise_std_)
    for first, second in zip(with_it.transform(X, True), without.transform(rest, True), strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(with_it.score_samples(X), without.score_samples(rest))
    assert with_it.score(X) == without.score(rest)
    np.testing.assert_array_equal(with_it.impute(X).mean[:, [0, 2, 3]], without.impute(rest).mean)


@pytest.mark.parametrize("constant", [1e-6, 7.0, 0.0, 1e300])
@pytest.mark.parametrize("other", [1e-5, 8.0, -1e307, 1e-300])
def test_what_differs_from_a_constant_is_strange(constant, other):
    """By however much; and only that row. An entry that is missing is not."""
    X = table(constant, holes=False)
    model = LaplacianAutoencoder(**SMALL).fit(X)
    changed = X.copy()
    changed[0, 1], changed[1, 1] = other, np.nan
    before, after = model.score_samples(X), model.score_samples(changed)
    np.testing.assert_array_equal(after[1:], before[1:])
    assert after[0] == before[0] + OUTLIER and model.predict(changed)[0] == -1
    np.testing.assert_allclose(model.score(changed), model.score(X) + OUTLIER / 60, rtol=1e-10)
    np.testing.assert_array_equal(model.transform(changed), model.transform(X))


def test_rounding_is_no_difference():
    X = table(0.1, holes=False)
    X[::2, 1] = 0.1 + 1e-16  # the next number but one
    assert len(np.unique(X[:, 1])) == 2
    model = LaplacianAutoencoder(**SMALL).fit(X)
    assert model.noise_std_[1] == 0 and abs(model.sample(1)[0, 1] - 0.1) < 1e-15
    single = X.astype(np.float32).astype(np.float64)
    assert (single[:, 1] != X[:, 1]).all()
    single[:, [0, 2, 3]] = X[:, [0, 2, 3]]
    np.testing.assert_array_equal(model.score_samples(single), model.score_samples(X))


def test_little_variation_is_no_constant():
    """To `StandardScaler` it is one, and gets a scale of 1."""
    X = table(0.0, holes=False)
    X[:, 1] = 1.7e9 + 1e-4 * X[:, 0]
    result = columns_of(X, LABELS)
    assert result.varies.all()
    own = X[:, 1] - 1.7e9
    np.testing.assert_allclose(result.scaler.scale_[1], own.std(), rtol=1e-6)
    np.testing.assert_allclose(result.rows(result.standardised(X))[:, 1] - 1.7e9, own, atol=1e-6)


def test_mean_and_deviation_by_hand():
    X = table(3.0)
    result = columns_of(X, LABELS)
    np.testing.assert_array_equal(result.varies, [True, False, True, True])
    np.testing.assert_allclose(result.scaler.mean_, [*np.nanmean(X[:, :1], 0), 3.0, *np.nanmean(X[:, 2:], 0)])
    z = result.standardised(X)
    np.testing.assert_allclose(np.nanstd(z, 0), 1, rtol=1e-12)
    np.testing.assert_allclose(result.rows(z)[:, [0, 2, 3]], X[:, [0, 2, 3]], rtol=1e-12)
    np.testing.assert_allclose(result.without_units(result.deviations(np.full(3, 0.5))), 0.5, rtol=1e-12)


def test_tables_in_which_nothing_varies():
    for model in (LaplacianAutoencoder(**SMALL), LaplacianImputer(LaplacianAutoencoder(**SMALL))):
        with pytest.raises(mq.DataError, match=r"all 2 columns are constant.*SimpleImputer"):
            model.fit(np.ones((10, 2)) * [3.0, 4.0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e300, 1e-300, 1e-160, 1e155])
def test_units_that_double_precision_cannot_hold(unit):
    X = table(0.0, holes=False)
    X[:, 1] = unit * X[:, 0]
    named = pd.DataFrame(X, columns=["a", "k", "b", "c"])
    message = r"column 'k' has values from -.*to .*variance is not a normal number.*another unit"
    for model in (LaplacianAutoencoder(**SMALL), LaplacianImputer(LaplacianAutoencoder(**SMALL))):
        with pytest.raises(mq.DataError, match=message):
            model.fit(named)
    with pytest.raises(mq.DataError, match="column number 1 has"):
        LaplaceClassifier(rounds=1).fit(X, X[:, 0] > 0)
    with pytest.raises(mq.DataError, match="column 0 of y has"):
        LaplaceRegressor(rounds=1).fit(X[:, [0, 2]], X[:, 1])


def test_columns_have_the_names_of_the_whole_table():
    """An imputer leaves out empty columns before it learns; the errors count them."""
    X = table(0.0, holes=False)
    X[:, 0], X[:, 3] = np.nan, 1e300 * X[:, 3]
    with pytest.raises(mq.DataError, match="column number 3 has"):
        LaplacianImputer(LaplacianAutoencoder(**SMALL)).fit(X)


@pytest.mark.parametrize("unit", [1e140, 1e-140])
def test_units_that_it_can_hold(unit):
    """The same table in another unit, to rounding."""
    X = table(0.0)
    X[:, 1] = X[:, 2] ** 2
    first = LaplacianAutoencoder(**SMALL).fit(X).impute(X)
    scaled = X * [1, unit, 1, 1]
    second = LaplacianAutoencoder(**SMALL).fit(scaled).impute(scaled)
    np.testing.assert_allclose(second.mean, first.mean * [1, unit, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(second.std, first.std * [1, unit, 1, 1], rtol=1e-6)


def test_what_was_pickled_before_constants_were_left_out_still_works():
    X = np.random.default_rng(0).normal(size=(40, 3))
    fitted = LaplacianAutoencoder(max_iter=2, random_state=0).fit(X)
    state = dict(fitted.__getstate__())
    del state["_columns"]
    old = LaplacianAutoencoder()
    old.__setstate__(state)
    assert np.array_equal(old.transform(X), fitted.transform(X))
    assert np.array_equal(old.score_samples(X), fitted.score_samples(X))


def test_copies_of_rows_are_no_more_data():
    rows = np.random.RandomState(1).normal(size=(5, 3))
    copied = LaplacianAutoencoder(**SMALL).fit(np.repeat(rows, 16, 0))
    once = LaplacianAutoencoder(**SMALL).fit(rows)
    np.testing.assert_array_equal(copied.missing_std_, once.missing_std_)
    np.testing.assert_array_equal(copied.score_samples(rows), once.score_samples(rows))


def test_levels_that_repeat_are_data():
    levels = np.random.RandomState(2).randint(3, size=(60, 2)).astype(float)
    assert without_copies(levels) is levels
    assert len(without_copies(levels[:, :1])) == 60
    with_missing = np.repeat(np.array([[1.0, np.nan], [2.0, 3.0]]), 4, 0)
    assert without_copies(with_missing) is with_missing
    constant = np.hstack([np.repeat(np.arange(4.0)[:, None] * [1, -2], 3, 0), np.ones((12, 1))])
    np.testing.assert_array_equal(without_copies(constant), constant[::3])

"""Tables that are not what they seem to scikit-learn: masked arrays, dates, integers with more digits than a float."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import marquis as mq
from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder, LaplacianImputer

SMALL = {"hidden_layer_sizes": (8,), "max_iter": 4, "samples": 5, "random_state": 0}
LARGE = 2**53


def autoencoder() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(**SMALL)


def imputer() -> LaplacianImputer:
    return LaplacianImputer(autoencoder(), random_state=0)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.RandomState(0).normal(size=(40, 3)).round(1) * 10


@pytest.fixture
def mask(numbers) -> np.ndarray:
    return np.random.RandomState(1).rand(*numbers.shape) < 0.2


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, object])
def test_masked_entries_are_missing(numbers, mask, dtype):
    """What stands beneath the mask makes no difference."""
    masked = np.ma.array(np.where(mask, -999, numbers).astype(dtype), mask=mask)
    incomplete = np.where(mask, np.nan, numbers.astype(dtype).astype(np.float64))
    before = masked.data.copy()
    first, second = autoencoder().fit(masked), autoencoder().fit(incomplete)
    for rows in (masked, incomplete):
        np.testing.assert_array_equal(first.impute(rows).missing, mask)
        np.testing.assert_array_equal(first.impute(rows).mean, second.impute(incomplete).mean)
        np.testing.assert_array_equal(first.score_samples(rows), second.score_samples(incomplete))
    passed = masked if dtype == np.float32 else incomplete
    expected = imputer().fit_transform(passed.filled(np.nan) if dtype == np.float32 else passed)
    np.testing.assert_array_equal(imputer().fit_transform(masked), expected)
    np.testing.assert_array_equal(masked.data, before)


@pytest.mark.parametrize("kind", [LaplaceClassifier, LaplaceRegressor])
def test_masked_entries_are_refused_where_nan_is(numbers, mask, kind):
    masked, y = np.ma.array(numbers, mask=mask), (numbers[:, 0] > 0).astype(np.int64)
    model, plain = (kind(rounds=1, hidden_layer_sizes=(3,), random_state=0) for _ in range(2))
    with pytest.raises(ValueError, match="X contains NaN"):
        model.fit(masked, y)
    some = np.ma.array(y, mask=np.arange(40) < 3)
    with pytest.raises(mq.DataError, match="y has 3 masked entries of 40"):
        model.fit(numbers, some)
    model.fit(np.ma.array(numbers), np.ma.array(y))  # nothing masked: an array like others
    np.testing.assert_array_equal(model.predict(numbers), plain.fit(numbers, y).predict(numbers))
    with pytest.raises(ValueError, match="X contains NaN"):
        model.predict(masked)
    with pytest.raises(mq.DataError, match="y has 3 masked entries of 40"):
        model.check(numbers, some)


@pytest.mark.parametrize(
    "dates",
    [
        pd.Series(pd.date_range("2020-01-01", periods=40)).where(np.arange(40) > 2),
        pd.Series(pd.date_range("2020-01-01", periods=40, tz="UTC")),
        pd.Series(pd.timedelta_range("1h", periods=40)),
    ],
    ids=["dates", "zone", "durations"],
)
def test_dates_are_refused_by_name(numbers, dates):
    table = pd.DataFrame(numbers, columns=["a", "b", "c"])
    with_dates = table.assign(when=dates)
    for model in (autoencoder(), imputer()):
        with pytest.raises(mq.DataError, match=r"column 'when' holds dates or durations \((datetime|timedelta)64"):
            model.fit(with_dates)
        with pytest.raises(mq.DataError, match="column 'when' holds"):
            model.fit(table.assign(when=1.0 + table["a"])).transform(with_dates)
    for model in (LaplaceClassifier(), LaplaceRegressor()):
        with pytest.raises(mq.DataError, match="column 'when' holds"):
            model.fit(with_dates, numbers[:, 0] > 0)
    with pytest.raises(mq.DataError, match="y holds dates or durations"):
        LaplaceRegressor().fit(numbers, dates)


def test_arrays_of_dates_are_refused():
    dates = np.array([["2020-01-01", "NaT"], ["2020-01-02", "2020-01-03"]], dtype="datetime64[D]")
    for model in (autoencoder(), imputer()):
        with pytest.raises(mq.DataError, match="column number 0 holds dates"):
            model.fit(dates)


def identifiers(kind: str, largest: int) -> pd.Series:
    values = [largest - i for i in range(40)]
    if kind == "Int64 with holes":
        return pd.Series([None, *values[:-1]], dtype="Int64")
    return pd.Series(values, dtype=kind)


@pytest.mark.parametrize("kind", ["Int64", "Int64 with holes", "int64", "uint64", "object"])
def test_integers_that_would_change_are_refused(numbers, kind):
    table = pd.DataFrame(numbers, columns=["a", "b", "c"])
    for model in (autoencoder(), imputer()):
        with pytest.raises(mq.DataError, match=rf"column 'id' holds integers beyond 2\*\*53 \(up to {LARGE + 1}\)"):
            model.fit(table.assign(id=identifiers(kind, LARGE + 1)))
        exact = table.assign(id=identifiers(kind, LARGE))
        model.fit(exact)
        filled = model.impute(exact).mean if isinstance(model, LaplacianAutoencoder) else model.transform(exact)
        back = pd.Series(np.asarray(filled)[:, 3])
        assert [int(x) for x in back[1:]] == [int(x) for x in exact["id"][1:]]
        with pytest.raises(mq.DataError, match="column 'id'"):
            model.transform(table.assign(id=identifiers(kind, LARGE + 1)))


def test_so_are_those_of_arrays(numbers):
    passed = numbers.astype(np.int64)
    passed[5, 2] = -LARGE - 1
    for rows in (passed, passed.tolist(), np.ma.array(passed)):
        with pytest.raises(mq.DataError, match="column number 2 holds integers beyond"):
            autoencoder().fit(rows)
    hidden = np.ma.array(passed, mask=passed < -LARGE)  # what is masked is no value
    assert autoencoder().fit(hidden).impute(hidden).missing.sum() == 1
    LaplaceRegressor(rounds=1, hidden_layer_sizes=(3,)).fit(
        passed, numbers[:, 0]
    )  # gives no value back: rounding is nothing


def test_columns_that_hold_neither_numbers_nor_levels():
    numbers = np.arange(20.0)
    for values, message in (
        (pd.period_range("2020", periods=20), "'when' holds dates or durations .period"),
        (pd.interval_range(0, 20), "'when' holds intervals"),
        (pd.Series([[1]] * 20), "'when' holds values that cannot be levels"),
    ):
        table = pd.DataFrame({"when": values, "number": numbers})
        for estimator in (LaplacianAutoencoder(**SMALL), LaplacianImputer()):
            with pytest.raises(mq.DataError, match=message):
                estimator.fit(table)

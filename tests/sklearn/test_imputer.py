"""`LaplacianImputer`: the conventions of scikit-learn's imputers, and several complete tables."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import marquis as mq
from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer

SMALL = LaplacianAutoencoder(hidden_layer_sizes=(8,), max_iter=6, samples=5)

# Check by name -> why it cannot apply. Empty: all of them do.
NOT_APPLICABLE: dict[str, str] = {}


@parametrize_with_checks(
    [LaplacianImputer(LaplacianAutoencoder(max_iter=3, samples=5), samples=5, random_state=0)],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine() -> np.ndarray:
    return load_wine().data


@pytest.fixture(scope="module")
def holes(wine) -> np.ndarray:
    hidden = np.random.RandomState(0).rand(*wine.shape) < 0.2
    hidden[:, 0] = False  # one column without holes
    return np.where(hidden, np.nan, wine)


@pytest.fixture(scope="module")
def fitted(holes) -> LaplacianImputer:
    return LaplacianImputer(SMALL, random_state=0).fit(holes)


def test_fills_only_the_holes(fitted, holes):
    filled, seen = fitted.transform(holes), ~np.isnan(holes)
    assert filled.shape == holes.shape and np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[seen], holes[seen])
    np.testing.assert_array_equal(filled, fitted.estimator_.impute(holes, 25).mean)


def test_options_reach_the_autoencoder(fitted, holes):
    other = LaplacianImputer(SMALL, samples=3, random_state=0).fit(holes)
    np.testing.assert_array_equal(other.estimator_.impute(holes, 25).mean, fitted.transform(holes))  # the same fit
    np.testing.assert_array_equal(other.transform(holes), fitted.transform(holes))  # means take no samples
    with pytest.warns(DeprecationWarning, match="rounds= is deprecated"):
        LaplacianImputer(SMALL, rounds=1, random_state=0).fit(holes).transform(holes)


def test_single_precision_comes_back(fitted, holes):
    single = holes.astype(np.float32)
    result = fitted.transform(single)
    assert result.dtype == np.float32 and fitted.transform(single.astype(np.float64)).dtype == np.float64
    seen = ~np.isnan(single)
    np.testing.assert_array_equal(result[seen], single[seen])
    np.testing.assert_allclose(result, fitted.transform(single.astype(np.float64)), rtol=1e-6)
    assert fitted.sample(single, 2).dtype == np.float32
    marked = np.where(seen, single, np.float32(-999.9))  # which is not -999.9 in double precision
    by_marker = LaplacianImputer(fitted.estimator, missing_values=-999.9, random_state=0).fit(marked)
    expected = LaplacianImputer(fitted.estimator, random_state=0).fit(single).transform(single)
    np.testing.assert_array_equal(by_marker.transform(marked), expected)


def test_several_tables(fitted, holes):
    drawn, seen = fitted.sample(holes, 4, random_state=1), ~np.isnan(holes)
    assert drawn.shape == (4, *holes.shape)
    for version in drawn:
        np.testing.assert_array_equal(version[seen], holes[seen])
    assert (drawn[0][~seen] != drawn[1][~seen]).all()
    np.testing.assert_array_equal(drawn, fitted.sample(holes, 4, random_state=1))
    many = fitted.sample(holes, 400)
    std = fitted.estimator_.impute(holes, 400).std  # the same draws: its noise is exact, theirs is drawn
    assert 0.9 < np.mean(many.std(0)[~seen] / std[~seen]) < 1.1


@pytest.mark.parametrize("marker", [-999.0, 0.123])
def test_other_markers_give_the_same_fit(holes, marker):
    """What stands at a missing entry makes no difference, to the last bit."""
    marked = np.where(np.isnan(holes), marker, holes)
    by_nan = LaplacianImputer(SMALL, random_state=0).fit(holes)
    by_number = LaplacianImputer(SMALL, missing_values=marker, random_state=0).fit(marked)
    assert not (holes == marker).any()
    np.testing.assert_array_equal(by_nan.transform(holes), by_number.transform(marked))
    with pytest.raises(ValueError, match="NaN"):
        by_number.transform(holes)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("indicator", [False, True])
def test_empty_columns_and_indicators_as_simple_imputer_has_them(holes, keep, indicator):
    table = pd.DataFrame(holes, columns=load_wine().feature_names).assign(ash=np.nan)
    options = {"keep_empty_features": keep, "add_indicator": indicator}
    ours = LaplacianImputer(SMALL, random_state=0, **options).set_output(transform="pandas").fit(table)
    theirs = SimpleImputer(**options).set_output(transform="pandas").fit(table)
    with pytest.warns(UserWarning, match="ash") if not keep else _nothing():
        expected = theirs.transform(table)
    with pytest.warns(UserWarning, match=r"\['ash'\] had no value in fit and are left out") if not keep else _nothing():
        result = ours.transform(table)
        assert ours.sample(table, 2).shape == (2, *result.shape)
    assert list(result.columns) == list(expected.columns)
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    seen = (~table.isna()).reindex(columns=result.columns, fill_value=True).to_numpy()
    np.testing.assert_array_equal(result.to_numpy(dtype=float)[seen], expected.to_numpy(dtype=float)[seen])
    if keep:
        assert (result["ash"] == 0).all()


class _nothing(warnings.catch_warnings):
    """No warning at all."""

    def __enter__(self):
        super().__enter__()
        warnings.simplefilter("error")


def test_marker_of_nullable_tables(holes):
    table = pd.DataFrame(holes[:60, :3].round(), columns=["a", "b", "c"])
    nullable = table.astype({"b": "Int64"})
    expected = LaplacianImputer(SMALL, random_state=0).fit_transform(table)
    for marker in (np.nan, pd.NA):
        model = LaplacianImputer(SMALL, random_state=0, missing_values=marker)
        np.testing.assert_array_equal(model.fit_transform(nullable), expected)
    for marker in ("?", None):
        with pytest.raises(mq.DataError, match=r"missing_values=.*NaN or a number"):
            LaplacianImputer(SMALL, missing_values=marker).fit(table)


def test_reproducible_and_pickled(fitted, holes):
    again = clone(fitted).fit(holes)
    np.testing.assert_array_equal(fitted.transform(holes), again.transform(holes))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(holes), fitted.transform(holes))
    other = clone(fitted).set_params(random_state=1).fit(holes)
    assert not np.array_equal(fitted.transform(holes), other.transform(holes))
    assert fitted.estimator is not fitted.estimator_ and not hasattr(fitted.estimator, "model_")


def test_pipeline_and_grid_search(holes):
    y = load_wine().target
    pipeline = make_pipeline(LaplacianImputer(SMALL, random_state=0), StandardScaler(), LogisticRegression())
    grid = {"laplacianimputer__estimator__n_components": [1, 3]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(holes, y)
    assert search.best_score_ > 0.85


def test_refusals(fitted, holes):
    with pytest.raises(ValueError, match="13 features"):
        fitted.transform(holes[:, :4])
    with pytest.raises(ValueError, match="infinity"):
        fitted.transform(np.where(holes > 1000, np.inf, holes))
    with pytest.raises(ValueError, match="could not convert"):
        fitted.transform(np.full(holes.shape, "x", dtype=object))
    with pytest.raises(mq.DataError, match="no column has any value"):
        LaplacianImputer(SMALL).fit(np.full((5, 3), np.nan))
    with pytest.raises(mq.DataError, match="estimator= is a SimpleImputer"):
        LaplacianImputer(SimpleImputer()).fit(holes)  # type: ignore[arg-type]
    with pytest.raises(mq.DataError, match="rounds=-1: a whole number from 0 on"):
        LaplacianImputer(SMALL, rounds=-1).fit(holes)
    with pytest.raises(mq.DataError, match="samples='3'"):
        LaplacianImputer(SMALL, samples="3").fit(holes)
    for count in (0, 1.5):
        with pytest.raises(mq.DataError, match=f"n_samples={count}"):
            fitted.sample(holes, count)

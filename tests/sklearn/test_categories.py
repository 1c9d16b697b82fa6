"""Categorical columns of tables: what counts as one, indicators, probabilities, and the way through the estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import marquis as mq
from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer
from marquis.sklearn.categories import Category, categories_of, category_columns, coded_table

FAST = {"hidden_layer_sizes": (8,), "max_iter": 8, "samples": 4, "random_state": 0}


def table(rows=240, seed=0):
    """A number and a kind that follow from each other, a flag that follows from neither, of four types."""
    source = np.random.default_rng(seed)
    kind = source.integers(3, size=rows)
    return pd.DataFrame(
        {
            "size": 3.0 * kind + 0.5 * source.normal(size=rows),
            "kind": pd.Categorical.from_codes(kind, ["small", "middle", "large"], ordered=True),
            "name": np.array(["a", "b", "c"], dtype=object)[kind],
            "flag": source.random(rows) < 0.5,
            "word": pd.array(np.where(kind == 2, "yes", "no"), dtype="string"),
            "other": source.normal(size=rows),
        }
    )


@pytest.fixture(scope="module")
def complete():
    return table()


@pytest.fixture(scope="module")
def holes(complete):
    result, source = complete.copy(), np.random.default_rng(1)
    for name in ("size", "kind", "name", "word"):
        result.loc[source.random(len(result)) < 0.15, name] = np.nan if name == "size" else None
    return result


@pytest.fixture(scope="module")
def fitted(holes):
    return LaplacianAutoencoder(**FAST).fit(holes)


def test_what_is_a_category(complete):
    assert category_columns(complete) == [1, 2, 3, 4]
    numbers = pd.DataFrame({"a": pd.Series([1, None, 2.5], dtype=object), "b": pd.array([1, None, 2], dtype="Int64")})
    assert category_columns(numbers) == [] and category_columns(complete.to_numpy()) == []


def test_probabilities_are_chosen_by_the_likelihood_of_hidden_levels():
    """Sharp predictions that are right get a high power, useless ones the frequencies."""
    share = torch.tensor([0.7, 0.3], dtype=torch.float64)
    category = Category(0, ("a", "b"), object, share, 10)
    levels = torch.tensor([0] * 70 + [1] * 30)
    indicators = torch.from_numpy(category.indicators(levels.numpy().astype(float)))
    np.testing.assert_allclose(indicators * category.scale + share, np.eye(2)[levels], atol=1e-12)
    np.testing.assert_allclose(indicators.var(0, correction=0).sum(), 1.0)
    sharp = category.calibrated(0.8 * indicators, levels)
    assert sharp.power > 1 and sharp.probabilities(0.8 * indicators).max() > 0.99
    useless = category.calibrated(torch.zeros(100, 2, dtype=torch.float64), levels)
    np.testing.assert_allclose(useless.probabilities(torch.zeros(2, dtype=torch.float64)), share, atol=0.02)


def test_levels_are_imputed_in_their_own_type(fitted, holes, complete):
    result = fitted.impute(holes)
    pd.testing.assert_series_equal(result.mean.dtypes, holes.dtypes)
    assert not result.mean.isna().any().any()
    for name in holes:
        seen = holes[name].notna()
        pd.testing.assert_series_equal(result.mean[name][seen], holes[name][seen])
    for name in ("kind", "name", "word"):
        missing = holes[name].isna()
        assert (result.mean[name][missing] == complete[name][missing]).mean() > 0.85
        chances = result.probabilities[name]
        assert list(chances.columns) == fitted.categories_[name] and chances.index.equals(holes.index)
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        np.testing.assert_allclose(result.std[name][missing], 1 - chances[missing].max(axis=1))
        right = [chances.loc[row, complete[name][row]] for row in holes.index[missing]]
        assert np.log(right).mean() > 0.8 * np.log(complete[name].value_counts(normalize=True).max())
        assert (chances[~missing].max(axis=1) == 1).all()
    levels = result.samples[:, holes["kind"].isna(), 1]
    assert set(np.unique(levels)) <= {0.0, 1.0, 2.0}


def test_unseen_levels_stay_and_count(fitted, complete):
    rows = complete[["size", "kind", "name", "flag", "word", "other"]].head(3).copy()
    rows.loc[0, "name"] = "new"
    result = fitted.impute(rows)
    assert result.mean.loc[0, "name"] == "new" and not result.missing.any()
    assert (result.probabilities["name"].loc[0] == 0).all()
    count = next(c.count for c in fitted._categories if c.column == 2)
    gone = rows.copy()
    gone.loc[0, "name"] = None
    expected = fitted.score_samples(gone)[0] - np.log(count + 1)
    np.testing.assert_allclose(fitted.score_samples(rows)[0], expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["kind", "flag", "word"])
def test_unseen_levels_stay_in_columns_of_every_type(fitted, complete, name):
    """A new level of a category became missing, one of a boolean column True."""
    rows = complete[["size", "kind", "name", "flag", "word", "other"]].head(6).copy()
    values = rows[name].astype(object)
    values.iloc[0], values.iloc[1] = "new", None
    rows[name] = pd.Categorical(values) if name == "kind" else values
    imputed = fitted.impute(rows).mean[name]
    assert imputed.iloc[0] == "new" and imputed.iloc[1] in fitted.categories_[name]
    assert imputed.iloc[2:].tolist() == complete[name].iloc[2:6].tolist()
    if name == "kind":
        assert imputed.dtype == pd.CategoricalDtype(["small", "middle", "large", "new"], ordered=True)


def test_strange_combinations_have_low_scores(fitted, complete):
    strange = complete.copy()
    strange["kind"] = complete["kind"].to_numpy()[::-1]
    changed = (strange["kind"] != complete["kind"]).to_numpy()
    assert fitted.score_samples(strange)[changed].mean() < fitted.score_samples(complete)[changed].mean() - 3
    assert np.isfinite(fitted.score(complete))


def test_everything_else(fitted, complete, holes):
    assert fitted.transform(holes).shape == (240, fitted.n_components_)
    new = fitted.sample(50)
    pd.testing.assert_series_equal(new.dtypes, complete.dtypes)
    assert ((new["kind"] == "large") == (new["word"] == "yes")).mean() > 0.7
    back = fitted.inverse_transform(fitted.transform(complete))
    assert (back["kind"] == complete["kind"]).mean() > 0.8
    with pytest.raises(mq.DataError, match="give a pandas table"):
        fitted.transform(np.zeros((2, 6)))
    many = pd.DataFrame({"id": [f"row {i}" for i in range(150)], "x": np.arange(150.0)})
    with pytest.raises(mq.DataError, match="'id' has 150 different levels"):
        LaplacianAutoencoder(**FAST).fit(many)
    with pytest.raises(mq.DataError, match="'k' has no values"):
        LaplacianAutoencoder(**FAST).fit(complete.assign(k=pd.Series([None] * 240, dtype="string")))


def test_one_level_and_nothing_but_categories(complete):
    only = complete[["kind", "name"]].assign(same="x")
    model = LaplacianAutoencoder(**FAST).fit(only)
    requested = only.head(4).copy()
    requested.loc[0, "kind"] = None
    assert model.impute(requested).mean.loc[0, "kind"] == only.loc[0, "kind"]
    certain = model.impute(requested.assign(same=pd.Series(["x", None, "x", "x"], dtype=object)))
    assert certain.mean.loc[1, "same"] == "x" and certain.std.loc[1, "same"] == 0.0
    requested.loc[1, "same"] = "y"
    assert model.score_samples(requested)[1] < model.score_samples(only.head(4))[1] - 5


def test_imputer(holes, complete):
    imputer = LaplacianImputer(LaplacianAutoencoder(**FAST), random_state=0)
    filled = imputer.fit_transform(holes)
    pd.testing.assert_frame_equal(filled, imputer.estimator_.impute(holes).mean)
    tables = imputer.sample(holes, 3)
    assert len(tables) == 3 and all(part.dtypes.equals(holes.dtypes) for part in tables)
    with pytest.raises(mq.DataError, match="add_indicator"):
        LaplacianImputer(add_indicator=True).fit(holes)
    with pytest.raises(mq.DataError, match="keep_empty_features"):
        LaplacianImputer(keep_empty_features=True).fit(holes)
    empty = LaplacianImputer(LaplacianAutoencoder(1, **FAST)).fit(holes[["size", "name"]].assign(none=np.nan))
    with pytest.warns(UserWarning, match=r"\['none'\] had no value"):
        assert list(empty.transform(holes[["size", "name"]].assign(none=np.nan))) == ["size", "name"]


def test_codes(complete):
    categories = categories_of(complete)
    coded = coded_table(complete, categories)
    assert coded["flag"].tolist() == complete["flag"].astype(float).tolist()
    assert categories[0].levels == ("large", "middle", "small") and complete["kind"].dtype.ordered

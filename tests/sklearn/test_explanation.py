"""Why a row is an outlier, whether rows have drifted, and PyOD's view of the detector."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import marquis as mq
from marquis.sklearn import LaplacianAutoencoder

FAST = {"hidden_layer_sizes": (8,), "max_iter": 12, "samples": 4, "random_state": 0}


def rows(count, seed):
    """Three columns that are one number with noise, one that is another, one that is constant."""
    source = np.random.default_rng(seed)
    common = source.normal(size=(count, 1))
    X = np.concatenate([common + 0.2 * source.normal(size=(count, 3)), source.normal(size=(count, 1))], 1)
    return np.append(10 * X + 100, np.full((count, 1), 7.0), 1)


@pytest.fixture(scope="module")
def fitted():
    return LaplacianAutoencoder(**FAST).fit(rows(400, 0))


def test_contributions_add_up_to_the_score(fitted):
    X = rows(60, 1)
    X[3, 1], X[4, 4], X[5, 0] = 150.0, 8.0, np.nan
    result = fitted.explain(X)
    np.testing.assert_allclose(result.contributions.sum(1), -fitted.score_samples(X), rtol=1e-10)
    np.testing.assert_array_equal(result.scores, result.contributions.sum(1))
    assert result.contributions[3].argmax() == 1 and result.contributions[4].argmax() == 4
    assert result.contributions[4, 4] == 50.0 and (np.delete(result.contributions[:, 4], 4) == 0).all()
    near = X[3, [0, 2]].mean()
    assert abs(result.expected[3, 1] - near) < 4 and result.low[3, 1] < result.expected[3, 1] < result.high[3, 1] < 150
    inside = (result.low < X) & (result.high > X)
    assert 0.82 < np.delete(inside, [3, 4, 5], 0)[:, :4].mean() < 0.97
    wide = fitted.explain(X, level=0.99)
    assert (wide.high - wide.low > result.high - result.low)[:, :4].all()


def test_table_and_picture(fitted):
    X = rows(5, 2)
    X[2, 1] = 150.0
    table = pd.DataFrame(X, columns=list("abcde"))
    result = LaplacianAutoencoder(**FAST).fit(pd.DataFrame(rows(400, 0), columns=list("abcde"))).explain(table)
    shown = result.table(2)
    assert shown.index[0] == "b" and list(shown.columns) == ["value", "expected", "low", "high", "contribution"]
    np.testing.assert_allclose(shown["contribution"].sum(), result.scores[2])
    axes = result.plot(2)
    assert len(axes.patches) == 5 and axes.get_yticklabels()[-1].get_text().startswith("b = 150 (")
    in_dollars = dataclasses.replace(result, names=["a", "b in $ of $2020", "c", "d", "e"]).plot(2)
    assert in_dollars.get_yticklabels()[-1].get_text().startswith(r"b in \$ of \$2020 = 150 (")  # no formula
    own = Figure().subplots()
    assert result.plot(0, own) is own
    with pytest.raises(mq.DataError, match="row=9: there are 5 rows"):
        result.table(9)
    with pytest.raises(mq.DataError, match=r"level=1\.5"):
        fitted.explain(X, level=1.5)


def test_categories_are_explained():
    source = np.random.default_rng(0)
    kind = source.integers(2, size=200)
    table = pd.DataFrame({"size": 3.0 * kind + 0.3 * source.normal(size=200), "kind": np.array(["s", "l"])[kind]})
    model = LaplacianAutoencoder(**FAST).fit(table)
    strange = table.head(2).assign(kind=["l" if k == "s" else "s" for k in table["kind"].head(2)])
    result = model.explain(strange)
    np.testing.assert_allclose(result.scores, -model.score_samples(strange), rtol=1e-10)
    assert list(result.expected[:, 1]) == list(table["kind"].head(2)) and list(result.values[:, 1]) == list(
        strange["kind"]
    )
    assert result.table(0).loc["kind", "contribution"] > model.explain(table).contributions[:, 1].mean() + 1
    assert np.isnan(result.table(0)["low"].astype(float)["kind"])


def test_drift(fitted):
    """Rows of the same distribution are called drift about as often as is asked for; others nearly always."""
    called = [bool(fitted.is_drift(rows(80, seed), alpha=0.1)) for seed in range(10, 40)]
    assert np.mean(called) <= 0.3
    shifted = rows(80, 50)
    shifted[:, 1] = np.random.default_rng(0).permutation(shifted[:, 1])
    result = fitted.is_drift(shifted)
    assert result and result.p_value < 1e-4 and set(result.p_values) == {"score", "epistemic"}
    with pytest.raises(mq.DataError, match="at least 5"):
        fitted.is_drift(rows(3, 0))
    with pytest.raises(mq.DataError, match="alpha=2"):
        fitted.is_drift(rows(30, 0), alpha=2)


@pytest.mark.parametrize("count", [44, 120])
def test_drift_compares_scores_of_models_that_have_seen_neither_sample(count):
    """Many columns and few rows: a Gaussian that has seen a row scores it better than one of the same distribution."""
    source = np.random.default_rng(0)
    X, new = (source.normal(size=(n, 15)) @ np.tril(np.ones((15, 15))) for n in (count, 2000))
    model = LaplacianAutoencoder(2, hidden_layer_sizes=(4,), max_iter=1, samples=2, random_state=0).fit(X)
    reference, statistics = model._reference, model._statistics(model._inputs(new), model._unseen)
    honest, error = statistics["score"].mean(), statistics["score"].std() / np.sqrt(len(reference["score"]))
    assert abs(reference["score"].mean() - honest) < 2.5 * error
    assert -model.score_samples(X).mean() < honest - 2.5 * error * np.sqrt(len(reference["score"]) / count)
    assert len(reference["score"]) == (count // 2 if count < 50 else count // 10)
    assert ("epistemic" in reference) == (count >= 50)


def test_rows_of_categories_do_not_drift_by_a_change_of_the_model():
    """Scores of categories take few values: models that differ by little would have no two of them in common."""
    source = np.random.default_rng(0)

    def table(count):
        one = source.random(count) < 0.5
        other = one ^ (source.random(count) < 0.1)
        return pd.DataFrame({"a": np.where(one, "x", "y"), "b": np.where(other, "u", "v")})

    for count in (40, 120):
        model = LaplacianAutoencoder(**FAST).fit(table(count))
        assert model.is_drift(table(300)).p_value > 0.01


def test_detector_of_pyod():
    """Against PyOD itself: its base class, its score to label rules, its clone and its evaluation."""
    pyod = pytest.importorskip("pyod.models.base")
    from pyod.models.ecod import ECOD
    from sklearn.base import clone
    from sklearn.metrics import roc_auc_score

    from marquis.integrations.pyod import LaplacianDetector

    X = rows(300, 0)[:, :4]
    X[:15, 1] += 60
    truth = np.repeat([1, 0], [15, 285])
    detector = LaplacianDetector(contamination=0.05, **FAST).fit(X)
    assert isinstance(detector, pyod.BaseDetector)
    assert set(np.unique(detector.labels_)) == {0, 1} and detector.labels_.sum() == 15
    np.testing.assert_allclose(detector.decision_function(X), detector.decision_scores_, rtol=1e-10)
    np.testing.assert_array_equal(detector.labels_, (detector.decision_scores_ > detector.threshold_).astype(int))
    np.testing.assert_array_equal(detector.predict(X), detector.labels_)
    assert roc_auc_score(truth, detector.decision_scores_) > max(
        0.95, roc_auc_score(truth, ECOD().fit(X).decision_scores_)
    )
    labels, confidence = detector.predict(X, return_confidence=True)
    assert labels.shape == confidence.shape == (300,) and (confidence >= 0).all() and (confidence <= 1).all()
    chances = detector.predict_proba(X)
    assert chances.shape == (300, 2) and roc_auc_score(truth, chances[:, 1]) > 0.95
    assert clone(detector).get_params() == detector.get_params()
    np.testing.assert_allclose(detector.explain(X).scores, detector.decision_scores_, rtol=1e-10)

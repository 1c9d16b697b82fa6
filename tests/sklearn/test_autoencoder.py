"""`marquis.sklearn.LaplacianAutoencoder`: missing entries, codes, outliers, filling, new rows; tools around it."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_wine, make_blobs
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import marquis as mq
from marquis.autoencoders import BaseAutoencoder
from marquis.sklearn import LaplacianAutoencoder

SMALL = {"n_components": 2, "hidden_layer_sizes": (8,), "max_iter": 6, "samples": 5, "random_state": 0}

# Check by name -> why it cannot apply. Empty: all of them do.
NOT_APPLICABLE: dict[str, str] = {}


@parametrize_with_checks(
    [LaplacianAutoencoder(max_iter=3, samples=5, random_state=0)],
    expected_failed_checks=lambda estimator: NOT_APPLICABLE,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("n_components", [2, 6])
def test_intervals_of_missing_values_hold(wine, holes, n_components):
    """A longer code reconstructs better what it sees, and must not be surer about what it does not see."""
    missing, scale = np.isnan(holes), wine.std(0)
    model = LaplacianAutoencoder(n_components, max_iter=40, random_state=0).fit(holes)
    result = model.impute(holes)
    away = ((result.mean - wine) / scale)[missing]
    assert np.sqrt((away**2).mean()) < 0.9 * np.sqrt((((model.scaler_.mean_ - wine) / scale)[missing] ** 2).mean())
    covered = np.abs((result.mean - wine) / np.where(missing, result.std, 1))[missing] < 1.645
    assert 0.85 < covered.mean() < 0.96  # 90 % is promised


@pytest.mark.slow
@parametrize_with_checks(
    [LaplacianAutoencoder(random_state=0)], expected_failed_checks=lambda estimator: NOT_APPLICABLE
)
def test_scikit_learn_contract_with_all_epochs(estimator, check):
    check(estimator)


def with_holes(X: np.ndarray, share: float = 0.2, seed: int = 0) -> np.ndarray:
    return np.where(np.random.RandomState(seed).rand(*X.shape) < share, np.nan, X)


@pytest.fixture(scope="module")
def wine() -> np.ndarray:
    return load_wine().data


@pytest.fixture(scope="module")
def holes(wine) -> np.ndarray:
    return with_holes(wine)


@pytest.fixture(scope="module")
def fitted(holes) -> LaplacianAutoencoder:
    return LaplacianAutoencoder(**{**SMALL, "max_iter": 60}).fit(holes)


def weights(model: LaplacianAutoencoder) -> dict[str, torch.Tensor]:
    return model.model_.posterior.mean


def test_shapes(fitted, holes):
    z, std = fitted.transform(holes, return_std=True)
    assert z.shape == std.shape == (178, 2) and (std > 0).all()
    np.testing.assert_array_equal(z, fitted.transform(holes))
    rows, deviation = fitted.inverse_transform(z, return_std=True)
    assert rows.shape == deviation.shape == holes.shape
    assert (deviation >= fitted.noise_std_).all()
    assert fitted.score_samples(holes).shape == fitted.decision_function(holes).shape == (178,)
    assert fitted.sample(7).shape == (7, 13)
    assert list(fitted.get_feature_names_out()) == ["laplacianautoencoder0", "laplacianautoencoder1"]


def test_codes_of_rows_with_holes_are_less_certain(fitted, wine, holes, monkeypatch):
    """By hand, network by network: complete a row with a sample, encode; complete rows as the encoder has them."""
    few = holes[:60].copy()
    few[0] = wine[0]
    _, std = fitted.transform(few, return_std=True)
    x = fitted._inputs(few)
    prediction = fitted.model_.reconstruct(x, 5, generator=fitted._draws(), keep=True)
    np.testing.assert_allclose(std[0], prediction.latent.std[0], rtol=1e-12)
    source = fitted._draws()
    networks = [fitted.model_.posterior.sample(1, source) for _ in range(5)]
    completed = fitted.impute(few[3:4], 5).samples  # of one row: the same noise
    codes = []
    for s, network in enumerate(networks):
        draw = fitted.model_.model_at({name: value[0] for name, value in network.items()})
        codes.append(draw.encode(fitted.model_.inputs(fitted._inputs(completed[s]), None)))
    np.testing.assert_allclose(std[3:4], torch.stack(codes).std(0), rtol=1e-8)
    assert std[1:].mean() > 1.2 * prediction.latent.std[1:].mean()
    monkeypatch.setattr("marquis.sklearn.autoencoder.ROWS", 7)
    np.testing.assert_allclose(fitted.transform(few, return_std=True)[1], std, rtol=1e-10)


def test_missing_targets_have_no_influence(holes, monkeypatch):
    """The twin is trained towards wild values at the missing entries: the same weights to the last bit."""
    plain = LaplacianAutoencoder(**SMALL).fit(holes)
    original = BaseAutoencoder.loss

    def wild(self, x, mask, seen=None):
        x = torch.where(mask, x, 1e3 * torch.arange(1.0, x.shape[1] + 1, dtype=x.dtype))
        return original(self, x, mask, seen)

    monkeypatch.setattr(BaseAutoencoder, "loss", wild)
    twin = LaplacianAutoencoder(**SMALL).fit(holes)
    for name, value in weights(plain).items():
        assert torch.equal(value, weights(twin)[name])
    assert torch.equal(plain.model_.posterior.precision.diagonal(), twin.model_.posterior.precision.diagonal())
    np.testing.assert_array_equal(plain.score_samples(holes), twin.score_samples(holes))

    # And the twin can tell: observed entries do have influence.
    def shifted(self, x, mask, seen=None):
        return original(self, x + 1, mask, seen)

    monkeypatch.setattr(BaseAutoencoder, "loss", shifted)
    other = LaplacianAutoencoder(**SMALL).fit(holes)
    assert not all(torch.equal(value, weights(other)[name]) for name, value in weights(plain).items())


def test_columns_are_scaled_by_their_observed_entries(wine, holes):
    unit = 2.0 ** np.arange(-6, 7)
    first = LaplacianAutoencoder(**SMALL).fit(holes)
    np.testing.assert_allclose(first.scaler_.mean_, np.nanmean(holes, 0), rtol=1e-12)
    np.testing.assert_allclose(first.scaler_.scale_, np.nanstd(holes, 0), rtol=1e-12)
    second = LaplacianAutoencoder(**SMALL).fit(holes * unit)  # powers of two: the same standardised bits
    np.testing.assert_allclose(first.transform(holes), second.transform(holes * unit), rtol=1e-9)
    np.testing.assert_allclose(first.impute(holes).mean * unit, second.impute(holes * unit).mean, rtol=1e-9)
    np.testing.assert_allclose(first.impute(holes).std * unit, second.impute(holes * unit).std, rtol=1e-9)
    np.testing.assert_allclose(first.noise_std_ * unit, second.noise_std_, rtol=1e-9)


def test_empty_columns(wine):
    X = wine[:60, :4].copy()
    X[:, 2] = np.nan
    with pytest.raises(mq.DataError, match=r"no values in the training rows.*number 2"):
        LaplacianAutoencoder(**SMALL).fit(X)


def test_imputation_leaves_observed_entries_alone(fitted, holes):
    result = fitted.impute(holes, samples=6)
    seen = ~np.isnan(holes)
    np.testing.assert_array_equal(result.missing, ~seen)
    assert result.samples.shape == (6, *holes.shape)
    np.testing.assert_array_equal(result.mean[seen], holes[seen])
    for version in result.samples:
        np.testing.assert_array_equal(version[seen], holes[seen])
    assert np.isfinite(result.mean).all() and np.isfinite(result.samples).all()
    assert (result.std[seen] == 0).all()
    assert (result.std[~seen] > 0).all() and (fitted.missing_std_ > fitted.noise_std_ / 4).all()
    np.testing.assert_array_equal(fitted.impute(holes, samples=2, random_state=3).mean, result.mean)


def test_a_row_does_not_depend_on_its_neighbours(fitted, holes, monkeypatch):
    whole = fitted.impute(holes, samples=3)
    np.testing.assert_allclose(whole.mean[:5], fitted.impute(holes[:5], samples=3).mean, rtol=1e-10)
    expected = {name: getattr(fitted, name)(holes) for name in ("transform", "score_samples", "score")}
    monkeypatch.setattr("marquis.sklearn.autoencoder.ROWS", 50)
    monkeypatch.setattr("marquis.sklearn.entry_predictions.ROWS", 50)
    np.testing.assert_allclose(fitted.impute(holes, samples=3).mean, whole.mean, rtol=1e-10)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(fitted, name)(holes), value, rtol=1e-10)


@pytest.mark.parametrize("source", [lambda: None, lambda: 7, lambda: np.random.RandomState(7)], ids=["none", "7", "RS"])
def test_rows_share_the_networks_but_not_the_noise(fitted, wine, source, monkeypatch):
    """Rows that are alike, in several parts: the same networks say the same, and each has a noise of its own."""
    rows = np.repeat(wine[:1], 90, 0)
    rows[:, 3] = np.nan
    whole = fitted.impute(rows, 4, random_state=source())
    monkeypatch.setattr("marquis.sklearn.autoencoder.ROWS", 30)
    parts = fitted.impute(rows, 4, random_state=source())
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(parts.std, whole.std, rtol=1e-12)
    assert len(np.unique(parts.samples[:, :, 3])) == 4 * 90
    np.testing.assert_array_equal(parts.samples, fitted.impute(rows, 4, random_state=source()).samples)


def test_tables_with_types_that_know_of_missing_values(wine):
    """pandas' nullable columns: what NaN in plain ones gives."""
    numbers = wine[:60, :3].round()
    numbers[::7, 1] = np.nan
    plain = pd.DataFrame(numbers, columns=["a", "b", "c"])
    nullable = plain.astype({"a": "Int64", "b": "Int64", "c": "Float64"})
    assert nullable["b"].isna().sum() == 9
    first, second = LaplacianAutoencoder(**SMALL).fit(plain), LaplacianAutoencoder(**SMALL).fit(nullable)
    pd.testing.assert_frame_equal(second.impute(nullable).mean, first.impute(plain).mean)
    np.testing.assert_array_equal(second.impute(nullable).missing, np.isnan(numbers))


def test_score_is_the_pseudo_likelihood(fitted, holes):
    """Entry by entry, with dense conditionals of the linear model and a block of hidden columns for the network."""
    entries, mixture = fitted._entries, fitted._entries.for_alone
    linear, weight, scale = entries.linear, mixture.weight.numpy(), mixture.scale.numpy()
    assert weight.any(), "the network has a say here"
    covariance = (linear.loadings @ linear.loadings.T + linear.noise.diag()).numpy()
    x, centre, total = fitted._inputs(holes[:4]), linear.mean.numpy(), 0.0
    for i, j in np.argwhere(~np.isnan(holes[:4])):
        others = [k for k in np.flatnonzero(~np.isnan(holes[i])) if k != j]
        slope = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, j])
        mean = centre[j] + slope @ (x[i, others].numpy() - centre[others])
        variance = covariance[j, j] - slope @ covariance[others, j]
        row = x[i : i + 1].clone()
        row[0, next(block for block in entries.blocks if j in block)] = torch.nan
        prediction = fitted.model_.reconstruct(row, 5, generator=fitted._draws())
        mean += weight[j] * float(prediction.mean[0, j] - linear.filled(row)[0, j])
        variance = scale[j] * variance + weight[j] ** 2 * float(prediction.variance[0, j])
        total += -0.5 * (float(x[i, j]) - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    np.testing.assert_allclose(fitted.score(holes[:4]), total / 4, rtol=1e-8)
    assert sorted(torch.cat(entries.blocks).tolist()) == list(range(13))


def test_outliers(wine):
    X, _ = make_blobs(150, 6, centers=3, random_state=0)
    model = LaplacianAutoencoder(contamination=0.1, max_iter=60, hidden_layer_sizes=(16,), random_state=0).fit(X)
    assert (model.predict(X) == -1).sum() == 15
    np.testing.assert_array_equal(model.predict(X), np.where(model.decision_function(X) < 0, -1, 1))
    many = LaplacianAutoencoder(contamination=0.3, max_iter=3, hidden_layer_sizes=(16,), random_state=0).fit(X)
    assert (many.predict(X) == -1).sum() == (many.fit_predict(X) == -1).sum() == 45
    far = np.random.RandomState(0).uniform(-60, 60, (40, 6))
    assert (model.predict(far) == -1).mean() > 0.9


def test_a_row_with_holes_scores_as_one_with_average_entries(fitted, holes):
    nothing = np.full((1, 13), np.nan)
    average = fitted.score_samples(holes).mean()
    np.testing.assert_allclose(fitted.score_samples(nothing)[0], average, rtol=1e-10)
    assert np.isfinite(fitted.transform(nothing)).all()


def test_new_rows_look_like_the_old_ones(wine):
    model = LaplacianAutoencoder(max_iter=40, random_state=0).fit(wine)
    drawn = model.sample(2000, random_state=1)
    assert (np.abs(drawn.mean(0) - wine.mean(0)) < 0.2 * wine.std(0)).all()
    assert (np.abs(drawn.std(0) / wine.std(0) - 1) < 0.35).all()
    np.testing.assert_array_equal(drawn, model.sample(2000, random_state=1))
    assert not np.array_equal(drawn, model.sample(2000, random_state=2))


def test_new_rows_by_hand(fitted, holes):
    """Codes with the mean and the covariance of the training codes, then a network for every few, then the noise."""
    source = fitted._draws()
    normal = torch.randn(10, 2, dtype=torch.float64, generator=source).numpy()
    root = fitted._code_root.numpy()
    z = fitted.transform(holes)
    np.testing.assert_allclose(root @ root.T, np.cov(z.T), rtol=1e-8)
    codes = torch.from_numpy(z.mean(0) + (root @ normal.T).T)
    rows = []
    for two in codes.split(2):  # ten rows, five networks
        network = {name: value[0] for name, value in fitted.model_.posterior.sample(1, source).items()}
        rows.append(fitted.model_.model_at(network).decode(two).mean)
    expected = fitted.scaler_.inverse_transform(torch.cat(rows).detach().numpy())
    noise = torch.randn(10, 13, dtype=torch.float64, generator=source).numpy() * fitted.noise_std_
    np.testing.assert_allclose(fitted.sample(10), expected + noise, rtol=1e-8)
    message = fitted.model_.reconstruct(fitted._inputs(holes), 5, generator=fitted._draws()).mean
    away = np.nanmean((message - fitted._inputs(holes)).numpy() ** 2, 0) ** 0.5
    np.testing.assert_allclose(fitted.noise_std_, fitted.scaler_.scale_ * away, rtol=1e-10)


def test_reproducible_and_alone_with_its_randomness(holes):
    torch.manual_seed(5)
    np.random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = LaplacianAutoencoder(**SMALL).fit(holes)
    first.transform(holes), first.impute(holes, 2), first.sample(3), first.score(holes)
    assert torch.equal(states[0], torch.get_rng_state())
    np.testing.assert_array_equal(states[1], np.random.get_state()[1])
    torch.manual_seed(6)
    again = clone(first).fit(holes)
    np.testing.assert_array_equal(first.transform(holes), again.transform(holes))
    np.testing.assert_array_equal(first.impute(holes).samples, again.impute(holes).samples)
    other = clone(first).set_params(random_state=1).fit(holes)
    assert not np.array_equal(first.transform(holes), other.transform(holes))


def test_pickled_without_the_data(fitted, holes):
    text = pickle.dumps(fitted)
    back = pickle.loads(text)
    np.testing.assert_array_equal(back.transform(holes), fitted.transform(holes))
    np.testing.assert_array_equal(back.impute(holes).samples, fitted.impute(holes).samples)
    np.testing.assert_array_equal(back.predict(holes), fitted.predict(holes))
    source = np.random.default_rng(0)
    rows = source.normal(size=(900, 12)) @ source.normal(
        size=(12, 12)
    )  # no mixture has to be stored, whose size varies
    short, long = (LaplacianAutoencoder(**SMALL).fit(rows[:k]) for k in (110, 900))
    assert abs(len(pickle.dumps(long)) - len(pickle.dumps(short))) < 2000  # 790 rows more would be 76 kB


def test_pipeline_and_grid_search(holes):
    pipeline = make_pipeline(QuantileTransformer(n_quantiles=20), LaplacianAutoencoder(**SMALL))
    search = GridSearchCV(pipeline, {"laplacianautoencoder__n_components": [1, 3]}, cv=2).fit(holes)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.transform(holes).shape == (
        178,
        search.best_params_["laplacianautoencoder__n_components"],
    )
    assert make_pipeline(LaplacianAutoencoder(**SMALL), PCA(1)).fit_transform(holes).shape == (178, 1)


def test_tables(holes):
    table = pd.DataFrame(holes, columns=load_wine().feature_names, index=np.arange(178) + 1000)
    model = LaplacianAutoencoder(**SMALL).set_output(transform="pandas").fit(table)
    codes, std = model.transform(table, return_std=True)
    pd.testing.assert_frame_equal(model.transform(table), codes)
    for part in (codes, std):
        assert isinstance(part, pd.DataFrame) and list(part.index) == list(table.index)
        assert list(part.columns) == list(model.get_feature_names_out())
    arrays = LaplacianAutoencoder(**SMALL).fit(table).transform(table, return_std=True)
    assert all(type(part) is np.ndarray for part in arrays)
    np.testing.assert_array_equal(std, arrays[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "not writable", of torch
        np.testing.assert_array_equal(model.inverse_transform(codes), model.inverse_transform(codes.to_numpy().copy()))
    result = model.impute(table, 2)
    for part in (result.mean, result.std):
        assert isinstance(part, pd.DataFrame) and part.columns.equals(table.columns) and part.index.equals(table.index)
    pd.testing.assert_frame_equal(result.mean.where(table.notna()), table)
    np.testing.assert_array_equal(result.mean, LaplacianAutoencoder(**SMALL).fit(holes).impute(holes, 2).mean)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(table[table.columns[::-1]])
    empty = table.assign(alcohol=np.nan)
    with pytest.raises(mq.DataError, match="'alcohol'"):
        LaplacianAutoencoder(**SMALL).fit(empty)


def test_refusals(fitted, wine):
    for bad in (wine[:, :5], np.where(wine > 1000, np.inf, wine), wine.astype(str).astype(object) + "x"):
        with pytest.raises(ValueError):
            fitted.transform(bad)
        with pytest.raises(ValueError):
            fitted.impute(bad)
    with pytest.raises(ValueError, match="infinity"):
        LaplacianAutoencoder(**SMALL).fit(np.where(wine > 1000, np.inf, wine))
    with pytest.raises(mq.DataError, match="3 columns, those of this estimator 2"):
        fitted.inverse_transform(np.zeros((2, 3)))
    for count in (0, 2.5, "2", None):
        with pytest.raises(mq.DataError, match=f"n_samples={count!r}: a whole number from 1 on"):
            fitted.sample(count)
        with pytest.raises(mq.DataError, match=f"samples={count!r}"):
            fitted.impute(wine, samples=count)
    assert fitted.sample(np.int64(2)).shape == (2, 13)
    for settings, message in [
        ({"n_components": 0}, "n_components=0"),
        ({"hidden_layer_sizes": (8, 0)}, "hidden_layer_sizes"),
        ({"activation": "swish"}, "activation='swish'"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"n_iter_no_change": 0}, "n_iter_no_change=0"),
        ({"learning_rate_init": -1.0}, "learning_rate_init=-1.0"),
        ({"mask_fraction": 1.0}, "mask_fraction=1.0"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
        ({"samples": 0}, "samples=0"),
        ({"validation_fraction": 0.999}, "validation_fraction=0.999 leaves none of 178 rows"),
        ({"contamination": 0.0}, "contamination=0.0"),
        ({"contamination": "auto"}, "contamination='auto'"),
        ({"posterior_temperature": 0.0}, "posterior_temperature=0.0"),
        ({"prior": -1.0}, "prior=-1.0: a positive number"),
        ({"n_components": "two"}, "n_components='two': a whole number from 1 on"),
        ({"n_components": np.nan}, "n_components=nan"),
        ({"samples": "many"}, "samples='many'"),
        ({"hidden_layer_sizes": None}, "hidden_layer_sizes=None"),
        ({"hidden_layer_sizes": "ab"}, "hidden_layer_sizes='ab'"),
        ({"validation_fraction": "a"}, "validation_fraction='a': a fraction"),
        ({"mask_fraction": None}, "mask_fraction=None"),
        ({"max_iter": "3"}, "max_iter='3'"),
        ({"n_iter_no_change": np.inf}, "n_iter_no_change=inf"),
        ({"learning_rate_init": "fast"}, "learning_rate_init='fast'"),
        ({"prior": "weak"}, "prior='weak'"),
        ({"posterior_temperature": None}, "posterior_temperature=None"),
        ({"contamination": np.nan}, "contamination=nan"),
    ]:
        with pytest.raises(mq.MarquisError, match=message):
            LaplacianAutoencoder(**{**SMALL, **settings}).fit(wine)


def test_rounds_are_deprecated(fitted, holes):
    with pytest.warns(DeprecationWarning, match="rounds= is deprecated"):
        again = fitted.impute(holes, 4, rounds=2)
    np.testing.assert_array_equal(again.mean, fitted.impute(holes, 4).mean)
    with pytest.raises(mq.DataError, match="rounds=-1: a whole number from 0 on"):
        fitted.impute(holes, rounds=-1)


def test_deviations_are_larger_where_a_column_does_not_follow_from_the_others():
    source = np.random.RandomState(0)
    common = source.normal(size=(240, 1))
    X = np.concatenate([common + 0.2 * source.normal(size=(240, 3)), source.normal(size=(240, 1))], 1)
    model = LaplacianAutoencoder(2, max_iter=60, hidden_layer_sizes=(16,), random_state=0).fit(X[:160])
    assert model.missing_std_[3] > 2 * model.missing_std_[:3].max()
    for j in range(4):  # and so are the errors
        rows = X[160:].copy()
        rows[:, j] = np.nan
        result = model.impute(rows)
        covered = abs(result.mean[:, j] - X[160:, j]) < 1.645 * result.std[:, j]
        assert 0.8 < covered.mean() < 0.99


def test_length_of_the_code_from_the_data(wine):
    """As many as principal components that explain 95 % of the variance."""
    model = LaplacianAutoencoder(max_iter=1, samples=2, random_state=0).fit(wine)
    values = np.linalg.eigvalsh(np.corrcoef(wine.T))[::-1]
    assert model.n_components_ == model.transform(wine).shape[1] == (np.cumsum(values) / 13 < 0.95).sum() + 1


def test_the_network_adds_what_is_not_linear():
    """A column that is the square of another: the linear model says the mean, the network much more."""
    source = np.random.RandomState(0)
    first = source.uniform(-2, 2, 600)
    X = np.stack([first, first**2 + 0.05 * source.normal(size=600), source.normal(size=600)], 1)
    model = LaplacianAutoencoder(max_iter=80, random_state=0).fit(X[:400])
    requested = X[400:].copy()
    requested[:, 1] = np.nan
    errors = (model.impute(requested).mean - X[400:])[:, 1]
    assert np.sqrt((errors**2).mean()) < 0.5 * X[:, 1].std()
    strange = X[400:].copy()
    strange[:, 1] = X[source.permutation(400)[:200], 1]
    scores = np.concatenate([model.score_samples(X[400:]), model.score_samples(strange)])
    assert roc_auc_score(np.repeat([1, 0], 200), scores) > 0.7  # by a Gaussian alone 0.5


def test_pickles_of_versions_without_a_linear_model(fitted, holes):
    """They go on to impute by the network alone, and say that scores need a new fit."""
    state = {name: value for name, value in fitted.__getstate__().items() if name != "_entries"}
    old = LaplacianAutoencoder.__new__(LaplacianAutoencoder)
    with pytest.warns(FutureWarning, match="fitted by an earlier version"):
        old.__setstate__(state)
    prediction = fitted.model_.reconstruct(fitted._inputs(holes), 5, generator=fitted._draws())
    expected = np.where(np.isnan(holes), fitted._columns.rows(prediction.mean.numpy()), holes)
    np.testing.assert_allclose(old.impute(holes).mean, expected, rtol=1e-10)
    std = np.sqrt((prediction.variance.numpy() * fitted.scaler_.scale_**2) + fitted.missing_std_**2)
    np.testing.assert_allclose(old.impute(holes).std, np.where(np.isnan(holes), std, 0), rtol=1e-8)

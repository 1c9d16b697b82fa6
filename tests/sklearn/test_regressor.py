"""`LaplaceRegressor`: an exact oracle, its units, its shapes, its refusals."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from torch import nn

import marquis as mq
from marquis.errors import DataError
from marquis.sklearn import LaplaceRegressor
from marquis.sklearn.refits import laplace_like


def toy(outputs: int | None = None, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(0)
    X = random.uniform(-2, 2, (n, 1)) * 3 + 10
    columns = [np.sin(X[:, 0] - 10) * 5 * (i + 1) + 100 + 0.3 * random.randn(n) for i in range(outputs or 1)]
    return X, columns[0] if outputs is None else np.stack(columns, 1)


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def fitted() -> LaplaceRegressor:
    X, y = toy()
    return LaplaceRegressor(hidden_layer_sizes=(20,), random_state=0).fit(X, y)


@pytest.mark.parametrize("outputs", [None, 2])
def test_linear_model_is_bayesian_linear_regression(outputs):
    # No hidden layer, nothing tuned: mean and variance have a closed form, here written in the targets' own units.
    random = np.random.RandomState(1)
    X = random.randn(30, 3) * [1.0, 10.0, 0.1] + 5
    y = X @ random.randn(3, 2) * 7 + random.randn(30, 2) + 50
    y = y[:, 0] if outputs is None else y
    new = random.randn(6, 3) + 5
    model = LaplaceRegressor(
        posterior_temperature=1.0,
        hidden_layer_sizes=(),
        structure="full",
        tune=False,
        prior=2.0,
        tol=0.0,
        max_iter=1000,
    )
    mean, std = model.fit(X, y).predict(new, return_std=True)

    centre, spread = X.mean(0), X.std(0)
    design = np.column_stack([(X - centre) / spread, np.ones(30)])
    precision = design.T @ design + 2.0 * np.eye(4)
    targets = y.reshape(30, -1)
    unit = targets.std(0)
    weights = np.linalg.solve(precision, design.T @ ((targets - targets.mean(0)) / unit))
    at = np.column_stack([(new - centre) / spread, np.ones(6)])
    expected = at @ weights * unit + targets.mean(0)
    variance = np.einsum("ni,ij,nj->n", at, np.linalg.inv(precision), at)[:, None] * unit**2
    np.testing.assert_allclose(mean.reshape(6, -1), expected, rtol=1e-6)
    np.testing.assert_allclose(std.reshape(6, -1), np.sqrt(variance + unit**2), rtol=1e-8)
    epistemic, noise = model.predict_variance(new)
    np.testing.assert_allclose(epistemic.reshape(6, -1), variance, rtol=1e-8)
    np.testing.assert_allclose(noise.reshape(6, -1), np.broadcast_to(unit**2, variance.shape), rtol=1e-8)


@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_shapes_follow_the_targets(outputs):
    X, y = toy(outputs)
    model = LaplaceRegressor(hidden_layer_sizes=(5,), rounds=1, random_state=0).fit(X, y)
    mean, std = model.predict(X[:7], return_std=True)
    epistemic, noise = model.predict_variance(X[:7])
    for part in (mean, std, epistemic, noise):
        assert part.shape == y[:7].shape
    np.testing.assert_array_equal(mean, model.predict(X[:7], return_std=True)[0])
    np.testing.assert_allclose(mean, model.predict(X[:7]), rtol=1e-12)
    np.testing.assert_allclose(std, np.sqrt(epistemic + noise), rtol=1e-12)
    assert model.sample_y(X[:7], 4).shape == (*y[:7].shape, 4)


def test_error_bars_grow_away_from_the_data(fitted):
    X, _ = toy()
    distances = np.array([1.0, 3.0, 6.0, 10.0])
    for outside in (X.max() + distances, X.min() - distances):
        epistemic = fitted.predict_variance(outside[:, None])[0]
        assert (np.diff(epistemic) > 0).all()
        assert epistemic[0] > fitted.predict_variance(X)[0].mean()
        assert epistemic[-1] > 30 * fitted.predict_variance(X)[0].mean()
    # Nothing was seen between 5.7 and 7.2: less is known there than on either side, though within the data.
    before, gap, after = fitted.predict_variance(np.array([[5.2], [6.5], [9.5]]))[0]
    assert gap > before and gap > after


def test_noise_is_found_in_the_units_of_the_targets(fitted):
    X, y = toy()
    noise = fitted.predict_variance(X[:1])[1]
    assert 0.2 < np.sqrt(noise[0]) < 0.45  # 0.3 was added
    other = clone(fitted).fit(X, 1024 * y)  # a power of two, so that standardised targets are the same to the last bit
    mean, std = fitted.predict(X, return_std=True)
    scaled_mean, scaled_std = other.predict(X, return_std=True)
    np.testing.assert_allclose(scaled_mean, 1024 * mean, rtol=1e-10)
    np.testing.assert_allclose(scaled_std, 1024 * std, rtol=1e-10)


def test_tuning_beats_the_untuned_noise():
    X, y = toy()
    settings = {"hidden_layer_sizes": (20,), "random_state": 0}
    tuned, untuned = (LaplaceRegressor(tune=tune, **settings).fit(X, y) for tune in (True, False))
    assert tuned.log_evidence_ > untuned.log_evidence_ + 10
    assert tuned.check(X, y).noise_is_tuned
    assert not untuned.check(X, y).noise_is_tuned


def test_training_on_at_the_tuned_prior_keeps_the_noise_tuned():
    X, y = toy()
    laplace = LaplaceRegressor(hidden_layer_sizes=(5,), random_state=0).fit(X, y).laplace_
    inputs, labels = torch.randn(20, 1, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64)
    for tuned in (True, False):
        laplace.noise_tuned = tuned
        other = laplace_like(laplace, laplace.model, [(inputs, labels)], torch.Generator())
        assert other.check([(inputs, labels)]).noise_is_tuned is tuned


def test_draws(fitted):
    X, _ = toy()
    first = fitted.sample_y(X, 3, random_state=1)
    np.testing.assert_array_equal(first, fitted.sample_y(X, 3, random_state=1))
    assert not np.array_equal(first, fitted.sample_y(X, 3, random_state=2))
    functions = fitted.sample_y(X, 400, noise=False)
    epistemic = fitted.predict_variance(X)[0]
    assert (np.abs(functions - fitted.predict(X)[:, None]) < 6 * np.sqrt(epistemic)[:, None]).all()
    # The same weights at every row: functions are smooth, so neighbours move together.
    close = fitted.sample_y(np.array([[10.0], [10.0]]), 5, noise=False)
    np.testing.assert_allclose(close[0], close[1], rtol=1e-10)
    apart = fitted.sample_y(np.array([[10.0], [10.0]]), 5, noise=True)
    assert not np.allclose(apart[0], apart[1], rtol=1e-4)
    _, noise = fitted.predict_variance(X)
    normal = copy.copy(fitted)
    normal.degrees_of_freedom_ = 1e12
    observed = normal.sample_y(X, 400) - functions  # the same functions
    assert np.sqrt(np.mean(observed**2 / noise[:, None])) == pytest.approx(1, abs=0.03)  # 16000 normal numbers


def test_draws_are_those_of_the_posterior(fitted):
    X, _ = toy()
    x = fitted._inputs(X)
    seed = int(np.random.RandomState(3).randint(np.iinfo(np.int32).max))
    deviations = fitted.laplace_.sample(2, torch.Generator().manual_seed(seed))
    names = list(deviations)

    def outputs(*values):
        return torch.func.functional_call(fitted.module_, dict(zip(names, values, strict=True)), (x,))

    mean = tuple(fitted.laplace_.posterior.mean[name] for name in names)
    moves = tuple(deviations[name][1] - at for name, at in zip(names, mean, strict=True))
    value, moved = torch.func.jvp(outputs, mean, moves)
    expected = (value + moved).detach().numpy()[:, 0] * fitted.y_scaler_.scale_ + fitted.y_scaler_.mean_
    drawn = fitted.sample_y(X, 2, random_state=3, noise=False)
    np.testing.assert_allclose(drawn[:, 1], expected, rtol=1e-10)


def test_a_trained_network_as_it_is():
    torch.manual_seed(0)
    X, y = toy()
    network = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double().eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = LaplaceRegressor(network, max_iter=0, scale=False, prior=1.0).fit(X, y)
    x, t = torch.tensor(X), torch.tensor(y)[:, None]
    laplace = mq.Laplace(network, "gaussian", prior=mq.Prior(1.0, "layer")).fit([(x, t)], progress=False)
    laplace.tune()
    expected = laplace.predict(x)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, expected.mean[:, 0].numpy(), rtol=1e-10)
    np.testing.assert_allclose(std, expected.std[:, 0].numpy(), rtol=1e-8)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_diabetes_intervals_hold_what_they_promise():
    X, y = load_diabetes(return_X_y=True)
    model = LaplaceRegressor(random_state=0).fit(X[:330], y[:330])
    mean, std = model.predict(X[330:], return_std=True)
    assert 0.90 < np.mean(np.abs(y[330:] - mean) < 1.96 * std) < 0.99
    assert model.score(X[330:], y[330:]) > 0.4


def test_one_hidden_size_of_any_integer_type():
    X, y = toy()
    plain, numpy, other = (
        LaplaceRegressor(hidden_layer_sizes=size, rounds=1, max_iter=20, random_state=0).fit(X, y).predict(X)
        for size in (3, np.int64(3), np.int64(4))
    )
    np.testing.assert_array_equal(plain, numpy)
    assert not np.array_equal(plain, other)


def test_refusals():
    X, y = toy(2)
    with pytest.raises(mq.DataError, match="1 outputs, the targets 2"):
        LaplaceRegressor(nn.Linear(1, 1)).fit(X, y)
    with pytest.raises(mq.DataError, match=r"expected \[2, outputs\]"):
        LaplaceRegressor(nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))).fit(X, y)
    with pytest.raises(mq.DataError, match="has to give a"):
        LaplaceRegressor(lambda inputs, outputs: "network").fit(X, y)
    with pytest.raises(mq.DataError, match="module= is a str"):
        LaplaceRegressor("network").fit(X, y)
    with pytest.raises(mq.DataError, match="nothing to be uncertain about"):
        LaplaceRegressor(nn.Identity()).fit(X, y)
    for settings, message in [
        ({"activation": "swish"}, "activation='swish'"),
        ({"solver": "sgd"}, "solver='sgd'"),
        ({"max_iter": -1}, "max_iter=-1"),
        ({"rounds": 0}, "rounds=0"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"tune": "grid"}, "tune='grid'"),
        ({"structure": "blocks"}, "structure='blocks'"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": None}, "hidden_layer_sizes=None"),
        ({"max_iter": "all"}, "max_iter='all'"),
        ({"max_iter": 1.5}, "max_iter=1.5"),
        ({"batch_size": None}, "batch_size=None"),
        ({"learning_rate_init": "fast"}, "learning_rate_init='fast'"),
        ({"tol": "a"}, "tol='a'"),
        ({"rounds": None}, "rounds=None"),
        ({"prior": "weak"}, "prior='weak'"),
        ({"device": "toaster"}, "device='toaster'"),
    ]:
        with pytest.raises(mq.MarquisError, match=message):
            LaplaceRegressor(**settings).fit(X, y)
    fitted = LaplaceRegressor(hidden_layer_sizes=(3,), rounds=1).fit(X, y)
    with pytest.raises(mq.DataError, match=r"n_samples=2\.5"):
        fitted.sample_y(X, 2.5)
    with pytest.raises(mq.DataError, match="does not keep its training data"):
        fitted.laplace_.check()


def coverage(distinct: int, copies: int, seeds: range) -> float:
    """Share of new observations that 95 % intervals hold, averaged over smooth functions."""
    held = []
    for seed in seeds:
        source = np.random.default_rng(seed)
        slope, curve = source.normal(size=2)
        x, new = source.uniform(-2, 2, (distinct, 1)), source.uniform(-2, 2, (40, 1))
        truth = lambda z, a=slope, b=curve: a * z[:, 0] + 0.3 * b * z[:, 0] ** 2  # noqa: E731
        y = truth(x) + 0.3 * source.normal(size=distinct)
        model = LaplaceRegressor(hidden_layer_sizes=(10,), random_state=0)
        model.fit(np.repeat(x, copies, 0), np.repeat(y, copies))
        low, high = model.predict_interval(new, 0.05)
        observed = truth(new) + 0.3 * source.normal(size=40)
        held.append(((low <= observed) & (observed <= high)).mean())
    return float(np.mean(held))


def test_few_rows_repeated_are_few_rows():
    assert coverage(5, 16, range(12)) > 0.8
    source = np.random.default_rng(0)
    x, y = source.normal(size=(5, 2)), source.normal(size=5)
    once = LaplaceRegressor(random_state=0, max_iter=30).fit(x, y)
    again = LaplaceRegressor(random_state=0, max_iter=30).fit(np.repeat(x, 7, 0), np.repeat(y, 7))
    assert once.degrees_of_freedom_ == again.degrees_of_freedom_ < 5
    np.testing.assert_allclose(again.predict(x, return_std=True), once.predict(x, return_std=True))
    replicates = LaplaceRegressor(random_state=0, max_iter=30).fit(np.repeat(x, 2, 0), source.normal(size=10))
    assert replicates.degrees_of_freedom_ <= 5  # distinct inputs, not rows


def test_without_a_relation_the_interval_is_the_textbook_one():
    """Where the evidence finds noise only: mean ± t (n - 1) s sqrt(1 + 1/n) of n targets."""
    source = np.random.default_rng(0)
    X, y, new = source.normal(size=(6, 2)), source.normal(size=6), source.normal(size=(4, 2))
    model = LaplaceRegressor(random_state=0).fit(X, y)
    gamma = float(model.laplace_.effective_parameters())
    assert gamma < 1e-3 and model.degrees_of_freedom_ == pytest.approx(6 - 1 - gamma, rel=1e-10)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, y.mean(), atol=1e-3)
    np.testing.assert_allclose(std, y.std(ddof=1) * np.sqrt(1 + 1 / 6), rtol=1e-3)
    low, high = model.predict_interval(new, 0.05)
    np.testing.assert_allclose((high - low) / 2, student_t.ppf(0.975, 5) * std, rtol=1e-3)
    draws = model.sample_y(new[:1], 20000, random_state=1)
    assert abs(np.mean((low[0] <= draws) & (draws <= high[0])) - 0.95) < 4 * np.sqrt(0.05 * 0.95 / 20000)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(new, return_std=True)[1], std)


def test_draws_of_observations_are_those_of_the_student_t():
    """From few rows the tails are heavy: normal draws would nearly all lie within these intervals."""
    source = np.random.default_rng(0)
    X, y = source.normal(size=(6, 2)), source.normal(size=6)
    model = LaplaceRegressor(hidden_layer_sizes=(4,), random_state=0, max_iter=30).fit(X, y)
    assert model.degrees_of_freedom_ < 6
    new = source.normal(size=(1, 2))
    draws = model.sample_y(new, 20000)[0]
    for alpha in (0.05, 0.5):
        low, high = model.predict_interval(new, alpha)
        held = ((low <= draws) & (draws <= high)).mean()
        assert abs(held - (1 - alpha)) < 4 * np.sqrt(alpha * (1 - alpha) / 20000)


def test_student_t_on_ordinary_data_is_normal(diabetes):
    X, y = diabetes
    model = LaplaceRegressor(random_state=0, max_iter=50).fit(X[:300], y[:300])
    assert model.degrees_of_freedom_ > 200
    mean, std = model.predict(X[300:], return_std=True)
    low, high = model.predict_interval(X[300:], 0.05)
    np.testing.assert_allclose((high - low) / (2 * 1.96 * std), 1, rtol=0.01)
    np.testing.assert_allclose((high + low) / 2, mean)


def test_one_row_is_an_error():
    with pytest.raises(DataError, match="one distinct row"):
        LaplaceRegressor().fit([[1.0, 2.0]], [3.0])
    with pytest.raises(DataError, match="one distinct row"):
        LaplaceRegressor().fit([[1.0, 2.0]] * 4, [3.0] * 4)


def test_conformal_intervals_hold_what_they_promise(diabetes):
    """A network that is far too certain; coverage over many splits into calibration and test rows."""
    X, y = diabetes
    model = LaplaceRegressor(random_state=0, max_iter=20, posterior_temperature=0.01).fit(X[:150], y[:150])
    held, rest = [], np.arange(150, len(X))
    for seed in range(60):
        order = np.random.default_rng(seed).permutation(rest)
        model.conformalize(X[order[:99]], y[order[:99]])
        low, high = model.predict_interval(X[order[99:]], 0.2)
        held.append(((low <= y[order[99:]]) & (y[order[99:]] <= high)).mean())
    assert 0.79 < np.mean(held) < 0.825


def test_temperature_is_chosen_by_refits(diabetes):
    X, y = diabetes
    model = LaplaceRegressor(random_state=0, max_iter=40).fit(X[:200], y[:200])
    assert (
        model.posterior_temperature_ in (0.01, 0.03, 0.1, 0.3, 1.0)
        and model.laplace_.posterior_temperature == model.posterior_temperature_
    )
    assert model.held_out_.scores[model.posterior_temperature_] == max(model.held_out_.scores.values())
    fixed = LaplaceRegressor(random_state=0, max_iter=40, posterior_temperature=0.5).fit(X[:200], y[:200])
    assert fixed.posterior_temperature_ == 0.5 and fixed.held_out_ is None
    with pytest.raises(DataError, match="posterior_temperature"):
        LaplaceRegressor(posterior_temperature="cold").fit(X[:20], y[:20])


def test_held_out_rows_choose_the_start_of_the_prior():
    """The evidence takes these fifty points of a sine for noise around a straight line."""
    source = np.random.default_rng(0)
    x = np.concatenate([source.uniform(-3, -0.5, 25), source.uniform(1, 3, 25)])
    truth = np.sin(2 * x)
    y = truth + 0.15 * source.normal(size=50)
    settings = {"hidden_layer_sizes": (20,), "random_state": 0}
    by_evidence = LaplaceRegressor(posterior_temperature=1.0, **settings).fit(x[:, None], y)
    model = LaplaceRegressor(**settings).fit(x[:, None], y)
    errors = [np.sqrt(np.mean((m.predict(x[:, None]) - truth) ** 2)) for m in (by_evidence, model)]
    assert errors[0] > 0.4 and errors[1] < 0.12
    assert model.log_evidence_ < by_evidence.log_evidence_ and model.held_out_.score > -0.6


def test_long_fits_show_progress(monkeypatch):
    """One bar over all trainings, which never exceeds what it announced."""
    import marquis.sklearn.base as base

    bars = []

    class Counted(base.ProgressBar):
        def __init__(self, description, total):
            super().__init__(description, total, wanted=False)
            bars.append(self)

    monkeypatch.setattr(base, "ProgressBar", Counted)
    x = np.random.default_rng(0).normal(size=(40, 2))
    for solver in ("lbfgs", "adam"):
        model = LaplaceRegressor(solver=solver, max_iter=5, random_state=0).fit(x, x.sum(1))
        assert model.n_iter_ <= bars[-1]._done <= bars[-1]._total
    assert len(bars) == 2

"""`LaplaceClassifier`: calibration, labels of any type, tools of scikit-learn around it, randomness."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from torch import nn

import marquis as mq
from marquis.sklearn import LaplaceClassifier

SMALL = {"hidden_layer_sizes": (8,), "rounds": 1, "random_state": 0}


@pytest.fixture(scope="module")
def moons() -> tuple[np.ndarray, np.ndarray]:
    return make_moons(80, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def wine() -> tuple[np.ndarray, np.ndarray]:
    return load_wine(return_X_y=True)


@pytest.fixture(scope="module")
def digits_rows() -> list[np.ndarray]:
    X, y = load_digits(return_X_y=True)
    X, new, y, labels = train_test_split(X, y, train_size=250, random_state=5, stratify=y)
    return [X, y, new, labels]


def at_the_mean(model: LaplaceClassifier, X: np.ndarray) -> np.ndarray:
    logits = model._outputs(X)
    return torch.cat([1 - logits.sigmoid(), logits.sigmoid()], 1).numpy()


@pytest.mark.parametrize("seed", [0, 1])
def test_breast_cancer_is_calibrated(seed):
    X, y = load_breast_cancer(return_X_y=True)
    X, X_new, y, y_new = train_test_split(X, y, random_state=seed, stratify=y)
    model = LaplaceClassifier(random_state=0).fit(X, y)
    assert model.score(X_new, y_new) > 0.94
    assert log_loss(y_new, model.predict_proba(X_new)) <= log_loss(y_new, at_the_mean(model, X_new)) + 0.02
    # Averaging over weights can only take confidence away from a probability of one half on either side.
    assert (np.abs(model.predict_proba(X_new) - 0.5) <= np.abs(at_the_mean(model, X_new) - 0.5) + 1e-12).all()


def test_far_away_less_is_known(moons):
    X, y = moons
    model = LaplaceClassifier(random_state=0).fit(X, y)
    assert model.score(X, y) > 0.93  # and not the straight line, which gets 86 %
    far = np.array([[50.0, -50.0], [-50.0, 50.0], [0.0, 80.0]])
    assert (model.predict_proba(far).max(1) < at_the_mean(model, far).max(1)).all()
    assert (model._predict(far).variance > model._predict(X).variance.mean()).all()


def test_labels_of_any_type(moons):
    X, y = moons
    expected = LaplaceClassifier(**SMALL).fit(X, y)
    for names in (["no", "yes"], [False, True], [-1, 7], [0.0, 1.0]):
        labels = np.array(names)[y]
        model = LaplaceClassifier(**SMALL).fit(X, labels)
        np.testing.assert_array_equal(model.classes_, names)
        np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
        np.testing.assert_array_equal(model.predict(X), np.array(names)[expected.predict(X)])
        assert model.predict(X).dtype == labels.dtype


@pytest.mark.filterwarnings("ignore:link=")
@pytest.mark.parametrize("link", ["quadrature", "probit", "bridge", "mc"])
def test_several_classes(wine, link):
    X, y = wine
    names = np.array(["Barolo", "Grignolino", "Barbera"])
    model = LaplaceClassifier(link=link, **SMALL).fit(X, names[y])
    assert list(model.classes_) == ["Barbera", "Barolo", "Grignolino"]
    probs = model.predict_proba(X)
    assert probs.shape == (178, 3)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(probs, model.predict_proba(X))
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probs, rtol=1e-12)
    assert model.score(X, names[y]) > 0.97
    x, source = model._inputs(X), torch.Generator().manual_seed(0)
    ways = {other: model.laplace_.predict(x, link=other).probs for other in ("quadrature", "probit", "bridge")}
    ways["mc"] = model.laplace_.predict(x).sample(100, source).softmax(-1).mean(0)
    for other, own in ways.items():
        assert np.allclose(own / own.sum(1, keepdim=True), probs, rtol=1e-8) == (other == link)
    draws = model.sample_proba(X[:4], 6)
    assert draws.shape == (4, 3, 6)
    np.testing.assert_allclose(draws.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("link", ["quadrature", "mc"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_row_does_not_depend_on_its_neighbours(wine, link, classes, monkeypatch):
    X, y = wine[0][wine[1] < classes], wine[1][wine[1] < classes]
    model = LaplaceClassifier(link=link, **SMALL).fit(X, y)
    whole = model.predict_proba(X)
    for rows in (slice(3, 4), slice(50, 60), slice(None, None, -1)):
        np.testing.assert_allclose(model.predict_proba(X[rows]), whole[rows], rtol=1e-9)
    for module in ("base", "classifier"):
        monkeypatch.setattr(f"marquis.sklearn.{module}.ROWS", 7)
    np.testing.assert_allclose(model.predict_proba(X), whole, rtol=1e-9)


def test_a_table_with_names(wine):
    X, y = load_wine(return_X_y=True, as_frame=True)
    model = LaplaceClassifier(**SMALL).fit(X, y)
    np.testing.assert_array_equal(model.feature_names_in_, X.columns)
    assert model.n_features_in_ == 13
    np.testing.assert_array_equal(model.predict_proba(X), LaplaceClassifier(**SMALL).fit(*wine).predict_proba(wine[0]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[X.columns[::-1]])
    assert isinstance(X, pd.DataFrame)


@pytest.mark.parametrize("settings", [{}, {"solver": "adam", "max_iter": 5}], ids=["lbfgs", "adam"])
def test_reproducible_and_alone_with_its_randomness(moons, settings):
    X, y = moons
    torch.manual_seed(5)
    np.random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = LaplaceClassifier(**SMALL, **settings).fit(X, y)
    first.sample_proba(X, 2)
    assert torch.equal(states[0], torch.get_rng_state())
    np.testing.assert_array_equal(states[1], np.random.get_state()[1])
    torch.manual_seed(6)
    again = clone(first).fit(X, y)
    np.testing.assert_array_equal(first.predict_proba(X), again.predict_proba(X))
    other = LaplaceClassifier(**{**SMALL, "random_state": 1}, **settings).fit(X, y)
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))


def test_pickled_without_the_data(moons):
    X, y = moons
    model = LaplaceClassifier(**SMALL).fit(X, y)
    text = pickle.dumps(model)
    np.testing.assert_array_equal(pickle.loads(text).predict_proba(X), model.predict_proba(X))
    many = LaplaceClassifier(**SMALL).fit(np.tile(X, (20, 1)), np.tile(y, 20))
    assert abs(len(pickle.dumps(many)) - len(text)) < 2000  # 1600 rows would be 25 kB


def test_pipeline_and_grid_search(moons):
    X, y = moons
    pipeline = make_pipeline(QuantileTransformer(n_quantiles=20), LaplaceClassifier(**SMALL))
    grid = {"laplaceclassifier__structure": ["diagonal", "kronecker"], "laplaceclassifier__prior": [1.0, mq.Prior(2.0)]}
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=2).fit(X, y)
    assert len(search.cv_results_["mean_test_score"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


class TwoLayers(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, 6), nn.BatchNorm1d(6)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(6, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.tanh(self.norm(self.first(x)))))


def test_a_class_as_module_with_dropout_and_batch_statistics(wine):
    X, y = wine
    model = LaplaceClassifier(TwoLayers, rounds=1, max_iter=30, random_state=0).fit(X, y)
    assert isinstance(model.module_, TwoLayers) and not model.module_.training
    assert model.module_.head.out_features == 3
    assert model.score(X, y) > 0.95
    assert torch.equal(model.module_.norm.num_batches_tracked, torch.tensor(model.n_iter_ * 3))  # of 64 rows


@pytest.mark.parametrize("outputs", [1, 2])
def test_an_instance_is_copied(moons, outputs):
    X, y = moons
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs))
    before = [p.clone() for p in network.parameters()]
    model = LaplaceClassifier(network, rounds=1, random_state=0).fit(X, y)
    assert all(torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True))
    assert network[0].weight.dtype == torch.float32 and model.module_[0].weight.dtype == torch.float64
    assert isinstance(model.laplace_.likelihood, mq.Bernoulli if outputs == 1 else mq.Categorical)
    assert model.predict_proba(X).shape == (80, 2)
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"parameters": "last-layer"}, 9),
        ({"parameters": mq.Subnetwork(7, by="magnitude")}, 7),
        ({"parameters": "0.*", "structure": "diagonal"}, 24),
        ({"tune": "gradient"}, 33),
        ({"tune": False}, 33),
        ({"dtype": "float32"}, 33),
        ({"prior": mq.Prior(3.0, "tensor")}, 33),
    ],
    ids=str,
)
def test_settings(moons, settings, weights):
    X, y = moons
    model = LaplaceClassifier(hidden_layer_sizes=8, rounds=2, random_state=0, **settings).fit(X, y)
    assert model.laplace_.posterior.num_random == weights
    assert model.score(X, y) > 0.8
    assert np.isfinite(model.log_evidence_)
    assert model.check(X, y).distance_to_mode < 0.5


def test_verbose_says_what_is_going_on(moons, capsys):
    X, y = moons
    LaplaceClassifier(**SMALL).fit(X, y)
    assert capsys.readouterr().out == ""
    LaplaceClassifier(**SMALL, verbose=1).fit(X, y)
    message = capsys.readouterr().out
    assert "L-BFGS" in message and "prior precision, 0" in message
    LaplaceClassifier(**SMALL, verbose=1, solver="adam", max_iter=10).fit(X, y)
    assert "Adam: epoch 10" in capsys.readouterr().out


def test_refusals(moons, wine):
    X, y = moons
    with pytest.raises(mq.DataError, match="at least two classes"):
        LaplaceClassifier().fit(X, np.zeros(80, dtype=int))
    with pytest.raises(mq.DataError, match="3 outputs; for 2 classes it needs 1 or 2"):
        LaplaceClassifier(nn.Linear(2, 3)).fit(X, y)
    with pytest.raises(mq.DataError, match="1 outputs; for 3 classes it needs 3"):
        LaplaceClassifier(nn.Linear(13, 1)).fit(*wine)
    with pytest.raises(mq.DataError, match="link='logit'"):
        LaplaceClassifier(link="logit").fit(X, y)
    with pytest.raises(mq.NumericalError, match="training diverged"):
        LaplaceClassifier(nn.Sequential(nn.Linear(2, 1), Explosion()), solver="adam").fit(X, y)
    model = LaplaceClassifier(**SMALL).fit(X, y)
    with pytest.raises(mq.DataError, match=r"labels \[2\] were not among"):
        model.check(X, y + 1)


class Explosion(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float("inf") if self.training else x


def test_refits_make_probabilities_no_worse_than_the_network(digits_rows):
    """On separable data the evidence leaves the posterior far too wide; the temperature mends it."""
    X, y, new, labels = digits_rows
    chosen = LaplaceClassifier(random_state=0).fit(X, y)
    warm = LaplaceClassifier(random_state=0, posterior_temperature=1.0).fit(X, y)
    with torch.no_grad():
        network = chosen._outputs(new).softmax(1).numpy()
    losses = [log_loss(labels, probs) for probs in (chosen.predict_proba(new), network, warm.predict_proba(new))]
    assert losses[0] < losses[1] + 0.01 and losses[0] < losses[2] - 0.1
    assert chosen.posterior_temperature_ < 1 and warm.posterior_temperature_ == 1


def test_sets_of_classes(digits_rows):
    X, y, new, labels = digits_rows
    model = LaplaceClassifier(random_state=0, max_iter=30).fit(X, y)
    sets = model.predict_set(new, 0.1)
    probs = model.predict_proba(new)
    assert ((probs * sets).sum(1) >= 0.9 - 1e-12).all() and sets[np.arange(len(new)), probs.argmax(1)].all()
    held = []
    for seed in range(60):
        order = np.random.default_rng(seed).permutation(len(new))
        model.conformalize(new[order[:99]], labels[order[:99]], seed)
        sets = model.predict_set(new[order[99:]], 0.2, seed + 1000)
        held.append(sets[np.arange(len(order) - 99), labels[order[99:]]].mean())
    assert 0.785 < np.mean(held) < 0.825

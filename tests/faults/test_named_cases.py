"""Inputs of the fault study at every door that takes a network and data: right, or an error of ours with a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import marquis as mq
from marquis.errors import MarquisError

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
X, Y, LABELS = torch.randn(6, 3), torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 0])
ONE_HOT = nn.functional.one_hot(LABELS)


def _fit(model: Any, x: Any, y: Any, likelihood: str) -> Any:
    return mq.Laplace(model, likelihood, "diagonal").fit([(x, y)], progress=False).predict(x).mean


def _train(model: Any, x: Any, y: Any, likelihood: str) -> Any:
    return mq.evidence.train(model, [(x, y)], likelihood, epochs=1, burn_in=0, every=1)


DOORS: dict[str, Callable[[Any, Any, Any, str], Any]] = {
    "ggn": lambda model, x, y, likelihood: mq.curvature.ggn(model, x, likelihood),
    "operator": lambda model, x, y, likelihood: mq.curvature.operator(model, [(x, y)], likelihood),
    "hessian": mq.curvature.hessian,
    "fit": _fit,
    "step": lambda model, x, y, likelihood: mq.OnlineLaplace(model, likelihood, num_data=6).step(x, y),
    "kernel": lambda model, x, y, likelihood: mq.kernel(model, 1.0)(x, x),
    "variational": lambda model, x, y, likelihood: mq.variational.VariationalLaplace(
        model, likelihood, num_data=6
    ).step(x, y),
    "mean field": lambda model, x, y, likelihood: mq.variational.MeanFieldVI(model, likelihood, num_data=6).step(x, y),
    "train": _train,
}
WITHOUT_LABELS = ("ggn", "kernel")
"""Doors that never look at labels."""
BY_NETWORK_ALONE = (*WITHOUT_LABELS, "operator")
"""Doors whose result does not depend on the labels' values."""


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def refused(door: str, words: str, model: Any, x: Any, y: Any, likelihood: str = "gaussian") -> None:
    with pytest.raises(MarquisError) as caught:
        DOORS[door](model, x, y, likelihood)
    message = str(caught.value)
    assert any(word in message for word in words.split("|")), message
    assert "registered at" not in message  # torch's list of every kernel


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X.double(), "float64"),
        (X.long(), "int64"),
        (X[:, :2], "mat1 and mat2"),
        (X[0], "[1]|[2]|batch"),
        (X.to("meta"), "meta"),
        (X.numpy(), "torch.as_tensor"),
    ],
    ids=["float64", "integers", "width", "one axis", "meta", "numpy"],
)
def test_inputs_that_the_network_does_not_take(door, x, words):
    refused(door, words, MODEL, x, Y)


@pytest.mark.parametrize("door", DOORS)
def test_sparse_inputs_are_refused_or_right(door):
    if door in ("variational", "mean field"):  # plain training, which torch's dense layers do with sparse inputs too
        results = []
        for x in (X.to_sparse(), X):
            torch.manual_seed(3)
            results.append(float(DOORS[door](MODEL, x, Y, "gaussian")))
        assert results[0] == pytest.approx(results[1], rel=1e-5)
    else:
        refused(door, "to_dense()", MODEL, X.to_sparse(), Y)


@pytest.mark.parametrize("door", [door for door in DOORS if door not in WITHOUT_LABELS])
@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y.numpy(), "torch.as_tensor"),
        (Y.to_sparse(), "to_dense()"),
        (Y.to("meta"), "meta"),
        (Y.to(torch.complex64), "complex"),
    ],
    ids=["numpy", "sparse", "meta", "complex"],
)
def test_targets_of_another_kind(door, y, words):
    refused(door, words, MODEL, X, y)


@pytest.mark.parametrize("door", [door for door in DOORS if door not in BY_NETWORK_ALONE])
@pytest.mark.parametrize(
    ("likelihood", "y", "words"),
    [
        ("gaussian", Y[:, :1], "[6, 1]"),
        ("gaussian", Y[:, 0], "[6]"),
        ("categorical", ONE_HOT, "y.argmax(1)"),
        ("categorical", ONE_HOT.float(), "y.argmax(1)"),
        ("categorical", LABELS + 0.9, "number of each class"),
        ("categorical", LABELS.float(), "y.long()"),
        ("bernoulli", torch.full((6, 2), 2.0), "0 or 1"),
    ],
    ids=["width", "one axis", "one-hot", "one-hot floats", "class 0.9", "float classes", "Bernoulli 2"],
)
def test_targets_that_cannot_be_meant(door, likelihood, y, words):
    refused(door, words, MODEL, X, y, likelihood)


def test_the_advice_for_one_hot_labels_works():
    assert _fit(MODEL, X, ONE_HOT.argmax(1), "categorical").shape == (6, 2)


@pytest.mark.parametrize("door", DOORS)
def test_a_module_without_parameters(door):
    refused(door, "no parameter", nn.Sequential(nn.Tanh()).eval(), X, X)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda m: torch.jit.trace(m, X)], ids=["script", "trace"])
def test_torchscript(door, compiled):
    refused(door, "TorchScript", compiled(nn.Sequential(nn.Linear(3, 2)).eval()), X, Y)


@pytest.mark.parametrize("door", DOORS)
def test_quantised_modules(door):
    quantise = torch.ao.quantization.quantize_dynamic
    refused(door, "no parameter", quantise(nn.Sequential(nn.Linear(3, 2)).eval(), {nn.Linear}), X, Y)


class Mapped(nn.Module):
    """Runs over the samples by `torch.vmap`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return torch.vmap(self.layer)(x)


@pytest.mark.parametrize("door", ["ggn", "fit", "step", "train"])
def test_vmap_inside_forward_is_named_where_a_graph_is_needed(door):
    refused(door, "calls torch.vmap", Mapped().eval(), X, Y)


def test_vmap_inside_forward_works_where_no_graph_is_needed():
    mapped = Mapped().eval()
    vector = torch.linspace(-1, 1, 8)
    product = mq.curvature.operator(mapped, [(X, Y)], "gaussian") @ vector
    torch.testing.assert_close(product, mq.curvature.operator(mapped.layer, [(X, Y)], "gaussian") @ vector)
    torch.testing.assert_close(mq.kernel(mapped, 1.0)(X, X), mq.kernel(mapped.layer, 1.0)(X, X))


class TakesDictionary(nn.Module):
    """Takes one dictionary, not keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch):
        return self.layer(batch["a"])


@pytest.mark.parametrize("door", DOORS)
def test_a_model_that_takes_one_dictionary(door):
    model = TakesDictionary().eval()
    refused(door, "pass (x,)|keyword", model, {"a": X}, Y)
    if door not in ("hessian", "operator"):
        DOORS[door](model, ({"a": X},), Y, "gaussian")
    expected = mq.curvature.ggn(model.layer, X, "gaussian").diagonal()
    torch.testing.assert_close(mq.curvature.ggn(model, ({"a": X},), "gaussian").diagonal(), expected)


def test_what_is_no_loader_and_swapped_arguments():
    la = mq.Laplace(MODEL, "gaussian")
    for loader in (TensorDataset(X, Y), None, 3):
        with pytest.raises(MarquisError, match="DataLoader or a list of batches"):
            la.fit(loader)  # type: ignore[arg-type]
    for call in (
        lambda: la.fit(X, Y),
        lambda: la.fit(X, progress=False),
        lambda: la.fit([(Y, X)], progress=False),
        lambda: mq.Laplace("gaussian", MODEL),
        lambda: mq.curvature.ggn(X, MODEL, "gaussian"),
        lambda: mq.curvature.ggn(MODEL, "gaussian", X),
        lambda: mq.curvature.accumulate([(X, Y)], MODEL, "gaussian"),
        lambda: mq.OnlineLaplace(MODEL, "gaussian", num_data=6).step(Y, X),
    ):
        with pytest.raises(MarquisError):
            call()


def test_no_samples_are_an_empty_batch_of_weights():
    la = mq.Laplace(MODEL, "gaussian").fit([(X, Y)], progress=False)
    assert {name: tuple(w.shape) for name, w in la.sample(0).items()}["0.weight"] == (0, 4, 3)


def test_tables_of_any_size_and_tensors_with_gradients():
    from marquis.sklearn import LaplaceRegressor, LaplacianAutoencoder

    rows = np.random.default_rng(0).normal(size=(40, 3))
    autoencoder = LaplacianAutoencoder(max_iter=2).fit(rows)
    regressor = LaplaceRegressor(max_iter=2, random_state=0).fit(rows, rows[:, 0])
    assert np.isfinite(autoencoder.score_samples(rows * 1e100)).all()
    with pytest.raises(MarquisError, match="rows of X"):
        autoencoder.score_samples(rows * 1e200)
    with pytest.raises(MarquisError):
        regressor.predict(rows * 1e200, return_std=True)
    with_gradient = torch.tensor(rows, requires_grad=True)
    np.testing.assert_array_equal(autoencoder.score_samples(with_gradient), autoencoder.score_samples(rows))
    again = LaplaceRegressor(max_iter=2, random_state=0).fit(with_gradient, with_gradient[:, 0])
    np.testing.assert_array_equal(again.predict(with_gradient), regressor.predict(rows))

"""Mistakes of a new user at every front door: a right answer, or an error of ours that names argument and remedy."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import marquis as mq
from marquis import autoencoders, conformal, data, tasks, tomography
from marquis.errors import MarquisError
from marquis.sklearn import LaplaceClassifier, LaplaceRegressor, LaplacianAutoencoder, LaplacianImputer

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
CONV = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
X, Y, LABELS = torch.randn(8, 3), torch.randn(8, 2), torch.tensor([0, 1] * 4)
ROWS = np.random.default_rng(0).normal(size=(40, 3))
CLASSES = (ROWS[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(ROWS, columns=list("abc"))
BEAM = tomography.ParallelBeam(8, 6)
SINOGRAM = BEAM.forward(torch.rand(8, 8))


class Rows(Dataset[Any]):
    """Yield what a function makes of a number."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


class Forward(nn.Module):
    """Return what a function makes of a dense layer and the input."""

    def __init__(self, make: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(3, 2), make

    def forward(self, x: Any) -> Any:
        return self.make(self.layer, x)


def add_in_place(layer: nn.Module, x: Any) -> Any:
    x += 1
    return layer(x)


def without_gradient(layer: nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return layer(x)


def fit(model: Any = NET, x: Any = X, y: Any = Y, likelihood: Any = "gaussian", **options: Any) -> Any:
    return mq.Laplace(model, likelihood, **options).fit([(x, y)], progress=False)


def fit_loader(loader: Any, likelihood: str = "gaussian") -> Any:
    return mq.Laplace(NET, likelihood).fit(loader, progress=False)


def fit_of(make: Callable[[int], Any], likelihood: str = "gaussian") -> Any:
    return fit_loader(DataLoader(Rows(make), 4), likelihood)


def step(x: Any = X, y: Any = Y, **options: Any) -> Any:
    return mq.OnlineLaplace(NET, "gaussian", num_data=8).step(x, y, **options)


def pair(inputs: int = 3, latent: int = 2, decoded: int = 2, outputs: int = 3, **options: Any) -> Any:
    return autoencoders.Autoencoder(nn.Linear(inputs, latent), nn.Linear(decoded, outputs), **options)


def train(model: Any, x: Any = X) -> Any:
    return autoencoders.fit_in_memory(model, x, max_epochs=1)


def file(name: str, text: str | bytes) -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    return name


def other_file(cut: int | None = None) -> Path:
    """Return a file that another network's Laplace approximation saved, perhaps cut short."""
    path = Path("la.safetensors")
    fit().save(path)
    path.write_bytes(path.read_bytes()[:cut])
    return path


def of_autoencoder() -> Path:
    spec = autoencoders.ModelSpec("ae", (3,), 2, width=0.1)
    autoencoders.save("ae.safetensors", spec.build(0), spec)
    return Path("ae.safetensors")


def regressor() -> Any:
    return LaplaceRegressor(max_iter=2)


def autoencoder() -> Any:
    return LaplacianAutoencoder(max_iter=2)


NAN = X.clone()
NAN[1, 2] = float("nan")
DOUBLE_LAYER, HALF_MASK = nn.Linear(3, 2).double().eval(), torch.rand(8, 8)

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    # data where a loader is needed, and loaders of another form
    "dataset for loader": (lambda: fit_loader(TensorDataset(X, Y)), "loader .*DataLoader or a list of batches"),
    "tensor for loader": (lambda: fit_loader(X), "loader .*DataLoader or a list of batches"),
    "array for loader": (lambda: fit_loader(X.numpy()), "loader .*DataLoader or a list of batches"),
    "table for loader": (lambda: fit_loader(FRAME), "loader .*DataLoader or a list of batches"),
    "tensor for predict_loader": (lambda: fit().predict_loader(X), "loader .*list of batches"),
    "loader for predict": (lambda: fit().predict(DataLoader(TensorDataset(X), 4)), "DataLoader.*predict_loader"),
    "loader of dictionaries": (lambda: fit_of(lambda i: {"x": X[i], "y": Y[i]}), r"\['x'\].*pass \(x,\)"),
    "loader of triples": (lambda: fit_of(lambda i: (X[i], Y[i], i)), r"3 items; expected \(x, y\)"),
    "loader without labels": (lambda: fit_of(lambda i: (X[i],)), r"1 items; expected \(x, y\)"),
    "loader of words": (lambda: fit_of(lambda i: (X[i], "cat"), "categorical"), "y is a tuple of str"),
    "loader of tables": (lambda: fit(x=FRAME), "DataFrame.*to_numpy"),
    "loader of arrays": (lambda: fit(x=X.numpy(), y=Y.numpy()), "x is a NumPy array; pass torch.as_tensor"),
    "loader of lists": (lambda: fit(x=X.tolist()), "type list.*torch.as_tensor"),
    "no batches": (lambda: fit_loader([]), "no batches"),
    "empty batch": (lambda: fit(x=X[:0], y=Y[:0]), "batch is empty"),
    # labels
    "labels [N, 1] for classes": (lambda: fit(y=LABELS[:, None], likelihood="categorical"), r"y\.reshape\(\[8\]\)"),
    "labels [N] for one output": (lambda: fit(nn.Linear(3, 1), y=Y[:, 0]), r"y\.reshape\(\[8, 1\]\)"),
    "classes from 1": (lambda: fit(y=LABELS + 1, likelihood="categorical"), "between 0 and 1, found 1 to 2"),
    "one-hot classes": (lambda: fit(y=nn.functional.one_hot(LABELS), likelihood="categorical"), r"y\.argmax\(1\)"),
    "float classes": (lambda: fit(y=LABELS.float(), likelihood="categorical"), r"y\.long\(\)"),
    "NaN labels": (lambda: fit(y=Y / 0 * 0), "mask=~y.isnan"),
    "classes of one output": (lambda: fit(nn.Linear(3, 1), y=LABELS, likelihood="categorical"), r"use Bernoulli\(\)"),
    # networks
    "class for model": (lambda: fit(nn.Linear), "model is the class Linear"),
    "state for model": (lambda: fit(NET.state_dict()), "model is a OrderedDict"),
    "dropout in training mode": (lambda: fit(nn.Sequential(nn.Linear(3, 2), nn.Dropout())), r"'1'.*model\.eval\(\)"),
    "frozen model": (lambda: fit(nn.Linear(3, 2).requires_grad_(False)), "requires_grad=False"),
    "lazy model": (lambda: fit(nn.LazyLinear(2)), "call the model once"),
    "model on meta": (lambda: fit(nn.Linear(3, 2).to("meta")), "load the weights first"),
    "model of two outputs": (lambda: fit(Forward(lambda f, x: (f(x), x))), "returns a tuple; one tensor"),
    "model under no_grad": (lambda: fit(Forward(without_gradient)), "no_grad"),
    "model that changes its input": (lambda: fit(Forward(add_in_place)), r"x = x \+ 1"),
    "model that branches on data": (lambda: fit(Forward(lambda f, x: f(x) if x.sum() > 0 else -f(x))), "torch.where"),
    "double model": (lambda: fit(DOUBLE_LAYER), r"float64\. Pass x\.to\(torch\.float64\)"),
    "double data": (lambda: fit(x=X.double()), r"float32\. Pass x\.to\(torch\.float32\)"),
    "images HWC": (lambda: fit(CONV, torch.rand(8, 6, 6, 3), LABELS, "categorical"), r"x\.permute\(0, 3, 1, 2\)"),
    "images of bytes": (lambda: fit(CONV, torch.zeros(8, 3, 6, 6).byte(), LABELS, "categorical"), r"x\.to\(torch\.fl"),
    "one image": (lambda: mq.curvature.ggn(CONV, torch.rand(3, 6, 6), "categorical"), r"x\.unsqueeze\(0\)"),
    "one row": (lambda: fit().predict(X[0]), r"batch; of one sample it is x\.unsqueeze\(0\)"),
    "batch for inputs": (lambda: mq.curvature.ggn(NET, (X, Y), "gaussian"), r"tuple is passed as model\(\*x\)"),
    "NaN input": (lambda: fit(x=NAN), "x holds 1 NaN"),
    # options
    "loss for likelihood": (lambda: fit(likelihood=nn.CrossEntropyLoss()), "not a likelihood.*'categorical'"),
    "likelihood for structure": (lambda: mq.Laplace(NET, "kronecker", "gaussian"), "structure='gaussian'.*'kronecker'"),
    "misspelt structure": (lambda: mq.Laplace(NET, "gaussian", "kroneker"), "Did you mean 'kronecker'"),
    "option of another package": (lambda: mq.Laplace(NET, "gaussian", prior_precision=1.0), "Did you mean 'prior'"),
    "unknown option": (lambda: fit().predict(X, n_samples=3), "Did you mean 'samples'"),
    "unknown parameter": (lambda: fit(parameters=["fc.weight"]), r"fc\.weight.*did you mean"),
    "memory as text": (lambda: mq.curvature.ggn(NET, X, "gaussian", memory_limit="1GB"), "memory_limit is '1GB'"),
    "seed for generator": (lambda: fit().predict(X, "sampled", generator=0), "generator is 0.*torch.Generator"),
    "level in percent": (lambda: fit().predict(X).interval(95), "level is 95.*between 0 and 1"),
    "prediction before fit": (lambda: mq.Laplace(NET, "gaussian").predict(X), r"call fit\(loader\) first"),
    "no count of data": (lambda: mq.OnlineLaplace(NET, "gaussian"), "'num_data'"),
    "negative rate": (lambda: step(learning_rate=-1.0), "learning_rate is -1.0"),
    "batch for step": (lambda: step((X, Y), None), r"tuple is passed as model\(\*x\)"),
    # files
    "folder to load": (lambda: mq.load(".", NET), "it is a folder"),
    "no such file": (lambda: mq.load("none.safetensors", NET), "no file none.safetensors"),
    "file of another model": (lambda: mq.load(other_file(), nn.Linear(3, 2)), "other parameters.*0.weight"),
    "interrupted file": (lambda: mq.load(other_file(-100), NET), "truncated"),
    "file of an autoencoder": (lambda: mq.load(of_autoencoder(), NET), "'autoencoder'; expected 'laplace'"),
    "file of torch.save": (lambda: mq.load(file("w.pt", b"PK\3\4" * 9), NET), "no safetensors file"),
    # autoencoders and what they are used for
    "swapped networks": (lambda: train(autoencoders.Autoencoder(nn.Linear(2, 3), nn.Linear(3, 2))), "first layer is"),
    "decoder of another width": (lambda: train(pair(outputs=4)), r"decoder returns \[4\].*shape \[3\]"),
    "classes for an autoencoder": (lambda: train(pair(likelihood="categorical")), "or the likelihood"),
    "other code": (lambda: train(pair(decoded=5)), "mat1 and mat2"),
    "integers": (lambda: train(pair(), X.long()), "x / 255"),
    "table to encode": (lambda: pair().eval().encode(FRAME), "x is a DataFrame.*to_numpy"),
    "NaN to encode": (lambda: pair().eval().encode(NAN), "missing=True"),
    "tensor for a loader": (lambda: autoencoders.fit_posthoc(pair(), X, progress=False), "loader .*list of batches"),
    "other width of OOD data": (lambda: tasks.ood.evaluate(pair(), X, Y, X, progress=False), r"cannot take.*\[2\]"),
    "mask of floats": (lambda: tasks.imputation.impute(pair(), X, (X > 0).float(), progress=False), "must be boolean"),
    "logits for calibration": (lambda: tasks.calibration.expected_calibration_error(Y, LABELS), "apply softmax"),
    "labels of fewer rows": (lambda: tasks.semi_supervised.evaluate(pair(), X, LABELS[:-1], progress=False), "labels"),
    # tables
    "dates": (lambda: regressor().fit(FRAME.assign(d=pd.Timestamp("2020-01-01")), ROWS[:, 0]), "'d' holds dates"),
    "two columns of one name": (lambda: autoencoder().fit(pd.concat([FRAME, FRAME], axis=1)), "'a', 'b', 'c': rename"),
    "no columns": (lambda: regressor().fit(FRAME[[]], ROWS[:, 0]), "40 rows and no columns"),
    "column without values": (lambda: autoencoder().fit(FRAME.assign(d=np.nan)), "'d'"),
    "one class": (lambda: LaplaceClassifier(max_iter=2).fit(ROWS, np.zeros(40)), "one class only"),
    "no training of a new network": (lambda: LaplaceRegressor(max_iter=0).fit(ROWS, ROWS[:, 0]), "max_iter=0"),
    "another estimator to impute": (lambda: LaplacianImputer(LaplaceRegressor()).fit(ROWS), "LaplacianAutoencoder"),
    # conformal prediction
    "alpha in percent": (lambda: conformal.quantile(ROWS[:, 0], 90), "alpha is 90.*between 0 and 1"),
    "logits for sets": (lambda: conformal.ConformalSets.calibrate(ROWS, CLASSES), "apply softmax"),
    "logits for new sets": (lambda: conformal.ConformalSets(ROWS[:, 0]).sets(ROWS), "apply softmax"),
    "swapped for sets": (lambda: conformal.ConformalSets.calibrate(CLASSES, np.full((40, 2), 0.5)), r"\[n, classes\]"),
    "sets for numbers": (lambda: conformal.calibrate(fit().predict(X), Y).sets(fit().predict(X)), r"\.interval\("),
    # tomography
    "degrees": (lambda: tomography.ParallelBeam(8, [0, 45, 90, 135]), "radians, not degrees"),
    "image for data": (lambda: tomography.fbp(torch.rand(8, 8), BEAM), r"\(8, 8\), but ParallelBeam measures"),
    "transposed data": (lambda: tomography.fbp(SINOGRAM.T, BEAM), r"\(13, 6\), but ParallelBeam measures \(6, 13\)"),
    "matrix for measurement": (lambda: tomography.fbp(SINOGRAM, torch.rand(5, 64)), "measurement is a Tensor"),
    "mask of numbers": (lambda: tomography.Inpainting(HALF_MASK), "pass booleans"),
    # data sets
    "empty file": (lambda: data.load(file("e.csv", "")), "e.csv"),
    "names of columns only": (lambda: data.load(file("h.csv", "a,b\n")), "h.csv"),
    "row of another length": (lambda: data.load(file("r.csv", "a,b\n1,2\n3\n")), "r.csv"),
    "two columns of one name in a file": (lambda: data.load(file("d.csv", "a,a\n1,2\n3,4\n")), "d.csv.*a"),
    "infinity in a file": (lambda: data.load(file("i.csv", "a,b\n1,inf\n3,4\n")).x, "i.csv|infinit"),
    "UTF-16": (lambda: data.load(file("u.csv", "a,b\n1,2\n".encode("utf-16"))), "save it as UTF-8"),
    "text with the name of an image": (lambda: data.load(file("p.png", "text")), "p.png"),
    "text with the name of arrays": (lambda: data.load(file("z.npz", "text")), "z.npz"),
    "text with the name of a table": (lambda: data.load(file("z.parquet", "text")), "z.parquet"),
    "folder without images": (lambda: data.load(Path()), "has no images"),
    "misspelt data set": (lambda: data.load("mnitss"), "Did you mean 'mnist'"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_with_its_remedy(mistake):
    call, words = REFUSED[mistake]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(MarquisError) as caught:
            call()
    assert re.search(words, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_there_are_sixty_mistakes():
    assert len(REFUSED) >= 60


RIGHT: dict[str, Callable[[], tuple[Any, Any]]] = {
    "double targets": lambda: (fit(y=Y.double()).predict(X).mean, fit().predict(X).mean),
    "generator of batches": lambda: (fit_loader(b for b in [(X, Y)]).predict(X).mean, fit().predict(X).mean),
    "classes of small integers": lambda: (
        fit(y=LABELS.to(torch.int8), likelihood="classification").predict(X).probs,
        fit(y=LABELS, likelihood="categorical").predict(X).probs,
    ),
    "log-softmax at the end": lambda: (
        mq.curvature.ggn(nn.Sequential(*NET, nn.LogSoftmax(1)).eval(), X, "categorical").diagonal(),
        mq.curvature.ggn(NET, X, "categorical").diagonal(),
    ),
    "wrapped in DataParallel": lambda: (fit(nn.DataParallel(NET)).predict(X).variance, fit().predict(X).variance),
    "numbers as objects": lambda: (
        torch.as_tensor(regressor().set_params(random_state=0).fit(FRAME.astype(object), ROWS[:, 0]).predict(ROWS)),
        torch.as_tensor(regressor().set_params(random_state=0).fit(FRAME, ROWS[:, 0]).predict(ROWS)),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_a_mistake_and_is_none(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, expected = RIGHT[name]()
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "likelihood", "labels"),
    [(nn.Softmax(1), "categorical", LABELS), (nn.Sigmoid(), "bernoulli", LABELS[:, None].repeat(1, 2))],
)
@pytest.mark.parametrize("end", [(), (nn.Flatten(),)])
def test_probabilities_where_logits_are_taken_are_warned_of_once(activation, likelihood, labels, end):
    model = nn.Sequential(nn.Linear(3, 2), activation, *end).eval()
    with pytest.warns(UserWarning, match=r"takes logits and applies \w+ itself.*Leave the activation out"):
        la = fit(model, y=labels, likelihood=likelihood)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la.predict(X)
        fit(model, y=labels, likelihood=likelihood)
        fit(nn.Sequential(nn.Linear(3, 2), activation, nn.Linear(2, 2)).eval(), y=labels, likelihood=likelihood)
        fit(model, likelihood="gaussian")

"""Every door that takes a name takes its other spellings too, with the same answer, and helps with a wrong one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis import data, tasks, variational
from marquis.autoencoders import ModelSpec, architectures
from marquis.curvature import accumulate, ggn, operator, plan
from marquis.errors import MarquisError
from marquis.likelihoods import as_likelihood
from marquis.sklearn import LaplaceClassifier


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


MODEL = network()
X = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BATCHES = [(X, X[:, :2])]


def curvature(structure: str = "diagonal", estimator: str = "exact", **options: object) -> Tensor:
    return ggn(MODEL, X, "gaussian", structure, estimator=estimator, **options).to_dense()


def few_labels(count: str) -> Tensor:
    codes = torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(2))
    options = {"repetitions": 2, "generator": torch.Generator().manual_seed(3)}
    return tasks.semi_supervised.evaluate_codes(codes, torch.arange(20) % 2, (2,), count=count, **options).accuracy


def mean_field(parametrisation: str) -> Tensor:
    method = variational.MeanFieldVI(network(), "gaussian", num_data=5, parametrisation=parametrisation)
    return torch.cat([width.detach().flatten() for width in method.widths])


def variational_loss(**options: str) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    method = variational.VariationalLaplace(network(), "gaussian", num_data=5, generator=generator, **options)
    return method.step(X, X[:, :2]).detach()


def fitted(structure: str = "full", **options: object) -> mq.Laplace:
    return mq.Laplace(MODEL, "gaussian", structure, **options).fit(BATCHES, progress=False)


def classifier() -> mq.Laplace:
    return mq.Laplace(MODEL, "classification").fit([(X, torch.arange(5) % 2)], progress=False)


def tuned(method: str) -> Tensor:
    laplace = fitted()
    laplace.tune(method)
    return laplace.prior.precision


def online(**options: object) -> str:
    learner = mq.OnlineLaplace(network(), "gaussian", num_data=5, **options)
    return repr(learner.settings)


def estimator_scores(**options: object) -> Tensor:
    x, y = X.numpy(), [0, 1, 0, 1, 1]
    model = LaplaceClassifier(max_iter=2, random_state=0, tune=False, **options).fit(x, y)
    return torch.tensor(model.predict_proba(x))


def encoder_shapes(name: str) -> list[torch.Size]:
    encoder, _ = architectures.build((1, 16, 16), 2, 0.125, kind=name, seed=0)
    return [p.shape for p in encoder.parameters()]


# A door: what to call with the name, the name as the package writes it, other spellings of it, and a wrong one.
DOORS = {
    "ggn structure": (curvature, "diagonal", ["diag", "Diagonal"], "dialog"),
    "ggn kronecker": (curvature, "kronecker", ["kron", "KRON"], "kronicker"),
    "ggn low rank": (curvature, "lowrank", ["low-rank", "low_rank", "low rank"], "lowrang"),
    "ggn estimator": (lambda name: curvature(estimator=name), "mixed", ["Mixed", "MIXED"], "mixt"),
    "ggn weight_sharing": (
        lambda name: curvature("kronecker", weight_sharing=name),
        "reduce",
        ["Reduce"],
        "reduced!",
    ),
    "accumulate structure": (
        lambda name: accumulate(MODEL, BATCHES, "gaussian", name, progress=False).to_dense(),
        "kronecker",
        ["kron"],
        "kronecer",
    ),
    "plan structure": (lambda name: plan(MODEL, X, "gaussian", name).result_bytes, "diagonal", ["diag"], "diagonl"),
    "operator kind": (
        lambda name: operator(MODEL, BATCHES, "gaussian", name).matvec(torch.ones(26, dtype=torch.float64)),
        "empirical-fisher",
        ["empirical_fisher", "Empirical Fisher"],
        "empirical",
    ),
    "likelihood": (as_likelihood, "gaussian", ["regression", "Gaussian"], "gausian"),
    "likelihood of classes": (as_likelihood, "categorical", ["classification", "CATEGORICAL"], "categorial"),
    "gaussian noise": (mq.Gaussian, "learnt", ["learned", "Learnt"], "learn it"),
    "variational gradient": (
        lambda name: variational_loss(gradient=name),
        "double-backward",
        ["double_backward", "Double Backward"],
        "double-back",
    ),
    "variational curvature": (lambda name: variational_loss(curvature=name), "hessian", ["Hessian"], "hesian"),
    "variational parametrisation": (mean_field, "softplus", ["soft-plus", "Softplus"], "softpls"),
    "laplace structure": (lambda name: fitted(name).posterior.precision.to_dense(), "kronecker", ["kron"], "kronec"),
    "laplace estimator": (
        lambda name: fitted(estimator=name).posterior.precision.to_dense(),
        "exact",
        ["Exact"],
        "exacte",
    ),
    "laplace parameters": (
        lambda name: fitted(parameters=name).posterior.precision.to_dense(),
        "last-layer",
        ["last_layer", "Last Layer"],
        None,
    ),
    "predict method": (
        lambda name: fitted().predict(X, method=name).variance,
        "linearised",
        ["linearized", "glm"],
        "linear",
    ),
    "predict link": (lambda name: classifier().predict(X, link=name).probs, "bridge", ["Bridge"], "brigde"),
    "tune method": (tuned, "gradient", ["Gradient"], "gradeint"),
    "prior groups": (
        lambda name: mq.Prior(1.0, name).groups,
        "normalised",
        ["normalized", "Normalised"],
        "normalise!",
    ),
    "subnetwork score": (lambda name: repr(mq.Subnetwork(3, name)), "magnitude", ["Magnitude"], None),
    "subnetwork structure": (
        lambda name: repr(mq.Subnetwork(3, "random", structure=name)),
        "diagonal",
        ["diag"],
        "diagonaal",
    ),
    "online structure": (lambda name: online(structure=name), "diagonal", ["diag"], "diagnal"),
    "online preset": (lambda name: online(preset=name), "paper-code", ["paper_code", "Paper Code"], "papercod"),
    "classifier link": (lambda name: estimator_scores(link=name), "probit", ["Probit"], "probitt"),
    "classifier activation": (lambda name: estimator_scores(activation=name), "tanh", ["Tanh"], "tahn"),
    "classifier dtype": (lambda name: estimator_scores(dtype=name), "float64", ["Float64"], "float46"),
    "architecture": (encoder_shapes, "convolutional", ["conv", "Convolutional"], "convolution!"),
    "kind of autoencoder": (
        lambda name: ModelSpec(name, (4,), 2).kind,
        "lae-posthoc",
        ["lae_posthoc", "LAE-posthoc"],
        "lae-postoc",
    ),
    "few labels": (few_labels, "data", ["Data"], "date"),
    "split": (lambda name: data.load("digits", name).x, "test", ["Test"], "tests"),
    "data set": (lambda name: data.load(name, "test").x, "digits", ["Digits", "DIGITS"], "digit5"),
}


def same(one: object, two: object) -> bool:
    return torch.equal(one, two) if isinstance(one, Tensor) else repr(one) == repr(two)


@pytest.mark.parametrize(
    ("door", "alias"), [(door, alias) for door, row in DOORS.items() for alias in row[2]], ids=lambda text: text
)
def test_other_spellings_give_the_same_answer(door, alias):
    call, name, _, _ = DOORS[door]
    assert same(call(alias), call(name))


@pytest.mark.parametrize("door", [door for door, row in DOORS.items() if row[3]])  # else any name is a pattern
def test_a_wrong_name_gets_a_suggestion(door):
    call, name, _, wrong = DOORS[door]
    with pytest.raises(MarquisError, match=rf"(?s)is not known\. Did you mean '{name}'\? Choose one of .*'{name}'"):
        call(wrong)

"""Every door that takes a name takes its other spellings too, with the same answer, and helps with a wrong one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis import data, tasks, variational
from marquis.curvature import accumulate, ggn, operator, plan
from marquis.errors import MarquisError
from marquis.likelihoods import as_likelihood


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


@pytest.mark.parametrize("door", DOORS)
def test_a_wrong_name_gets_a_suggestion(door):
    call, name, _, wrong = DOORS[door]
    with pytest.raises(MarquisError, match=rf"(?s)is not known\. Did you mean '{name}'\? Choose one of .*'{name}'"):
        call(wrong)

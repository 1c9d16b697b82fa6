"""Sketched columns, the Monte-Carlo Fisher and the empirical Fisher: unbiased by enumeration, never by luck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from oracle import assert_matches, assert_structure, built, dense_ggn, double, rows
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import empirical_fisher, fisher, ggn
from networks import Net, TiedAutoencoder

STRUCTURES = ("diagonal", "block", "full", "lowrank")


def small() -> nn.Module:
    return built(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)))


def all_signs(count: int) -> Iterator[Tensor]:
    for signs in product((0, 1), repeat=count):
        yield torch.tensor(signs, dtype=torch.int8)


def averaged_over_signs(monkeypatch: pytest.MonkeyPatch, count: int, compute: Callable[[], Tensor]) -> Tensor:
    """The mean over every outcome of the random signs, which are drawn as 0 or 1."""
    total, outcomes = torch.zeros(()), 0
    for signs in all_signs(count):
        monkeypatch.setattr(torch, "randint", lambda low, high, shape, signs=signs, **_: signs.view(shape))
        total = total + compute()
        outcomes += 1
    monkeypatch.undo()
    return total / outcomes


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical", "bernoulli"])
def test_the_mean_over_all_signs_is_the_ggn(likelihood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small(), double(2, 2)
    count = 2 * (2 if likelihood == "categorical" else 3)  # two samples, each with the coordinates of its root
    oracle = dense_ggn(model, x, likelihood)
    for structure in STRUCTURES:
        mean = averaged_over_signs(
            monkeypatch, count, lambda s=structure: ggn(model, x, likelihood, s, "sketched").to_dense()
        )
        expected = {"diagonal": oracle.diagonal().diag(), "block": oracle * _same_module(model)}.get(structure, oracle)
        assert_matches(mean, expected)


def _same_module(model: nn.Module) -> Tensor:
    owner = torch.cat([torch.full((p.numel(),), float(n.split(".")[0])) for n, p in model.named_parameters()])
    return (owner[:, None] == owner[None, :]).double()


def test_the_mean_of_the_kronecker_factors_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input factor is not random and the output factor is unbiased, so the mean is the exact structure."""
    model, x = small(), double(2, 2)
    mean = averaged_over_signs(monkeypatch, 4, lambda: ggn(model, x, "categorical", "kronecker", "sketched").to_dense())
    assert_matches(mean, ggn(model, x, "categorical", "kronecker").to_dense())


def test_two_probes_average_two(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small(), double(1, 2)
    one = averaged_over_signs(monkeypatch, 3, lambda: ggn(model, x, "gaussian", "full", "sketched").to_dense())
    two = averaged_over_signs(
        monkeypatch, 6, lambda: ggn(model, x, "gaussian", "full", "sketched", probes=2).to_dense()
    )
    assert_matches(two, one)


def test_samples_stay_apart_and_probes_shrink_the_error() -> None:
    """One outcome: columns of one sample, never products of two; more probes than outputs are allowed."""
    model, x = small(), double(3, 2)
    jacobian = rows(model, x)[1]
    for probes in (1, 2, 40):
        signs = torch.randint(0, 2, (probes, 3, 3), generator=torch.Generator().manual_seed(5)) * 2.0 - 1
        gradients = torch.einsum("kno,nop->knp", signs.double(), jacobian) / probes**0.5
        expected = torch.einsum("knp,knq->pq", gradients, gradients)
        ours = ggn(model, x, "gaussian", "full", "sketched", probes=probes, generator=torch.Generator().manual_seed(5))
        assert_matches(ours.to_dense(), expected)


def test_the_generator_decides_and_the_global_state_stays() -> None:
    model, x = small(), double(3, 2)
    state = torch.get_rng_state()
    first, again, other = (
        ggn(model, x, "gaussian", "diagonal", "sketched", generator=torch.Generator().manual_seed(seed)).diagonal()
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("estimator", ["exact", "sketched"])
def test_every_structure_sees_the_same_columns(estimator: str) -> None:
    model = built(
        Net(lambda m, x: m.k(torch.tanh(m.l(x))) + m.t(x), l=nn.Linear(5, 3), k=nn.Linear(3, 5), t=TiedAutoencoder())
    )
    x = double(3, 5)
    named = dict(model.named_parameters())
    full = ggn(model, x, "bernoulli", "full", estimator, generator=torch.Generator().manual_seed(0)).to_dense()
    for structure in ("diagonal", "block", "lowrank"):
        ours = ggn(model, x, "bernoulli", structure, estimator, generator=torch.Generator().manual_seed(0))
        assert_structure(ours, structure, full, named)


def test_no_probes_are_refused() -> None:
    with pytest.raises(mq.DataError, match="probes=0"):
        ggn(small(), double(2, 2), "gaussian", "diagonal", "sketched", probes=0)
    with pytest.raises(mq.DataError, match="samples is 0"):
        fisher(small(), double(2, 2), "gaussian", samples=0)


# --- the Fisher -------------------------------------------------------------------------------------------------------


def enumerated_fisher(monkeypatch: pytest.MonkeyPatch, model: nn.Module, x: Tensor, structure: str) -> Tensor:
    """Every combination of labels, weighted by its probability under the model."""
    likelihood = mq.Categorical()
    with torch.no_grad():
        probabilities = model(x).softmax(1)
    total: Any = 0.0
    for labels in product(range(probabilities.shape[1]), repeat=len(x)):
        y = torch.tensor(labels)
        weight = probabilities.gather(1, y[:, None]).prod()
        monkeypatch.setattr(mq.Categorical, "sample", lambda self, f, generator=None, y=y: y)
        total = total + weight * fisher(model, x, likelihood, structure).to_dense()
    monkeypatch.undo()
    return total


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_the_mean_over_all_labels_is_the_ggn(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small(), double(2, 2)
    oracle = dense_ggn(model, x, "categorical")
    expected = oracle if structure == "full" else oracle.diagonal().diag()
    assert_matches(enumerated_fisher(monkeypatch, model, x, structure), expected)


def test_the_empirical_fisher_is_its_own_matrix() -> None:
    model, x = small(), double(4, 2)
    y = torch.tensor([0, 2, 1, 1])
    f, jacobian = rows(model, x)
    residual = f.softmax(1) - torch.nn.functional.one_hot(y, 3)
    gradients = torch.einsum("no,nop->np", residual, jacobian)
    expected = gradients.t() @ gradients
    for structure in STRUCTURES:
        ours = empirical_fisher(model, x, y, "categorical", structure)
        assert_structure(ours, structure, expected, dict(model.named_parameters()))
    true = dense_ggn(model, x, "categorical")
    assert float((expected - true).abs().max() / true.abs().max()) > 1e-2, "it must not be mistaken for the Fisher"


def test_labels_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(mq.DataError, match="labels must have shape"):
        empirical_fisher(small(), double(4, 2), torch.zeros(4, 1, dtype=torch.long), "categorical")


def test_heteroscedastic_curvature_is_the_fisher_and_not_the_hessian() -> None:
    model = built(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4)))
    x = double(3, 2)
    f, jacobian = rows(model, x)
    log_variance = f[:, 2:]
    diagonal = torch.cat([(-log_variance).exp(), torch.full_like(log_variance, 0.5)], 1)
    expected = torch.einsum("nop,no,noq->pq", jacobian, diagonal, jacobian)
    assert_matches(ggn(model, x, "heteroscedastic", "full").to_dense(), expected)

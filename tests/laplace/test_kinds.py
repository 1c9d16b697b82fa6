"""Other curvatures than the GGN, and more data later."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.curvature import operator
from marquis.errors import ModelMismatchError, NumericalError, UnsupportedOperationError


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()


def data(n=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=generator)


@pytest.mark.parametrize("kind", ["ggn", "empirical-fisher", "hessian"])
def test_kinds_are_those_of_the_operator(kind, tmp_path):
    model, (x, y) = network(), data()
    loader = [(x[:13], y[:13]), (x[13:], y[13:])]
    la = mq.Laplace(model, "categorical", "full", kind=kind, prior=100.0).fit(loader, progress=False)
    dense = operator(model, loader, "categorical", kind).to_dense()
    torch.testing.assert_close(la.curvature.to_dense(), dense)
    assert la.statistics.n == 20
    la.save(tmp_path / "kind.mq")
    again = mq.load(tmp_path / "kind.mq", model)
    assert again.kind == kind
    torch.testing.assert_close(again.predict(x).variance, la.predict(x).variance)


def test_the_monte_carlo_fisher_is_unbiased_for_the_ggn():
    model, (x, y) = network(), data(6)
    la = mq.Laplace(model, "categorical", "full", kind="fisher")
    sampled = la.fit([(x, y)] * 1, probes=4000, generator=torch.Generator().manual_seed(0), progress=False)
    exact = mq.Laplace(model, "categorical", "full").fit([(x, y)], progress=False).curvature.to_dense()
    assert (sampled.curvature.to_dense() - exact).norm() < 0.05 * exact.norm()
    assert not torch.allclose(sampled.curvature.to_dense(), exact)


def test_a_hessian_that_is_not_positive_definite_says_what_to_do():
    model, (x, y) = network(), data()
    la = mq.Laplace(model, "categorical", "full", kind="hessian", prior=1e-6).fit([(x, y)], progress=False)
    with pytest.raises(NumericalError, match=r"no minimum.*kind='ggn'"):
        la.predict(x)
    diagonal = mq.Laplace(model, "categorical", "diagonal", kind="hessian", prior=100.0).fit([(x, y)], progress=False)
    torch.testing.assert_close(diagonal.curvature.diagonal(), la.curvature.diagonal())
    with pytest.raises(UnsupportedOperationError):
        mq.Laplace(model, "categorical", "kronecker", kind="hessian").fit([(x, y)], progress=False)
    with pytest.raises(UnsupportedOperationError, match="square of its noise"):
        mq.Laplace(model, "gaussian", kind="empirical-fisher").fit([(x, x[:, [0, 1, 0]])], progress=False)


@pytest.mark.parametrize("structure", ["kronecker", "diagonal", "full", "lowrank", "block"])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_more_data_later_equals_all_data_at_once(structure, likelihood, tmp_path):
    model, (x, y) = network(), data(24)
    if likelihood == "gaussian":
        y = torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    whole = mq.Laplace(model, likelihood, structure).fit([(x, y)], progress=False)
    first = mq.Laplace(model, likelihood, structure).fit([(x[:10], y[:10])], progress=False)
    first.save(tmp_path / "first.mq")
    before = mq.load(tmp_path / "first.mq", model)
    both = mq.Laplace(model, likelihood, structure).fit([(x[10:], y[10:])], continue_from=before, progress=False)
    assert both.statistics.n == 24
    torch.testing.assert_close(both.log_evidence(), whole.log_evidence())
    torch.testing.assert_close(both.predict(x[:4]).variance, whole.predict(x[:4]).variance)
    assert both.tune().log_evidence == pytest.approx(whole.tune().log_evidence)
    assert before.statistics.n == 10  # the earlier one stays as it is


def test_other_weights_or_likelihoods_are_refused():
    model, (x, y) = network(), data()
    la = mq.Laplace(model, "categorical").fit([(x, y)], progress=False)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].bias.add_(1)
    with pytest.raises(ModelMismatchError, match=r"0\.bias"):
        mq.Laplace(other, "categorical").fit([(x, y)], continue_from=la, progress=False)
    with pytest.raises(ModelMismatchError, match="likelihood"):
        mq.Laplace(model, "bernoulli").fit([(x, y)], continue_from=la, progress=False)
    with pytest.raises(ModelMismatchError, match="structure"):
        mq.Laplace(model, "categorical", "full").fit([(x, y)], continue_from=la, progress=False)

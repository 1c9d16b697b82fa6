"""Operators that are known by their products, inside networks whose curvature is computed."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import marquis as mq
from marquis.functional.linear_map import LinearMap

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Sparse")
    MATRIX = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to_sparse_csr()
    TRANSPOSE = MATRIX.to_dense().T.contiguous().to_sparse_csr()


def product(matrix):
    """Sparse products, which neither `torch.export` nor `torch.func` can look into."""
    return lambda x: (matrix @ x.reshape(-1, x.shape[-1]).T).T.reshape(*x.shape[:-1], -1)


def network(seed=0):
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double().eval()
    return inner, nn.Sequential(inner, LinearMap(product(MATRIX), product(TRANSPOSE), (4,), (5,))).eval()


X = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def dense_twin(inner):
    last = nn.Linear(4, 5, bias=False).double()
    last.weight = nn.Parameter(MATRIX.to_dense(), requires_grad=False)
    return nn.Sequential(inner, last).eval()


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "full", "lowrank"])
def test_curvature_goes_through(structure):
    inner, model = network()
    names = [f"0.{name}" for name, _ in inner.named_parameters()]
    ours = mq.curvature.ggn(model, X, mq.Gaussian(2.0), structure).to_dense()
    twin = mq.curvature.ggn(dense_twin(inner), X, mq.Gaussian(2.0), structure, parameters=names).to_dense()
    torch.testing.assert_close(ours, twin, rtol=1e-10, atol=1e-12)


def test_gradients_and_second_gradients():
    _, model = network()
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(model, x)
    assert torch.autograd.gradgradcheck(model, x)


def test_prediction_is_read_before_the_operator():
    """Curvature through `A f`, prediction at `f`: one posterior, two functions."""
    inner, model = network()
    y = torch.randn(7, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    la = mq.Laplace(model, mq.Gaussian(3.0), structure="full", prior=0.7).fit([(X, y)], progress=False)
    prediction = la.predict(X, at="0", joint=True)
    values = {name: value.detach() for name, value in inner.named_parameters()}
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(inner, p, (X,)))(values)
    jacobian = torch.cat([jacobians[name].flatten(2) for name in values], dim=2).flatten(0, 1)
    through = torch.cat([MATRIX.to_dense() @ block for block in jacobian.reshape(7, 4, -1)])
    precision = 3.0 * through.T @ through + 0.7 * torch.eye(jacobian.shape[1], dtype=torch.float64)
    expected = jacobian @ torch.linalg.solve(precision, jacobian.T)
    torch.testing.assert_close(prediction.covariance, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(prediction.mean, inner(X), rtol=1e-10, atol=1e-12)


def test_copies_outlive_the_original_and_identities_are_copied():
    _, model = network()
    expected = model(X)
    other = copy.deepcopy(model)
    del model
    torch.testing.assert_close(other(X), expected)
    pickled = pickle.loads(pickle.dumps(LinearMap(torch.neg, torch.neg, (4,), (4,))))
    assert torch.equal(pickled(torch.ones(2, 4)), -torch.ones(2, 4))
    same = LinearMap(lambda x: x, lambda x: x, (4,), (4,))
    x = torch.ones(2, 4)
    assert same(x).data_ptr() != x.data_ptr()

"""Categorical labels with the classes along any dimension."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Bernoulli, Categorical
from marquis.testing import LikelihoodConformance, all_labels, flat, seeded


class TestCategorical(LikelihoodConformance):
    shapes = ((4, 3), (1, 5), (3, 2), (2, 3, 4), (2, 3, 2, 2), (1, 4, 1, 3))
    small = (2, 4, 2)
    dim = 1

    def likelihood(self):
        return Categorical(self.dim)

    def reference(self, f, y):
        return flat(torch.distributions.Categorical(logits=f.movedim(self.dim, -1)).log_prob(y)).sum(1)

    def support(self, f):
        probs = f.softmax(self.dim).movedim(self.dim, 0)
        classes = torch.arange(len(probs)).reshape(-1, *[1] * (probs.ndim - 1)).expand(probs.shape)
        return all_labels(classes, probs)

    def keep(self, f, y, chosen):
        if f.ndim == 2:
            pytest.skip("one label per datum")
        last = -2 if self.dim in (-1, f.ndim - 1) else -1
        return f.index_select(last, chosen), y[..., chosen]


class TestClassesLast(TestCategorical):
    shapes = ((4, 3), (2, 3, 4), (2, 2, 2, 3), (1, 1, 3, 4))
    small = (2, 2, 3)
    dim = -1


class TestClassesInTheMiddle(TestCategorical):
    shapes = ((2, 2, 3, 2), (3, 2, 3))
    small = (2, 2, 3)
    dim = 2


def test_hessian_and_gradient_of_one_datum():
    f = torch.tensor([[0.1, -0.4, 2.0]], dtype=torch.float64)
    p = f.softmax(1)[0]
    torch.testing.assert_close(Categorical().hessian(f)[0], p.diag() - p.outer(p), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(
        Categorical().gradient(f, torch.tensor([2]))[0], p - torch.tensor([0.0, 0.0, 1.0]), rtol=1e-12, atol=1e-15
    )


def test_root_has_one_column_less_than_classes_and_does_not_see_equal_shifts():
    f = torch.randn(3, 5, generator=seeded(), dtype=torch.float64)
    root = Categorical().hessian_sqrt(f)
    assert root.shape == (4, 3, 5)
    torch.testing.assert_close(root.sum(2), torch.zeros(4, 3, dtype=torch.float64), rtol=0, atol=1e-15)
    assert (torch.linalg.matrix_rank(root.transpose(0, 1)) == 4).all()


@pytest.mark.parametrize("likely", range(4))
@pytest.mark.parametrize("margin", [0.0, 1e-9, 5.0, 15.0, 30.0])
def test_root_keeps_its_digits_when_almost_one_hot(likely, margin):
    """Each entry of `S S^T` to seven digits in float32, however small `1 - p` is, whichever class it is."""
    f = torch.tensor([[0.3, -0.2, 0.1, 0.0]])
    f[0, likely] += margin
    exact = f.double()
    p = exact.softmax(1)[0]
    rest = torch.stack([p[[d for d in range(4) if d != c]].sum() for c in range(4)])  # 1 - p, exactly
    expected = (p * rest).diag() - p.outer(p) * (1 - torch.eye(4, dtype=torch.float64))
    root = Categorical().hessian_sqrt(f)[:, 0].double()
    torch.testing.assert_close((root.T @ root).diagonal(), expected.diagonal(), rtol=2e-6, atol=0)
    torch.testing.assert_close(root.T @ root, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    torch.testing.assert_close(Categorical().hessian(f)[0].double(), expected, rtol=2e-6, atol=0)
    label = torch.tensor([likely])
    torch.testing.assert_close(-Categorical().gradient(f, label)[0, likely].double(), rest[likely], rtol=2e-6, atol=0)


def test_exactly_one_hot_has_no_curvature():
    f = torch.tensor([[1e4, 0.0, -1e4]])
    assert not Categorical().hessian_sqrt(f).any()
    assert not Categorical().hessian(f).any()


def test_two_classes_are_a_bernoulli():
    logit = torch.randn(6, generator=seeded(), dtype=torch.float64)
    f = torch.stack([torch.zeros_like(logit), logit], 1)
    y = Bernoulli().sample(logit, seeded(1))
    torch.testing.assert_close(Categorical().log_prob(f, y.long()), Bernoulli().log_prob(logit, y))
    torch.testing.assert_close(Categorical().gradient(f, y.long())[:, 1], Bernoulli().gradient(logit, y))
    torch.testing.assert_close(Categorical().hessian(f)[:, 1, 1], Bernoulli().hessian_diagonal(logit))
    variance = torch.rand(6, generator=seeded(2), dtype=torch.float64)
    both = torch.stack([torch.zeros_like(variance), variance], 1)
    probs, expected = Categorical().predictive(f, both).probs, Bernoulli().predictive(logit, variance).probs
    assert probs is not None and expected is not None
    torch.testing.assert_close(probs[:, 1], expected)
    # Half the variance on either logit is the same Gaussian over their difference.
    halves = torch.stack([variance, variance], 1) / 2
    split = Categorical().predictive(f, halves).probs
    assert split is not None
    torch.testing.assert_close(split[:, 1], expected)


def test_predictive_of_pixels_sums_to_one_along_the_classes():
    mean, variance = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    probs = Categorical().predictive(mean, variance).probs
    assert probs is not None and probs.shape == mean.shape
    torch.testing.assert_close(probs.sum(1), torch.ones(2, 4, 5))
    last = Categorical(-1).predictive(mean.movedim(1, -1), variance.movedim(1, -1)).probs
    assert last is not None
    torch.testing.assert_close(last.movedim(-1, 1), probs)


def test_predictive_without_variance_is_softmax_and_with_much_is_uniform():
    mean = torch.randn(3, 4, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(Categorical().predictive(mean, torch.zeros_like(mean)).probs, mean.softmax(1))
    assert torch.equal(Categorical().predictive_at(mean).probs, mean.softmax(1))
    torch.testing.assert_close(
        Categorical().predictive(mean, torch.full_like(mean, 1e12)).probs,
        torch.full_like(mean, 0.25),
        rtol=0,
        atol=0.01,  # 512 nodes, each for one class
    )


def test_one_uncertain_logit_of_two_against_quadrature():
    points, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(64))
    for m, v in ((1.0, 2.0), (-2.0, 9.0)):
        exact = ((m + math.sqrt(v) * points).sigmoid() * weights).sum() / math.sqrt(2 * math.pi)
        moments = torch.tensor([[[0.0, m]], [[0.0, v]]], dtype=torch.float64)
        probs = Categorical().predictive(*moments).probs
        assert probs is not None and abs(probs[0, 1] - exact) < 0.015


def test_negative_dimensions_are_resolved_by_the_outputs():
    f = torch.zeros(2, 4, 5, 3)
    with pytest.raises(UnsupportedOperationError, match="resolve"):
        _ = Categorical(-1).coupling
    assert Categorical(-1).resolve(f).coupling == 3
    assert Categorical(2).resolve(f).coupling == 2
    assert Categorical(-1).root_shape(f) == (4, 5, 2)


def test_ignored_labels_by_mask():
    f = torch.randn(2, 3, 4, generator=seeded(), dtype=torch.float64)
    y = torch.tensor([[0, 1, 255, 2], [255, 255, 0, 1]])
    with pytest.raises(DataError, match="ignored"):
        Categorical().validate(f, y)
    Categorical().validate(f, y, y != 255)
    expected = torch.nn.functional.cross_entropy(f, y, ignore_index=255, reduction="sum")
    torch.testing.assert_close(-Categorical().log_prob(f, y, y != 255).sum(), expected)
    assert Categorical().observed(y, y != 255).tolist() == [3, 2]


def test_refusals():
    likelihood = Categorical()
    with pytest.raises(DataError, match="integer dtype"):
        likelihood.validate(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(DataError, match="between 0 and 2"):
        likelihood.validate(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(DataError, match="between 0 and 2"):
        likelihood.validate(torch.zeros(2, 3), torch.tensor([-1, 0]))
    with pytest.raises(DataError, match="Bernoulli"):
        likelihood.validate(torch.zeros(2, 1))
    with pytest.raises(DataError, match="Bernoulli"):
        likelihood.validate(torch.zeros(2))
    with pytest.raises(DataError, match="not the batch"):
        Categorical(-2).validate(torch.zeros(2, 3))
    with pytest.raises(UnsupportedOperationError, match="batch"):
        Categorical(0)

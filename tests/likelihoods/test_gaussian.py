"""Gaussian noise: a number, per output, a full matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from marquis.errors import DataError, MarquisError, NumericalError, UnsupportedOperationError
from marquis.likelihoods import Gaussian
from marquis.testing import LikelihoodConformance, all_labels, flat, seeded


def normal_quadrature(mean: Tensor, deviation: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite labels per entry, exact for polynomials of degree below `2 * nodes`."""
    points, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(nodes))
    shape = (nodes,) + (1,) * mean.ndim
    values = mean + deviation * points.reshape(shape)
    return values, (weights / math.sqrt(2 * math.pi)).reshape(shape).expand_as(values)


class TestScalarNoise(LikelihoodConformance):
    shapes = ((4,), (3, 2), (1, 5), (2, 3, 2, 2))
    small = (2, 3)
    precision = 2.5

    def likelihood(self):
        return Gaussian(self.precision)

    def deviation(self, f):
        return torch.full(f.shape[1:], self.precision**-0.5, dtype=f.dtype)

    def reference(self, f, y):
        return flat(torch.distributions.Normal(f, self.deviation(f).expand_as(f)).log_prob(y)).sum(1)

    def support(self, f):
        return all_labels(*normal_quadrature(f, self.deviation(f), 3))


class TestLearntNoise(TestScalarNoise):
    precision = 1.0

    def likelihood(self):
        return Gaussian("learnt")


class TestNoisePerOutput(TestScalarNoise):
    shapes = ((3, 3), (1, 3), (2, 2, 3))
    small = (2, 3)

    def likelihood(self):
        return Gaussian(torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64))

    def deviation(self, f):
        return torch.tensor([0.5, 1.0, 4.0], dtype=f.dtype).rsqrt().expand(f.shape[1:])

    def keep(self, f, y, chosen):
        pytest.skip("the precision belongs to all outputs; see test_per_output_mask_drops_the_output")


class TestNoiseMatrix(LikelihoodConformance):
    shapes = ((3, 4), (1, 4), (2, 2, 2))
    small = (2, 4)
    masks = False

    def matrix(self):
        root = torch.randn(4, 4, generator=seeded(11), dtype=torch.float64)
        return root @ root.T + 0.5 * torch.eye(4, dtype=torch.float64)

    def likelihood(self):
        return Gaussian(precision_matrix=self.matrix())

    def reference(self, f, y):
        model = torch.distributions.MultivariateNormal(flat(f), precision_matrix=self.matrix())
        return model.log_prob(flat(y))

    def support(self, f):
        white = torch.zeros_like(f)
        labels, weights = all_labels(*normal_quadrature(white, torch.ones_like(f), 3))
        root = torch.linalg.cholesky(torch.linalg.inv(self.matrix()))
        return f + labels @ root.T, weights


def test_hessian_is_the_precision():
    f = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(Gaussian(4.0).hessian(f)[0], 4 * torch.eye(3, dtype=torch.float64))
    per_output = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert torch.equal(Gaussian(per_output).hessian(f)[1], per_output.diag())


def test_noise_of_an_image_per_channel():
    channels = torch.tensor([1.0, 4.0]).reshape(2, 1, 1)
    diagonal = Gaussian(channels).hessian_diagonal(torch.zeros(3, 2, 5, 5))
    assert (diagonal[:, 0] == 1).all() and (diagonal[:, 1] == 4).all()


def test_a_matrix_that_is_diagonal_is_noise_per_output():
    f, y = torch.randn(2, 3, 4, generator=seeded(), dtype=torch.float64)
    precision = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    full, entrywise = Gaussian(precision_matrix=precision.diag()), Gaussian(precision)
    torch.testing.assert_close(full.log_prob(f, y), entrywise.log_prob(f, y))
    torch.testing.assert_close(full.gradient(f, y), entrywise.gradient(f, y))
    torch.testing.assert_close(full.sample(f, seeded(3)), entrywise.sample(f, seeded(3)))
    assert full.coupling == "all" and entrywise.coupling is None


def test_per_output_mask_drops_the_output():
    f, y = torch.randn(2, 3, 2, generator=seeded(), dtype=torch.float64)
    value = Gaussian(torch.tensor([0.5, 4.0])).log_prob(f, y, torch.tensor([True, False]))
    torch.testing.assert_close(value, Gaussian(0.5).log_prob(f[:, :1], y[:, :1]))


def test_sample_is_the_mean_plus_scaled_noise():
    f = torch.randn(3, 2, generator=seeded(), dtype=torch.float64)
    noise = torch.randn(3, 2, generator=seeded(5), dtype=torch.float64)
    torch.testing.assert_close(Gaussian(4.0).sample(f, seeded(5)), f + noise / 2)


def test_fisher_column_keeps_its_digits_far_from_zero():
    f = torch.full((1000,), 1e6)  # in float32 the label itself would swallow the noise
    column = Gaussian(100.0).fisher_column(f, seeded())
    assert torch.equal(column, Gaussian(100.0).fisher_column(torch.zeros(1000), seeded()))


def test_a_precision_given_as_a_number_is_exact_in_float64():
    f = torch.zeros(1, 1, dtype=torch.float64)
    assert Gaussian(0.1).hessian(f).item() == 0.1


def test_predictive_keeps_noise_apart():
    mean, variance = torch.randn(3, 2), torch.rand(3, 2)
    prediction = Gaussian(torch.tensor([2.0, 4.0])).predictive(mean, variance)
    assert torch.equal(prediction.mean, mean) and torch.equal(prediction.variance, variance)
    assert prediction.noise_variance is not None and prediction.probs is None
    torch.testing.assert_close(prediction.noise_variance, torch.tensor([[0.5, 0.25]]).expand(3, 2))
    torch.testing.assert_close(prediction.total_variance, variance + torch.tensor([0.5, 0.25]))


def test_predictive_noise_of_a_matrix_is_the_diagonal_of_its_inverse():
    matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    noise = Gaussian(precision_matrix=matrix).predictive(*torch.zeros(2, 1, 2, dtype=torch.float64)).noise_variance
    torch.testing.assert_close(noise, torch.full((1, 2), 2 / 3, dtype=torch.float64))


def test_with_noise_returns_a_new_one():
    first = Gaussian("learnt")
    second = first.with_noise(3.0)
    assert first.learnt and second.learnt and not Gaussian(3.0).learnt
    assert first.noise_precision == 1 and second.noise_precision == 3
    with pytest.raises(AttributeError):
        first.noise_precision = 2.0  # pyright: ignore[reportAttributeAccessIssue]


def test_changing_the_given_tensor_later_changes_nothing():
    passed = torch.ones(2)
    likelihood = Gaussian(passed)
    passed.fill_(7)
    assert torch.equal(likelihood.noise_precision, torch.ones(2))


def test_log_prob_can_be_differentiated_in_the_noise():
    f, y = torch.randn(2, 5, 3, generator=seeded(), dtype=torch.float64)
    beta = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Gaussian().with_noise(beta).log_prob(f, y).sum(), beta)
    expected = 15 / (2 * 2.0) - 0.5 * (y - f).square().sum()
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_precisions_that_are_none_are_refused(bad):
    with pytest.raises(DataError, match="positive"):
        Gaussian(bad)
    with pytest.raises(DataError, match="positive"):
        Gaussian(torch.tensor([1.0, bad]))


def test_other_refusals():
    with pytest.raises(UnsupportedOperationError, match="learnt"):
        Gaussian("unknown")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="symmetric"):
        Gaussian(precision_matrix=torch.tensor([[2.0, 1.0], [0.0, 2.0]]))
    with pytest.raises(NumericalError, match="positive definite"):
        Gaussian(precision_matrix=torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(DataError, match="O x O"):
        Gaussian(precision_matrix=torch.ones(2, 3))
    with pytest.raises(UnsupportedOperationError, match="not both"):
        Gaussian(2.0, precision_matrix=torch.eye(2))
    with pytest.raises(UnsupportedOperationError, match="anew"):
        Gaussian(precision_matrix=torch.eye(2)).with_noise(2.0)
    with pytest.raises(DataError, match="needs 2 outputs"):
        Gaussian(precision_matrix=torch.eye(2)).hessian(torch.zeros(1, 3))
    with pytest.raises(DataError, match="does not broadcast"):
        Gaussian(torch.ones(3)).hessian(torch.zeros(1, 2))
    with pytest.raises(DataError, match="broadcasting here"):
        Gaussian().log_prob(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(DataError, match="isnan"):
        Gaussian().validate(torch.zeros(2, 1), torch.tensor([[1.0], [math.nan]]))
    with pytest.raises(MarquisError, match="marginal variance"):
        Gaussian().predictive(torch.zeros(2, 3), torch.zeros(2, 3, 3))

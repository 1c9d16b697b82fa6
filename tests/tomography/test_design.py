"""Which angle next: conditioning is exact, no angle twice, and the choice is the best one."""

from __future__ import annotations

import math

import pytest
import torch
from tests.tomography.test_posterior import tuned_at

from marquis.errors import DataError, UnsupportedOperationError
from marquis.tomography import Inpainting, UncertainImage, next_angles
from marquis.tomography.design import GaussianDesign
from marquis.tomography.operators import dense_matrix

GRID = torch.arange(24, dtype=torch.float64) * (math.pi / 24)


@pytest.fixture(scope="module")
def result(small):
    return small.exact.posterior(tuned_at(small))


def test_conditioning_is_the_posterior_of_all_data(small, result):
    """Conditioning on new angles equals the posterior that had them from the start."""
    extra = small.geometry.with_angles([0.11, 1.3])
    design = GaussianDesign(result)
    design.condition(extra.with_angles([0.11]))
    design.condition(extra.with_angles([1.3]))
    matrix = torch.cat([small.matrix, dense_matrix(extra)])
    prior = small.dense_image_covariance()
    noise = small.noise * torch.eye(len(matrix), dtype=torch.float64)
    cross = prior @ matrix.T
    expected = prior - cross @ torch.linalg.solve(matrix @ prior @ matrix.T + noise, cross.T)
    assert float((design.covariance() - expected).norm() / expected.norm()) < 1e-8


def test_values_of_the_criteria(small, result):
    view = small.geometry.with_angles([0.2])
    matrix = dense_matrix(view)
    predicted = matrix @ result.posterior_covariance @ matrix.T
    design = GaussianDesign(result)
    assert design.value(view, "variance") == pytest.approx(float(predicted.trace()), rel=1e-10)
    gain = 0.5 * torch.linalg.slogdet(torch.eye(16).double() + predicted / small.noise)[1]
    assert design.value(view, "information") == pytest.approx(float(gain), rel=1e-10)


@pytest.mark.parametrize("criterion", ["variance", "information"])
def test_choices(small, result, criterion):
    chosen = next_angles(result, GRID, 5, criterion)
    assert len(chosen.unique()) == 5
    measured = small.geometry.angles
    assert float((chosen[:, None] - measured[None]).abs().min()) > 1e-6
    free = [angle for angle in GRID.tolist() if min(abs(angle - m) for m in measured.tolist()) > 1e-9]
    design = GaussianDesign(result)
    values = {angle: design.value(small.geometry.with_angles([angle]), criterion) for angle in free}
    assert float(chosen[0]) == max(values, key=lambda angle: values[angle])


def test_samples_instead_of_a_covariance(small, result):
    """With deviations whose Gram matrix is the covariance the choice is the same."""
    values, vectors = torch.linalg.eigh(result.posterior_covariance)
    rows = (values.clamp_min(0).sqrt() * vectors).T * math.sqrt(len(values))
    sampled = UncertainImage(
        result.image, result.variance, 0.0, result.noise_variance, small.geometry, "samples", deviations=rows
    )
    assert torch.equal(next_angles(sampled, GRID, 4), next_angles(result, GRID, 4))


def test_refusals(small, result):
    with pytest.raises(DataError, match="measured"):
        next_angles(result, small.geometry.angles, 1)
    with pytest.raises(DataError, match="criterion"):
        next_angles(result, GRID, 1, "entropy")
    flat = UncertainImage(result.image, result.variance, 0.1, 0.1, small.geometry, "constant")
    with pytest.raises(UnsupportedOperationError, match="neither"):
        next_angles(flat, GRID, 1)
    mask = Inpainting(torch.ones(10, 10, dtype=torch.bool))
    other = UncertainImage(result.image, result.variance, 0.1, 0.1, mask, "other")
    with pytest.raises(UnsupportedOperationError, match="angles"):
        next_angles(other, GRID, 1)

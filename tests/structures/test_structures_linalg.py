"""The jitter ladder and the eigen-decomposition: right, or said, or refused."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from marquis.errors import NumericalError
from marquis.structures import Block, Diagonal, Full, Kronecker, Layout, LowRank, NumericalWarning
from marquis.structures.linalg import cholesky, eigh_psd
from marquis.testing import STANDARD, close, normal, random_psd

F64 = torch.float64


def test_cholesky_of_a_good_matrix_is_exact_and_silent() -> None:
    matrix = random_psd(6, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(cholesky(matrix, "m"), torch.linalg.cholesky(matrix))


def test_cholesky_does_not_mind_the_scale_of_the_parameters() -> None:
    """Entries from 1e-12 to 1e12 are well conditioned after scaling; no jitter then."""
    scale = torch.logspace(-6, 6, 6, dtype=F64)
    matrix = random_psd(6, 0) * scale.outer(scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factor = cholesky(matrix, "m")
    close(2 * factor.diagonal().log().sum(), torch.logdet(random_psd(6, 0)) + 2 * scale.log().sum())


@pytest.mark.parametrize(
    ("dtype", "rank"),
    [(torch.float32, 1), (torch.float32, 3), (torch.float64, 1), (torch.float64, 3), (torch.float64, 19)],
)
def test_singular_matrix_gets_jitter_and_a_warning(dtype: torch.dtype, rank: int) -> None:
    matrix = random_psd(20, 0, rank).to(dtype)
    with pytest.warns(NumericalWarning, match="'layer'"):
        factor = cholesky(matrix, "block 'layer'")
    assert torch.isfinite(factor).all()
    mean = matrix.diagonal().mean()
    added = ((factor @ factor.mT) - matrix).diagonal().mean() / mean
    assert added < (1e-7 if dtype == torch.float64 else 2e-4)


def test_jitter_climbs_only_as_far_as_needed() -> None:
    """An eigenvalue of -3e-7 of the mean needs the third step, 1e-6."""
    values = torch.tensor([1.0, 1.0, 1.0, -3e-7], dtype=F64)
    basis = torch.linalg.qr(normal(4, 4, seed=0)).Q
    matrix = basis @ torch.diag(values) @ basis.mT
    with pytest.warns(NumericalWarning):
        factor = cholesky((matrix + matrix.mT) / 2, "m")
    added = (factor @ factor.mT - matrix).diagonal().mean()
    close(added / matrix.diagonal().mean(), torch.tensor(1e-6, dtype=F64), rtol=1e-3)


@pytest.mark.parametrize("matrix", [torch.zeros(3, 3), -torch.eye(3), torch.diag(torch.tensor([1.0, 1.0, -0.1]))])
def test_hopeless_matrices_raise(matrix: torch.Tensor) -> None:
    with pytest.raises(NumericalError, match=r"block 'layer'.*add_diagonal"):
        cholesky(matrix, "block 'layer'")


def test_structures_pass_the_warning_on() -> None:
    full = Full(STANDARD, random_psd(STANDARD.total, 0, 4))
    block = Block(STANDARD, {"all": (STANDARD.names, random_psd(STANDARD.total, 0, 4))})
    for value in (full, block):
        with pytest.warns(NumericalWarning):
            assert math.isfinite(float(value.logdet()))
        assert torch.isfinite(value.solve(torch.ones(STANDARD.total, dtype=F64))).all()


def test_eigenvalues_are_clamped_and_rounding_is_zero() -> None:
    values, vectors = eigh_psd(random_psd(12, 0, 5), "m")
    assert (values[:7] == 0).all() and (values[7:] > 0).all()
    close(vectors @ torch.diag(values) @ vectors.mT, random_psd(12, 0, 5))
    values, _ = eigh_psd(torch.zeros(2, 3, 3), "m")
    assert (values == 0).all()


def test_the_exact_structures_agree_where_each_is_exact() -> None:
    """Orthogonal features make the curvature diagonal; then all structures are the same posterior."""
    layout = Layout({"w": (1, 6)})
    features = torch.linalg.qr(normal(6, 6, seed=0)).Q * torch.arange(1.0, 7.0, dtype=F64)
    curvature = features.mT @ features
    values = {
        "full": Full(layout, curvature),
        "diagonal": Diagonal(layout, curvature.diagonal()),
        "block": Block(layout, {"all": (("w",), curvature)}),
        "lowrank": LowRank(layout, features.mT),
    }
    jacobian, v = normal(2, 3, 6, seed=1), normal(4, 6, seed=2)
    exact = values["full"].add_diagonal(0.8)
    for value in values.values():
        posterior = value.add_diagonal(0.8)
        close(posterior.logdet(), exact.logdet())
        close(posterior.solve(v), exact.solve(v))
        close(posterior.quadratic(jacobian), exact.quadratic(jacobian))
        close(posterior.quadratic(jacobian, True), exact.quadratic(jacobian).diagonal(dim1=-2, dim2=-1))
        close(value.effective_dimension(0.8), values["full"].effective_dimension(0.8))


def test_bayesian_linear_regression_in_two_halves() -> None:
    """The closed-form posterior; updating by halves equals one batch (docs/method/posterior.md#checks)."""
    layout = Layout({"w": (4,)})
    inputs, noise, prior = normal(30, 4, seed=0), 2.0, 0.5
    exact = torch.linalg.inv(noise * inputs.mT @ inputs + prior * torch.eye(4, dtype=F64))
    halves = [LowRank(layout, rows.mT) for rows in (inputs[:13], inputs[13:])]
    posterior = (noise * sum(halves[1:], halves[0])).add_diagonal(prior)
    eye = torch.eye(4, dtype=F64)
    close(posterior.solve(eye), exact)
    close(posterior.inverse_diagonal(), exact.diagonal())
    close(posterior.quadratic(inputs), inputs @ exact @ inputs.mT)


def test_structures_over_no_parameters_at_all() -> None:
    for value in (Block(Layout({}), {}), Kronecker(Layout({}), {})):
        assert value.logdet() == 0 and value.noise_dim == 0
        assert value.to_dense().shape == (0, 0) and value.diagonal().shape == (0,)
        assert value.sample(3).shape == (3, 0)
        assert value.solve(torch.zeros(2, 0, dtype=F64)).shape == (2, 0)
        assert value.quadratic(torch.zeros(2, 3, 0)).tolist() == torch.zeros(2, 3, 3).tolist()
        assert value.add_diagonal(1.0).effective_dimension(1.0).shape == (0,)
        assert (value + value).trace() == 0

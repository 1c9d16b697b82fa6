"""The iterative mode against the exact one, and Nyström approximations against dense algebra."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.linalg import hadamard
from tests.tomography.conftest import DenseProducts
from tests.tomography.test_posterior import problem_of, tuned_at

from marquis.curvature.linop.iterative import conjugate_gradients
from marquis.curvature.linop.nystrom import nystrom
from marquis.errors import DataError, NumericalError
from marquis.tomography import ParallelBeam, deep_image_prior, linearise, simulate
from marquis.tomography.krylov import DataOperator, approximate, effective_parameters, tune_blocks
from marquis.tomography.operators import readings
from marquis.tomography.posterior import ExactPrior, IterativePrior


@pytest.fixture(scope="module")
def dense(small) -> DenseProducts:
    return DenseProducts(small.trained, small.jacobian)


@pytest.fixture(scope="module")
def operator(small, dense) -> DataOperator:
    return DataOperator(dense, small.geometry, small.variance, small.noise)


@pytest.fixture(scope="module")
def iterative(small, dense) -> IterativePrior:
    return replace(small.iterative, linearised=dense)


def dense_solve(small, rows):
    return torch.linalg.solve(small.dense_data_covariance(), rows.T).T


def test_products_are_the_dense_ones(small):
    operator = DataOperator(small.exact.linearised, small.geometry, small.variance, small.noise)
    rows = torch.randn(11, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(operator(rows), rows @ small.dense_data_covariance(), rtol=1e-10, atol=1e-11)
    cross = small.dense_image_covariance() @ small.matrix.T
    torch.testing.assert_close(operator.to_image(rows), rows @ cross.T, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("rank", [None, 20, 128])
def test_solves(small, operator, rank):
    rows = torch.randn(3, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    approximation = None if rank is None else approximate(operator, rank, torch.Generator().manual_seed(1))
    solved = operator.solve(rows, approximation, tol=1e-9)
    expected = dense_solve(small, rows)
    assert float((solved - expected).norm() / expected.norm()) < 1e-6


def test_full_rank_nystrom_solves_in_one_iteration(small, operator):
    rows = torch.randn(2, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full = approximate(operator, 128, torch.Generator().manual_seed(1))
    solution = conjugate_gradients(operator, rows, tol=1e-6, preconditioner=full.preconditioner(small.noise))
    assert solution.iterations <= 2 and solution.converged
    plain = conjugate_gradients(operator, rows, tol=1e-6)
    low = approximate(operator, 20, torch.Generator().manual_seed(1))
    better = conjugate_gradients(operator, rows, tol=1e-6, preconditioner=low.preconditioner(small.noise))
    assert better.iterations < plain.iterations


def test_nystrom_of_a_known_spectrum():
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64))[0]
    values = 10.0 ** -torch.arange(40, dtype=torch.float64)
    matrix = (basis * values) @ basis.T
    result = nystrom(lambda rows: rows @ matrix, 40, 12, generator=generator)
    torch.testing.assert_close(result.values[:5], values[:5], rtol=1e-4, atol=0)
    assert bool((result.values <= values[:12] * (1 + 1e-9) + 1e-12).all())
    gram = result.vectors @ result.vectors.T
    torch.testing.assert_close(gram, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-10)
    with pytest.raises(NumericalError, match="positive"):
        nystrom(lambda rows: -rows, 40, 5, generator=generator)
    with pytest.raises(DataError, match="rank"):
        nystrom(lambda rows: rows, 40, 41, generator=generator)


def test_matheron_on_identity_columns_is_the_posterior(small, operator):
    """White weights and noise replaced by identity columns: the map's Gram matrix is the covariance exactly."""
    total = small.jacobian.shape[1]
    root = small.weight_variances.sqrt()
    covariance = torch.zeros(100, 100, dtype=torch.float64)
    for first in range(0, total, 64):
        rows = torch.zeros(min(64, total - first), total, dtype=torch.float64)
        rows[torch.arange(len(rows)), torch.arange(first, first + len(rows))] = 1
        silence = torch.zeros(len(rows), 128, dtype=torch.float64)
        deviations = operator.matheron(rows * root, silence, lambda r: dense_solve(small, r))
        covariance += deviations.T @ deviations
    noise = small.noise**0.5 * torch.eye(128, dtype=torch.float64)
    deviations = operator.matheron(torch.zeros(128, total).double(), noise, lambda r: dense_solve(small, r))
    covariance += deviations.T @ deviations
    expected = small.dense_posterior()
    assert float((covariance - expected).norm() / expected.norm()) < 1e-9


def test_effective_parameters_with_hadamard_probes_are_exact(small, operator):
    probes = torch.from_numpy(hadamard(128)).double()
    gamma = effective_parameters(operator, probes, lambda rows: dense_solve(small, rows))
    inverse = torch.linalg.inv(small.dense_data_covariance())
    for index, part in enumerate(small.exact.linearised.slices):
        through = small.matrix @ small.jacobian[:, part]
        expected = small.variance[index] * (through.T @ inverse @ through).trace()
        assert float(gamma[index]) == pytest.approx(float(expected), rel=1e-9)


def test_one_variance_is_tuned_as_in_exact_mode(small, iterative):
    exact = small.exact.tune(small.data, groups="scalar", predcp=None)
    tuned = iterative.tune(small.data, predcp=None)
    assert tuned.noise_variance == pytest.approx(exact.noise_variance, rel=1e-3)
    assert float(tuned.variance[0]) == pytest.approx(float(exact.variance[0]), rel=1e-2)
    assert tuned.log_evidence == pytest.approx(exact.log_evidence, abs=1e-3)
    tangent = small.exact.tune(small.data, groups="scalar", predcp=None, evidence="tangent")
    same = iterative.tune(small.data, predcp=None, evidence="tangent")
    assert float(same.variance[0]) == pytest.approx(float(tangent.variance[0]), rel=1e-2)


@pytest.mark.parametrize("rate", [None, 0.5])
def test_blocks_are_tuned_as_in_exact_mode(small, dense, rate):
    """Hadamard probes make the fixed point exact: it has to be where the evidence's gradient vanishes."""
    problem = problem_of(small)
    start = torch.full_like(small.variance, 0.2)
    operator = DataOperator(dense, small.geometry, start, 0.02)
    tuned, _, _ = tune_blocks(
        operator, problem, rate=rate, iterations=60, probes=torch.from_numpy(hadamard(128)).double(), rank=128,
        tolerance=1e-3, tol=1e-8,
    )  # fmt: skip
    exact = small.exact.tune(small.data, predcp=None if rate is None else "variance", rate=rate)
    assert tuned.converged
    assert tuned.noise_variance == pytest.approx(exact.noise_variance, rel=0.02)
    torch.testing.assert_close(tuned.variance.log(), exact.variance.log(), rtol=0, atol=0.05)


def test_variances_by_samples(small, iterative):
    tuned = tuned_at(small)
    result = replace(iterative, generator=torch.Generator().manual_seed(0)).posterior(
        tuned, samples=512, tol=1e-5, floor=0.0
    )
    ratio = result.variance.flatten() / small.dense_posterior().diagonal()
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.05)
    assert result.deviations.shape == (512, 100)
    assert result.sample(3, generator=torch.Generator().manual_seed(1)).shape == (3, 10, 10)


def test_samples_resume(small, iterative, tmp_path):
    def prior() -> IterativePrior:
        return replace(iterative, generator=torch.Generator().manual_seed(4))

    tuned = iterative.tune(small.data, predcp=None)
    whole = prior().posterior(tuned, samples=20)
    file = tmp_path / "samples.safetensors"
    prior().posterior(tuned, samples=8, checkpoint=file)
    resumed = prior().posterior(tuned, samples=20, checkpoint=file)
    torch.testing.assert_close(resumed.deviations[8:], whole.deviations[8:])
    assert resumed.deviations.shape == whole.deviations.shape


def test_float32_raises_instead_of_returning(small, dense):
    """At condition 1e7 single precision cannot solve: no silent answer."""

    class SinglePrecision(DenseProducts):
        dtype = torch.float32

    single = SinglePrecision(small.trained, small.jacobian)
    top = float(torch.linalg.eigvalsh(small.dense_data_covariance())[-1])
    operator = DataOperator(single, small.geometry, small.variance.float(), 1e-9 * top)
    rows = torch.randn(1, readings(small.geometry), generator=torch.Generator().manual_seed(0))
    with pytest.raises(NumericalError):
        operator.solve(rows, tol=1e-6, max_iterations=200)
    double = DataOperator(dense, small.geometry, small.variance, 1e-9 * top)
    approximation = approximate(double, 128, torch.Generator().manual_seed(0))
    double.solve(rows.double(), approximation, tol=1e-6, max_iterations=200)


def test_the_error_has_residual_and_limit(small, operator):
    rows = torch.randn(1, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(NumericalError, match=r"residual of .* after 2 iterations \(limit 2"):
        operator.solve(rows, tol=1e-10, max_iterations=2)


@pytest.mark.slow
def test_solves_at_28_pixels_are_the_exact_ones():
    """The study's geometry and network, products through the network itself, against the dense matrix."""
    geometry = ParallelBeam(28, 20)
    truth = torch.zeros(28, 28, dtype=torch.float64)
    truth[6:20, 8:14] = 0.8
    generator = torch.Generator().manual_seed(0)
    data = simulate(truth, geometry, noise=0.05, generator=generator)
    trained = deep_image_prior(data, geometry, tv=1e-4, range=(0.0, 1.0), steps=100, progress=False)
    exact = linearise(trained, geometry, posterior="exact")
    iterative = linearise(trained, geometry, posterior="iterative", generator=generator)
    assert isinstance(exact, ExactPrior) and isinstance(iterative, IterativePrior)
    ones = torch.ones(len(exact.linearised.blocks), dtype=torch.float64)
    operator = iterative.operator(ones, trained.residual)
    rows = torch.randn(2, 820, generator=generator, dtype=torch.float64)
    solved = operator.solve(rows, iterative.unit_approximation, tol=1e-9)
    expected = torch.linalg.solve(exact.grams.data_covariance(ones, trained.residual), rows.T).T
    assert float((solved - expected).norm() / expected.norm()) < 1e-6

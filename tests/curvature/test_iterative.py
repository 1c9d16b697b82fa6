"""Solves, eigenvalues, traces and log-determinants by products, against dense float64 linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marquis.curvature.linop.iterative import (
    Spectrum,
    StochasticEstimate,
    _orthonormal_rows,
    conjugate_gradients,
    hutchinson_diagonal,
    hutchinson_trace,
    lanczos,
    rademacher,
    spectrum,
    top_eigenpairs,
)
from marquis.errors import DataError, NumericalError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_eigenvalues(values: list[float] | Tensor, seed: int = 0) -> Tensor:
    values = torch.as_tensor(values, dtype=torch.float64)
    noise = torch.randn(len(values), len(values), dtype=torch.float64, generator=generator(seed))
    rotation = torch.linalg.qr(noise)[0]
    return (rotation * values) @ rotation.T


def product(matrix: Tensor):
    return lambda rows: rows @ matrix.T


def hadamard(size: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    assert matrix.shape[0] == size
    return matrix


SPREAD = with_eigenvalues(torch.logspace(-2, 2, 16, dtype=torch.float64))


# ---- conjugate gradients


def test_cg_solves_several_right_hand_sides_like_a_dense_solve():
    b = torch.randn(5, 16, dtype=torch.float64, generator=generator(1))
    solution = conjugate_gradients(product(SPREAD), b, tol=1e-13)
    torch.testing.assert_close(solution.x, torch.linalg.solve(SPREAD, b.T).T, rtol=1e-8, atol=1e-10)
    assert solution.converged
    assert solution.residual.max() < 1e-12


def test_cg_rows_do_not_depend_on_their_company():
    b = torch.randn(4, 16, dtype=torch.float64, generator=generator(2))
    b[1] = 0
    b[2] = torch.linalg.eigh(SPREAD)[1][:, 3]  # done after one iteration

    def row_by_row(
        rows: Tensor,
    ) -> Tensor:  # a matrix product would round differently for one row and for four
        return torch.stack([SPREAD @ row for row in rows])

    together = conjugate_gradients(row_by_row, b, tol=1e-10)
    apart = torch.cat([conjugate_gradients(row_by_row, row[None], tol=1e-10).x for row in b])
    torch.testing.assert_close(together.x, apart, rtol=1e-12, atol=1e-12)
    assert torch.equal(together.x[1], torch.zeros(16, dtype=torch.float64))


def test_cg_needs_as_many_iterations_as_there_are_distinct_eigenvalues():
    matrix = with_eigenvalues([1.0] * 6 + [5.0] * 6 + [9.0] * 4)
    b = torch.randn(1, 16, dtype=torch.float64, generator=generator(3))
    assert conjugate_gradients(product(matrix), b, tol=1e-10).iterations == 3


def test_perfect_preconditioner_takes_one_iteration_and_a_useful_one_fewer():
    b = torch.randn(2, 16, dtype=torch.float64, generator=generator(4))
    scaled = torch.diag(torch.logspace(-3, 3, 16, dtype=torch.float64)) + 0.01 * SPREAD
    perfect = conjugate_gradients(
        product(scaled), b, tol=1e-8, preconditioner=lambda r: torch.linalg.solve(scaled, r.T).T
    )
    assert perfect.iterations == 1
    jacobi = conjugate_gradients(product(scaled), b, tol=1e-8, preconditioner=lambda r: r / scaled.diagonal())
    plain = conjugate_gradients(product(scaled), b, tol=1e-8)
    assert jacobi.iterations < plain.iterations
    torch.testing.assert_close(jacobi.x, torch.linalg.solve(scaled, b.T).T, rtol=1e-5, atol=1e-6)


def test_cg_reports_that_it_has_not_converged():
    b = torch.randn(1, 16, dtype=torch.float64, generator=generator(5))
    solution = conjugate_gradients(product(SPREAD), b, tol=1e-10, max_iterations=2)
    assert not solution.converged
    true = (b - solution.x @ SPREAD).norm() / b.norm()
    torch.testing.assert_close(solution.residual[0], true)


def test_cg_trusts_the_true_residual_not_the_recursions():
    # In float32 and at this condition number the recursion's residual falls to the tolerance, the true one never.
    matrix = with_eigenvalues(torch.logspace(-7, 0, 60, dtype=torch.float64)).float()
    b = torch.randn(1, 60, generator=generator(3))
    solution = conjugate_gradients(product(matrix), b, tol=1e-4, max_iterations=20_000)
    assert solution.iterations < 20_000
    assert solution.residual > 1e-2
    assert not solution.converged


@pytest.mark.parametrize("matrix", [torch.diag(torch.tensor([1.0, -1.0, 2.0])), torch.zeros(3, 3)])
def test_cg_refuses_a_matrix_that_is_not_positive_definite(matrix: Tensor):
    with pytest.raises(NumericalError, match="not positive definite"):
        conjugate_gradients(product(matrix), torch.tensor([[0.0, 1.0, 0.0]]))


def test_cg_refuses_nan():
    with pytest.raises(NumericalError):
        conjugate_gradients(lambda rows: rows * float("nan"), torch.ones(1, 3))


# ---- Lanczos


def test_full_lanczos_reproduces_the_matrix():
    start = torch.randn(2, 16, dtype=torch.float64, generator=generator(6))
    tridiagonal, basis, lengths = lanczos(product(SPREAD), start, 99)
    assert lengths.tolist() == [16, 16]
    for t, q in zip(tridiagonal, basis, strict=True):
        torch.testing.assert_close(q @ q.T, torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-13)
        torch.testing.assert_close(q.T @ t @ q, SPREAD, rtol=1e-8, atol=1e-9)


def test_lanczos_stays_orthogonal_where_the_three_term_recursion_would_not():
    values = torch.cat([torch.logspace(-6, 0, 59, dtype=torch.float64), torch.tensor([1e6], dtype=torch.float64)])
    matrix = with_eigenvalues(values)
    start = torch.randn(1, 60, dtype=torch.float64, generator=generator(7))
    _, basis, _ = lanczos(product(matrix), start, 30)
    gram = basis[0] @ basis[0].T
    torch.testing.assert_close(gram, torch.eye(30, dtype=torch.float64), rtol=0, atol=1e-12)


def test_lanczos_extremes_converge_first():
    values = torch.cat([torch.linspace(1, 2, 58, dtype=torch.float64), torch.tensor([-5.0, 9.0]).double()])
    start = torch.randn(1, 60, dtype=torch.float64, generator=generator(8))
    tridiagonal, _, _ = lanczos(product(with_eigenvalues(values)), start, 14)
    ritz = torch.linalg.eigvalsh(tridiagonal[0])
    torch.testing.assert_close(ritz[[0, -1]], torch.tensor([-5.0, 9.0]).double(), rtol=1e-8, atol=0)


def test_lanczos_ends_with_the_invariant_subspace():
    matrix = with_eigenvalues([0.0] * 12 + [1.0, 1.0, 4.0, 4.0])
    start = torch.randn(2, 16, dtype=torch.float64, generator=generator(9))
    start[1] = torch.linalg.eigh(matrix)[1][:, -1]
    tridiagonal, _, lengths = lanczos(product(matrix), start, 16)
    assert lengths.tolist() == [3, 1]
    expected = torch.tensor([0.0, 1.0, 4.0]).double()
    torch.testing.assert_close(torch.linalg.eigvalsh(tridiagonal[0, :3, :3]), expected, rtol=1e-10, atol=1e-12)


def test_lanczos_refuses_nonsense():
    with pytest.raises(DataError, match="zero vector"):
        lanczos(product(SPREAD), torch.zeros(1, 16, dtype=torch.float64), 3)
    with pytest.raises(DataError, match="steps"):
        lanczos(product(SPREAD), torch.ones(1, 16, dtype=torch.float64), 0)
    with pytest.raises(NumericalError, match="finite"):
        lanczos(lambda rows: rows * float("inf"), torch.ones(1, 16), 3)


# ---- traces, diagonals, quadrature: deterministic twins (orthogonal probes make the estimates exact)

EXACT_PROBES = {"hadamard": hadamard(16), "identity": 4.0 * torch.eye(16, dtype=torch.float64)}


@pytest.mark.parametrize("probes", EXACT_PROBES.values(), ids=EXACT_PROBES.keys())
def test_orthogonal_probes_give_exact_trace_diagonal_and_logdet(probes: Tensor):
    torch.testing.assert_close(hutchinson_trace(product(SPREAD), probes).value, SPREAD.trace(), rtol=1e-12, atol=0)
    diagonal = hutchinson_diagonal(product(SPREAD), probes).value
    torch.testing.assert_close(diagonal, SPREAD.diagonal(), rtol=1e-10, atol=1e-12)
    quadrature = spectrum(product(SPREAD), probes, 16)
    torch.testing.assert_close(
        quadrature.integrate(torch.log).value, torch.linalg.slogdet(SPREAD)[1], rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(
        quadrature.integrate(lambda t: 1 / (t + 1)).value,
        torch.linalg.inv(SPREAD + torch.eye(16, dtype=torch.float64)).trace(),
        rtol=1e-9,
        atol=0,
    )


def test_quadrature_is_exact_up_to_degree_two_steps_minus_one_and_no_further():
    quadrature = spectrum(product(SPREAD / 100), hadamard(16), 3)
    dense = SPREAD / 100

    def gap(degree: int) -> float:
        exact = torch.linalg.matrix_power(dense, degree).trace()
        return float((quadrature.integrate(lambda t: t**degree).value - exact).abs() / exact)

    assert max(gap(degree) for degree in range(6)) < 1e-12
    assert gap(6) > 1e-6


def test_singular_matrix_has_a_log_determinant_with_shift_and_padding_does_no_harm():
    matrix = with_eigenvalues([0.0] * 12 + [1.0, 1.0, 4.0, 4.0])
    quadrature = spectrum(product(matrix), hadamard(16), 16)
    assert (quadrature.weights == 0).any()  # runs ended early and were padded
    exact = torch.linalg.slogdet(matrix + 0.1 * torch.eye(16, dtype=torch.float64))[1]
    value = quadrature.integrate(lambda t: torch.log(t + 0.1)).value
    torch.testing.assert_close(value, exact, rtol=1e-10, atol=0)


def test_random_probes_are_unbiased_signs_and_seeded():
    first = rademacher(3, 7, generator=generator(5), device=torch.device("cpu"), dtype=torch.float64)
    again = rademacher(3, 7, generator=generator(5), device=torch.device("cpu"), dtype=torch.float64)
    assert torch.equal(first, again)
    assert torch.equal(first.abs(), torch.ones(3, 7, dtype=torch.float64))
    assert 0 < (first > 0).sum() < 21


def test_standard_error_is_that_of_the_mean():
    samples = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    estimate = StochasticEstimate.from_samples(samples)
    assert float(estimate) == 3.0
    torch.testing.assert_close(estimate.standard_error, torch.tensor((7.0 / 3) ** 0.5, dtype=torch.float64))
    assert torch.isnan(StochasticEstimate.from_samples(samples[:1]).standard_error)


def test_density_is_the_blurred_spectrum_and_integrates_to_one():
    quadrature = spectrum(product(SPREAD), hadamard(16), 16)
    grid = torch.linspace(-20, 130, 3001, dtype=torch.float64)
    density = quadrature.density(grid, width=2.0)
    eigenvalues = torch.linalg.eigvalsh(SPREAD)
    expected = torch.distributions.Normal(eigenvalues, 2.0).log_prob(grid[:, None]).exp().mean(dim=1)
    torch.testing.assert_close(density, expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(torch.trapezoid(density, grid), torch.tensor(1.0).double(), rtol=1e-6, atol=0)
    with pytest.raises(DataError, match="width"):
        Spectrum(quadrature.nodes, quadrature.weights).density(grid, 0.0)


# ---- eigenpairs


@pytest.mark.parametrize("dtype, tol", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_top_eigenpairs_match_a_dense_decomposition(dtype: torch.dtype, tol: float):
    matrix = with_eigenvalues(torch.cat([torch.linspace(-3, 1, 50), torch.tensor([3.0, 4.0, 8.0])]))
    start = torch.randn(3, 53, dtype=dtype, generator=generator(10))
    values, vectors = top_eigenpairs(product(matrix.to(dtype)), start, tol=tol)
    torch.testing.assert_close(values.double(), torch.tensor([8.0, 4.0, 3.0]).double(), rtol=10 * tol, atol=0)
    torch.testing.assert_close(vectors @ matrix.to(dtype), values[:, None] * vectors, rtol=0, atol=100 * tol)
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(3, dtype=dtype), rtol=0, atol=100 * tol)


def test_repeated_eigenvalues_are_all_found():
    matrix = with_eigenvalues([0.0] * 20 + [5.0, 5.0, 5.0])
    start = torch.randn(4, 23, dtype=torch.float64, generator=generator(11))
    values, _ = top_eigenpairs(product(matrix), start, tol=1e-10)
    torch.testing.assert_close(values, torch.tensor([5.0, 5.0, 5.0, 0.0]).double(), rtol=1e-9, atol=1e-9)


def test_all_eigenpairs_of_a_tiny_matrix():
    start = torch.randn(16, 16, dtype=torch.float64, generator=generator(12))
    values, _ = top_eigenpairs(product(SPREAD), start, tol=1e-12)
    torch.testing.assert_close(values.flip(0), torch.linalg.eigvalsh(SPREAD), rtol=1e-9, atol=1e-11)


def test_new_directions_are_orthogonal_even_if_they_are_almost_known():
    basis = torch.linalg.qr(torch.randn(30, 5, dtype=torch.float64, generator=generator(14)))[0].T
    rows = torch.randn(3, 30, dtype=torch.float64, generator=generator(15))
    rows[1] = rows[0] + 1e-9 * rows[1]
    rows[2] = torch.randn(5, dtype=torch.float64, generator=generator(16)) @ basis  # adds nothing
    result = _orthonormal_rows(rows, basis, 1e-14)
    assert result.shape == (2, 30)
    together = torch.cat([basis, result])
    torch.testing.assert_close(together @ together.T, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-14)


def test_eigenpairs_that_do_not_converge_are_an_error():
    matrix = with_eigenvalues(torch.linspace(1, 1.01, 60))
    start = torch.randn(1, 60, dtype=torch.float64, generator=generator(13))
    with pytest.raises(NumericalError, match="did not converge"):
        top_eigenpairs(product(matrix), start, tol=1e-12, max_iterations=3)

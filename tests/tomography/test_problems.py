"""Linear problems: adjoints, meaning, and total variation against its optimality conditions."""

from __future__ import annotations

import pytest
import torch
from tests.tomography.conftest import squares

from marquis.errors import DataError
from marquis.tomography import Blur, Dense, Downsampling, Fourier, Inpainting, ParallelBeam, fbp, simulate, tv
from marquis.tomography.analytic import differences, operator_norm, total_variation
from marquis.tomography.operators import Measurement, as_layer, check_measurement, dense_matrix


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PROBLEMS = {
    "projection": ParallelBeam(8, 5),
    "inpainting": Inpainting(random(8, 6) > 0),
    "blur": Blur(random(3, 5), (8, 7)),
    "downsampling": Downsampling(2, (8, 6)),
    "Fourier": Fourier(random(8, 6) > 0.3),
    "matrix": Dense(random(9, 48), (8, 6)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_adjoint_is_the_transpose(name):
    problem = PROBLEMS[name]
    assert isinstance(problem, Measurement)
    check_measurement(problem)
    matrix = dense_matrix(problem)
    data = random(2, *problem.data_shape, seed=2)
    expected = data.flatten(1) @ matrix
    torch.testing.assert_close(problem.adjoint(data).flatten(1), expected, rtol=1e-10, atol=1e-12)
    assert getattr(problem, "nonnegative", False) == bool((matrix >= 0).all())


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_go_through_the_adjoint(name):
    problem = PROBLEMS[name]
    image = random(*problem.image_shape, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(as_layer(problem), image)


def test_what_the_problems_measure():
    image = random(8, 6, seed=4)
    mask = random(8, 6) > 0
    assert torch.equal(Inpainting(mask).forward(image), image[mask])
    torch.testing.assert_close(Downsampling(2, (8, 6)).forward(image)[1, 2], image[2:4, 4:6].mean())
    spike = torch.zeros(8, 7, dtype=torch.float64)
    spike[4, 3] = 1
    kernel = random(3, 5)
    torch.testing.assert_close(Blur(kernel, (8, 7)).forward(spike)[3:6, 1:6], kernel.flip(0, 1))
    everything = torch.ones(8, 6, dtype=torch.bool)
    torch.testing.assert_close(Fourier(everything).adjoint(Fourier(everything).forward(image)), image)
    assert float(Fourier(everything).forward(image)[0, 0]) == pytest.approx(float(image.sum()) / 48**0.5)


def test_norm_by_power_iteration():
    matrix = random(9, 48)
    ratio = operator_norm(Dense(matrix, (8, 6))) / float(torch.linalg.matrix_norm(matrix, 2))
    assert 1.0 <= ratio < 1.02


@pytest.mark.parametrize("signed", [False, True])
def test_total_variation_reaches_the_optimum(signed):
    """Against a smooth solver on the same convex problem; also where A has signs and steps come from its norm."""
    from scipy.optimize import minimize

    truth = squares(10)
    matrix = random(60, 100) if signed else dense_matrix(ParallelBeam(10, 6))
    problem = Dense(matrix, 10)
    data = simulate(truth, problem, noise=0.05, generator=torch.Generator().manual_seed(0))
    weight = 0.02 if signed else 2e-3

    def objective(image, smoothing=0.0):
        jumps = differences(image)
        variation = (jumps.square() + smoothing**2).sqrt().sum() if smoothing else jumps.abs().sum()
        return (problem.forward(image) - data).square().mean() + weight * variation

    def smooth(values):
        image = torch.tensor(values.reshape(10, 10), requires_grad=True)
        loss = objective(image, 1e-4)
        (gradient,) = torch.autograd.grad(loss, image)
        return float(loss.detach()), gradient.flatten().numpy()

    start = fbp(data, problem).clamp(0, 1).flatten().numpy()
    options = {"maxiter": 3000, "maxfun": 5000}
    result = minimize(smooth, start, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * 100, options=options)
    reference = float(objective(torch.from_numpy(result.x).reshape(10, 10)))
    ours = tv(data, problem, weight, range=(0.0, 1.0), iterations=2000)
    assert float(objective(ours)) <= reference * (1 + 1e-4)
    quick = tv(data, problem, weight, range=(0.0, 1.0))
    assert float(objective(quick)) <= reference * 1.02
    assert float(ours.min()) >= 0 and float(ours.max()) <= 1


def test_more_weight_makes_a_smoother_image():
    geometry = ParallelBeam(10, 6)
    data = simulate(squares(10), geometry, noise=0.1, generator=torch.Generator().manual_seed(0))
    rough, smooth = (total_variation(tv(data, geometry, weight)) for weight in (1e-4, 1e-1))
    assert float(smooth) < 0.5 * float(rough)


class Scaled:
    """An operator whose adjoint is off by a factor, as filtered or normalised back-projections are."""

    image_shape, data_shape = (6, 6), (6, 6)

    def forward(self, images):
        return 2 * images

    def adjoint(self, data):
        return 2.01 * data


class Single(Scaled):
    def adjoint(self, data):
        return (2 * data).float()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: check_measurement(Scaled()), r"not the transpose.*mismatch 0\.005"),
        (lambda: check_measurement(Single()), "float32"),
        (lambda: Inpainting(torch.zeros(3, 3)), "booleans"),
        (lambda: Inpainting(torch.zeros(3, 3, dtype=torch.bool)), "nothing"),
        (lambda: Blur(torch.ones(2, 3), 8), "odd"),
        (lambda: Downsampling(3, 8), "divide"),
        (lambda: Dense(torch.ones(3, 63), 8), "64 pixels"),
        (lambda: Dense(torch.full((3, 64), float("nan")), 8), "NaN"),
        (lambda: tv(torch.zeros(8, 8), Blur(torch.ones(1, 1), 8), -1.0), "weight"),
        (lambda: simulate(torch.zeros(7, 8), Blur(torch.ones(1, 1), 8)), r"\(7, 8\).*\(8, 8\)"),
        (lambda: simulate(torch.ones(8, 8), Blur(torch.ones(1, 1), 8), noise=-0.1), "noise is -0.1"),
    ],
)
def test_bad_problems(make, words):
    with pytest.raises(DataError, match=words):
        make()

"""The latent geometry against closed forms and dense Jacobians, and what it refuses."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from toy_models import LinearModel, estimate

import marquis as mq
from marquis.autoencoders import Autoencoder, LaplacianAutoencoder, VariationalAutoencoder, from_posterior, linearised
from marquis.tasks import geometry
from marquis.tasks.geometry import SampledDecoders


class Sphere(nn.Module):
    """Colatitude and longitude to the unit sphere."""

    def forward(self, z):
        theta, phi = z[:, 0], z[:, 1]
        return torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], 1)


class ByProtocol:
    """A decoder that torch cannot differentiate: no more than the three methods."""

    def __init__(self, function):
        self.function = function

    def decode(self, z, samples=1, *, generator=None, keep=False):
        return estimate(self.function(z).detach()[None], keep)


def sphere(protocol: bool):
    return ByProtocol(Sphere()) if protocol else Autoencoder(nn.Linear(3, 2).double(), Sphere())


def uncertain(seed: int = 0, latent: int = 3):
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, latent)).double()
    decoder = nn.Sequential(nn.Linear(latent, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    model = LaplacianAutoencoder(encoder, decoder, num_data=50, generator=torch.Generator().manual_seed(seed))
    for _ in range(3):
        model.training_loss(torch.randn(20, 5, dtype=torch.float64))
    return model.eval()


@pytest.mark.parametrize("protocol", [False, True])
def test_geodesics_of_a_sphere_are_great_circles(protocol: bool):
    start, end = torch.tensor([0.6, 0.2], dtype=torch.float64), torch.tensor([1.2, 1.9], dtype=torch.float64)
    result = geometry.geodesic(sphere(protocol), start, end, points=65, tolerance=1e-12)
    a, b = Sphere()(torch.stack([start, end]))
    angle = torch.arccos(a @ b)
    assert bool(result.converged.all())
    assert float(result.length[0]) == pytest.approx(float(angle), rel=1e-3)
    t = torch.linspace(0, 1, 65, dtype=torch.float64)[:, None]
    circle = (((1 - t) * angle).sin() * a + (t * angle).sin() * b) / angle.sin()  # spherical interpolation
    assert torch.dist(Sphere()(result.points[0]), circle, p=torch.inf) < 1e-3
    assert result.straight_length[0] > result.length[0] * 1.05  # the straight line in coordinates is no great circle
    of_points = [float(f(sphere(protocol), result.points[0])) for f in (geometry.energy, geometry.length)]
    assert of_points[0] == pytest.approx(of_points[1] ** 2 / 2, rel=1e-6)  # constant speed


def test_the_length_of_a_curve_is_that_of_arcs():
    circle = torch.stack([torch.full((400,), math.pi / 3), torch.linspace(0, 1, 400)], 1).double()
    assert float(geometry.length(sphere(False), circle)) == pytest.approx(math.sin(math.pi / 3), rel=1e-5)
    several = geometry.length(sphere(False), torch.stack([circle, circle.flip(0)]))
    assert several.shape == (2,) and float(several[0]) == pytest.approx(float(several[1]), rel=1e-12)


def test_geodesics_of_linear_decoders_are_straight_lines():
    generator = torch.Generator().manual_seed(0)
    encoder, decoder = torch.randn(3, 6, generator=generator).double(), torch.randn(6, 3, generator=generator).double()
    model = LinearModel(encoder, decoder, scale=0.5)
    start, end = torch.randn(4, 3, generator=generator).double(), torch.randn(4, 3, generator=generator).double()
    detour = torch.randn(30, 3, generator=generator).double()  # a start that is not the answer
    decoders = SampledDecoders(model, 7, generator=torch.Generator().manual_seed(1))
    curve, converged = geometry._minimised(
        decoders, geometry._along_codes(decoders, straight(start, end, 9), detour), 100, 1e-12
    )
    assert bool(converged.all())
    torch.testing.assert_close(curve, straight(start, end, 9), rtol=1e-6, atol=1e-6)
    result = geometry.geodesic(decoders, start, end, points=9)
    torch.testing.assert_close(result.points, straight(start, end, 9))
    networks = model.networks(7, decoders._same.generator())
    expected = torch.stack([((end - start) @ d.T).square().sum(1) for _, d in networks]).mean(0).sqrt()
    torch.testing.assert_close(result.length, expected)
    torch.testing.assert_close(
        geometry.distances(decoders, start[0], end),
        geometry.geodesic(decoders, start[:1].expand(4, 3), end, points=9).length,
    )


def straight(start, end, points):
    t = torch.linspace(0, 1, points, dtype=start.dtype)[:, None]
    return start[:, None] * (1 - t) + end[:, None] * t


@pytest.mark.parametrize("kind", ["laplacian", "posterior", "linearised", "protocol", "variational"])
def test_the_metric_is_that_of_dense_jacobians(kind: str):
    model = uncertain()
    if kind == "posterior":
        model = from_posterior(model.encoder, model.decoder, model.posterior(), model.likelihood)
    elif kind == "linearised":
        model = linearised(model)
    elif kind == "variational":
        model = VariationalAutoencoder(model.encoder, model.decoder).eval()
    z = torch.randn(4, 3, dtype=torch.float64)
    if kind == "protocol":
        matrix = torch.randn(5, 3, dtype=torch.float64)
        model = ByProtocol(lambda z: (z @ matrix.T).sin())
        jacobians = [[(z_i @ matrix.T).cos()[:, None] * matrix for z_i in z]]
    else:
        # one sample's weights at a time, differentiated by torch's own dense Jacobian
        seed = geometry.SampledDecoders(model, 6, generator=torch.Generator().manual_seed(3))._same
        draws = list(model.sampled_models(1 if kind == "variational" else 6, seed.generator()))
        jacobian = torch.autograd.functional.jacobian
        jacobians = [[jacobian(lambda v, d=d: d.decode(v[None]).mean[0], z_i) for z_i in z] for d in draws]
    expected = torch.stack([torch.stack([j.T @ j for j in row]) for row in jacobians]).mean(0)
    result = geometry.metric(model, z, 6, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        geometry.volume(model, z, 6, generator=torch.Generator().manual_seed(3)), torch.linalg.det(expected).sqrt()
    )


def test_the_expected_metric_exceeds_that_of_the_mean_decoder_by_the_covariance_of_slopes():
    decoders = SampledDecoders(uncertain(), 9, generator=torch.Generator().manual_seed(0))
    z = torch.randn(3, 3, dtype=torch.float64)
    jacobians = torch.stack([jacobian for _, jacobian in decoders.jacobians(z)])
    of_mean = torch.einsum("ndk,ndl->nkl", jacobians.mean(0), jacobians.mean(0))
    excess = torch.linalg.eigvalsh(geometry.metric(decoders, z) - of_mean)
    assert bool((excess > 0).all())


class Ridge(nn.Module):
    """A plane with a steep hill between two points; around it the ground is flat."""

    def forward(self, z):
        hill = 6 * torch.exp(-(z[:, 0] ** 2 + z[:, 1] ** 2) / 0.3)
        return torch.cat([z, hill[:, None]], 1)


def test_data_around_an_obstacle_give_the_shorter_curve():
    model = Autoencoder(nn.Linear(3, 2).double(), Ridge())
    start, end = torch.tensor([-1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double()
    angles = torch.linspace(0, math.pi, 60).double()
    around = torch.stack([angles.cos(), angles.sin()], 1) * 1.02
    over = geometry.geodesic(model, start, end)  # symmetric: Gauss-Newton cannot leave the ridge
    result = geometry.geodesic(model, start, end, through=around)
    assert float(over.length[0]) > 1.5 * float(result.length[0]) > 3
    assert float(result.length[0]) < math.pi  # and shorter than the arc of data itself


def test_threads_get_the_same_geodesics():
    decoders = SampledDecoders(uncertain(), 5, generator=torch.Generator().manual_seed(0))
    pairs = [(torch.randn(3).double(), torch.randn(3).double()) for _ in range(8)]
    alone = [geometry.geodesic(decoders, *pair, points=7).points for pair in pairs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda pair: geometry.geodesic(decoders, *pair, points=7).points, pairs))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: geometry.metric(m, torch.tensor([[math.nan, 0.0]])), "finite codes"),
        (lambda m: geometry.geodesic(m, torch.zeros(2), torch.zeros(3, 2)), "one end each"),
        (lambda m: geometry.geodesic(m, torch.zeros(2), torch.ones(2), points=2), "points=2"),
        (lambda m: geometry.length(m, torch.zeros(1, 2)), "two points or more"),
        (lambda m: geometry.metric(m, torch.zeros(1, 7)), "cannot take data of shape"),
        (lambda m: geometry.metric(object(), torch.zeros(1, 2)), "has no method `decode"),
    ],
)
def test_what_it_refuses(call, message: str):
    torch.manual_seed(0)
    with pytest.raises(mq.MarquisError, match=message):
        call(Autoencoder(nn.Linear(3, 2), nn.Linear(2, 3)))

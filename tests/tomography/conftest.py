"""A small trained deep image prior, its Jacobian by an independent route, and variances to test with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from marquis.tomography import ParallelBeam, UNet, deep_image_prior, simulate
from marquis.tomography.operators import dense_matrix
from marquis.tomography.posterior import ExactPrior, IterativePrior, linearise
from marquis.tomography.tangent import LinearisedImage
from marquis.tomography.training import TrainedImage


def squares(size: int) -> Tensor:
    image = torch.zeros(size, size, dtype=torch.float64)
    image[2:6, 3:8] = 0.8
    image[5:9, 1:5] = 0.4
    return image


@dataclass(frozen=True, eq=False)
class Small:
    """Ten by ten pixels, eight angles of sixteen bins; everything dense and in float64."""

    truth: Tensor
    geometry: ParallelBeam
    data: Tensor
    trained: TrainedImage
    exact: ExactPrior
    iterative: IterativePrior
    jacobian: Tensor  # [dx, P]
    matrix: Tensor  # [dy, dx]
    variance: Tensor  # [blocks]
    noise: float

    @property
    def weight_variances(self) -> Tensor:
        return self.variance.repeat_interleave(torch.tensor(self.exact.linearised.sizes))

    def dense_image_covariance(self) -> Tensor:
        return (self.jacobian * self.weight_variances) @ self.jacobian.T

    def dense_data_covariance(self) -> Tensor:
        signal = self.matrix @ self.dense_image_covariance() @ self.matrix.T
        return signal + self.noise * torch.eye(len(self.matrix), dtype=torch.float64)

    def dense_posterior(self) -> Tensor:
        prior = self.dense_image_covariance()
        cross = prior @ self.matrix.T
        return prior - cross @ torch.linalg.solve(self.dense_data_covariance(), cross.T)


class DenseProducts(LinearisedImage):
    """The same linearised image with products by a dense Jacobian: fast where only the algebra is tested."""

    def __init__(self, trained: TrainedImage, jacobian: Tensor) -> None:
        super().__init__(trained.network, trained.inputs)
        self._jacobian = jacobian.to(self.dtype)

    def jvp(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype) @ self._jacobian.T

    def vjp(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype) @ self._jacobian


def dense_jacobian(prior: ExactPrior | IterativePrior, trained: TrainedImage) -> Tensor:
    """By reverse mode through `torch.func`, one tensor at a time: none of the code under test."""
    network = trained.network.double()
    names = [name for names in prior.linearised.blocks.values() for name in names]
    values = {name: network.get_parameter(name).detach() for name in names}

    def call(parameters):
        return torch.func.functional_call(network, parameters, (trained.inputs.double(),)).flatten()

    jacobians = torch.func.jacrev(call)(values)
    network.float()
    return torch.cat([jacobians[name].flatten(1) for name in names], dim=1).detach()


@pytest.fixture(scope="session")
def small() -> Small:
    truth = squares(10)
    geometry = ParallelBeam(10, 8, detectors=16)
    generator = torch.Generator().manual_seed(0)
    data = simulate(truth, geometry, noise=0.05, generator=generator)
    network = UNet((3, 4, 4), range=(0.0, 1.0), norm=True)
    trained = deep_image_prior(
        data, geometry, tv=1e-3, range=(0.0, 1.0), steps=150, network=network, generator=generator, progress=False
    )
    exact = linearise(trained, geometry, posterior="exact")
    iterative = linearise(trained, geometry, posterior="iterative", generator=generator)
    assert isinstance(exact, ExactPrior) and isinstance(iterative, IterativePrior)
    blocks = len(exact.linearised.blocks)
    variance = torch.linspace(0.05, 0.4, blocks, dtype=torch.float64)
    jacobian = dense_jacobian(exact, trained)
    return Small(truth, geometry, data, trained, exact, iterative, jacobian, dense_matrix(geometry), variance, 0.02)

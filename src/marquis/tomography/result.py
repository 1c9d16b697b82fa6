"""Hold an image with its uncertainty, as every method of this package returns it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from marquis.arguments import LARGEST_COUNT, AtLeastOne, Share, checked, checked_arrays
from marquis.curvature.linop.nystrom import nystrom
from marquis.errors import DataError, UnsupportedOperationError
from marquis.tomography.evidence import TunedPrior
from marquis.tomography.operators import (
    Measurement,
    adjoint_rows,
    check_image,
    dense_matrix,
    forward_rows,
    pixels,
)

FLOOR_RANK = 100
FLOOR_SHARE = 0.01
DENSE_PIXELS = 2500

Sampler = Callable[[int, torch.Generator | None], Tensor]
"""A number of samples and a generator to deviations from the image `[n, dx]`."""


@dataclass(frozen=True, eq=False)
class UncertainImage:
    """Hold a reconstruction with a Gaussian over its pixels.

    Standard deviations, intervals, samples and densities include `floor`, a small variance that every pixel has: the
    noise's share in the directions that the data determine best. Without it, pixels at which the network's output
    saturates would have a variance of zero.

    Attributes:
        image: the mean `[H, W]`, float64.
        variance: variance of each pixel `[H, W]`, without the floor.
        floor: variance added to every pixel.
        noise_variance: variance of the noise of one reading.
        measurement: the operator that was measured with.
        method: how the uncertainty was computed.
        posterior_covariance: `[dx, dx]` without the floor, where the method has one.
        deviations: samples of the posterior minus the image `[n, dx]`, where the method works by samples.
        tuned: variances and noise, where they were tuned.
        notes: what a user should know.
    """

    image: Tensor
    variance: Tensor
    floor: float
    noise_variance: float
    measurement: Measurement
    method: str
    posterior_covariance: Tensor | None = None
    deviations: Tensor | None = None
    sampler: Sampler | None = None
    tuned: TunedPrior | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a floor that is no variance."""
        if not 0 <= self.floor < math.inf:
            raise DataError(f"floor is {self.floor}; a variance is finite and not negative.")

    @property
    def std(self) -> Tensor:
        """Return the standard deviation of each pixel `[H, W]`."""
        return (self.variance + self.floor).sqrt()

    @cached_property
    def covariance(self) -> Tensor:
        """Return the covariance of all pixels `[dx, dx]`, row by row; exact mode only.

        Raises:
            UnsupportedOperationError: this result has variances or samples only.
        """
        if self.posterior_covariance is None:
            raise UnsupportedOperationError(
                f"{self.method} has no covariance matrix; use .std and .sample, or reconstruct with posterior='exact'."
            )
        return self.posterior_covariance + self.floor * torch.eye(self.image.numel(), dtype=torch.float64)

    @checked
    def sample(self, count: AtLeastOne = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Return images `[count, H, W]` from the posterior; in iterative mode each costs one linear solve."""
        if count > LARGEST_COUNT:
            raise DataError(f"count is {count}; at most {LARGEST_COUNT:,} images are sampled at once.")
        noise = torch.randn(count, self.image.numel(), generator=generator, dtype=torch.float64)
        if self.posterior_covariance is not None:
            rows = noise @ self._root
        elif self.sampler is not None:
            rows = self.sampler(count, generator).double() + math.sqrt(self.floor) * noise
        else:
            rows = noise * self.std.flatten()
        return self.image + rows.reshape(count, *self.image.shape)

    @cached_property
    def _root(self) -> Tensor:
        """Return `Vᵀ` scaled so that noise times it has the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return values.clamp_min(0.0).sqrt()[:, None] * vectors.T

    @checked
    def interval(self, level: Share = 0.95) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends `[H, W]` of each pixel's central interval."""
        width = math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)) * self.std
        return self.image - width, self.image + width

    @checked_arrays
    def log_density(self, image: Tensor, *, marginal: bool | None = None) -> float:
        """Return the log density of an image `[H, W]` (of all its pixels together; divide by their number to compare).

        Args:
            image: for example the truth of a simulation.
            marginal: whether to treat pixels as independent; by default only where there is no covariance.
        """
        error = (check_image(image, self.measurement) - self.image).flatten()
        if marginal or (marginal is None and self.posterior_covariance is None):
            variance = self.std.flatten().square()
            return float(-0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi)).sum())
        factor = torch.linalg.cholesky(self.covariance)
        white = torch.linalg.solve_triangular(factor, error[:, None], upper=False)
        logdet = 2 * factor.diagonal().log().sum()
        return float(-0.5 * (white.square().sum() + logdet + error.numel() * math.log(2 * math.pi)))

    def report(self) -> str:
        """Return a table: method, sizes, noise, variances, notes."""
        height, width = self.image.shape
        std = self.std
        lines = [
            f"{self.method}: {height} x {width} pixels, {math.prod(self.measurement.data_shape)} readings",
            f"values             {float(self.image.min()):.4g} to {float(self.image.max()):.4g}",
            f"standard deviation {float(std.min()):.3g} to {float(std.max()):.3g}, mean {float(std.mean()):.3g}",
            f"floor              {math.sqrt(self.floor):.3g}",
        ]
        if self.deviations is not None:
            error = 1 / math.sqrt(2 * self.deviations.shape[0])
            lines.append(f"samples            {self.deviations.shape[0]} (each std is within about {error:.0%})")
        if self.tuned is not None:
            lines.append(str(self.tuned))
        else:
            lines.append(f"noise variance     {self.noise_variance:.4g}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"UncertainImage({self.method}, {tuple(self.image.shape)}, mean std {float(self.std.mean()):.3g})"


def noise_floor(measurement: Measurement) -> float:
    """Return `tr(pinv(AᵀA)) / dx` over the best-seen directions: a pixel's mean variance there by unit noise.

    Directions are the 100 leading ones, without those whose eigenvalue is below 1 % of the largest: an operator
    that sees fewer directions well (a blur, a small image) would otherwise make the floor arbitrarily large.
    """
    count = pixels(measurement)
    if count <= DENSE_PIXELS:
        matrix = dense_matrix(measurement)
        values = torch.linalg.eigvalsh(matrix.T @ matrix).flip(0)[:FLOOR_RANK]
    else:
        generator = torch.Generator().manual_seed(0)
        approximation = nystrom(
            lambda rows: adjoint_rows(measurement, forward_rows(measurement, rows)),
            count,
            min(2 * FLOOR_RANK, count),
            generator=generator,
            rows_per_product=32,
        )
        values = approximation.values[:FLOOR_RANK]
    values = values[values > FLOOR_SHARE * values[0]]
    return float((1 / values).sum() / count)

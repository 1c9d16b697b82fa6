"""Compute the exact mode: the prior's covariance of image and data, block by block, as dense matrices.

A covariance is a sum of fixed matrices with coefficients, `Σ_t c_t M_t`. With independent weights there is one term
per block and its coefficient is the block's variance. With a Gaussian process over the nine taps of a 3 x 3 filter
there are six terms, one per distance of two taps, with coefficients `v_d exp(-r / ℓ_d)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.curvature.linop.iterative import rademacher
from marquis.progress import ProgressBar
from marquis.tomography.analytic import differences
from marquis.tomography.operators import Measurement, pixels, readings, sandwich
from marquis.tomography.tangent import WHOLE_JACOBIAN, LinearisedImage

BUDGET = 4 * 2**30
"""Bytes that the exact mode may take."""

TAP_DISTANCES = 6


@dataclass(frozen=True, eq=False)
class Grams:
    """Hold the terms of the prior's covariances, `T` of them.

    Attributes:
        block: index of each term's block `[T]`.
        distance: distance of the taps that a term couples `[T]`; 0 for independent weights.
        image: `J_t J_tᵀ`, `[T, dx, dx]`.
        data: `A J_t J_tᵀ Aᵀ`, `[T, dy, dy]`.
        roughness: `diag(D J_t J_tᵀ Dᵀ)`, `[T, m]`: the prior variances of differences of neighbouring pixels.
    """

    block: Tensor
    distance: Tensor
    image: Tensor
    data: Tensor
    roughness: Tensor

    def coefficients(self, variance: Tensor, lengthscale: Tensor | None = None) -> Tensor:
        """Return `[T]` coefficients for variances `[blocks]` and, with a process over taps, lengthscales `[blocks]`."""
        coefficients = variance[self.block]
        if lengthscale is not None:
            coefficients = coefficients * torch.exp(-self.distance / lengthscale[self.block])
        return coefficients

    def independent(self) -> Grams:
        """Return the terms of independent weights: those that couple a tap with itself."""
        independent = self.distance == 0
        parts = (self.block, self.distance, self.image, self.data, self.roughness)
        return Grams(*(part[independent] for part in parts))

    def image_covariance(self, coefficients: Tensor) -> Tensor:
        """Return `K_xx`, `[dx, dx]`."""
        return torch.tensordot(coefficients, self.image, 1)

    def data_covariance(self, coefficients: Tensor, noise_variance: Tensor | float) -> Tensor:
        """Return `K_yy`, `[dy, dy]`, noise included."""
        size = self.data.shape[-1]
        signal = (coefficients @ self.data.flatten(1)).reshape(size, size)
        return signal + noise_variance * torch.eye(size, dtype=self.data.dtype)


def exact_bytes(linearised: LinearisedImage, measurement: Measurement, taps: bool = False) -> int:
    """Return the bytes that the exact mode takes at its largest."""
    filters = linearised.filter_blocks()
    terms = sum(TAP_DISTANCES if taps and is_filter else 1 for is_filter in filters)
    dx, dy = pixels(measurement), readings(measurement)
    whole = 8 * dx * linearised.weights.numel() <= WHOLE_JACOBIAN
    largest = linearised.weights.numel() if whole else max(linearised.sizes)
    return 8 * (terms * (dx**2 + dy**2) + 2 * dx * largest + 4 * dy**2 + 3 * dx * dy)


def compute_grams(
    linearised: LinearisedImage,
    measurement: Measurement,
    *,
    taps: bool = False,
    progress: bool = False,
) -> Grams:
    """Compute all terms from the blocks' Jacobians, which are streamed one at a time.

    Costs dx vector-Jacobian products per block and `dx² P` operations (six times as many with `taps`).
    """
    block, distance, image, data, roughness = [], [], [], [], []
    classes = tap_classes()
    with ProgressBar("Jacobian", len(linearised.blocks), progress) as bar:
        jacobians = linearised.block_jacobians()
        for index, (jacobian, is_filter) in enumerate(zip(jacobians, linearised.filter_blocks(), strict=True)):
            mixings = classes if taps and is_filter else [(0.0, None)]
            for separation, mixing in mixings:
                partner = jacobian if mixing is None else (jacobian.unflatten(1, (-1, 9)) @ mixing).flatten(1)
                term = jacobian @ partner.T
                block.append(index)
                distance.append(separation)
                image.append(term)
                data.append(sandwich(measurement, term))
                roughness.append(difference_variances(term, measurement.image_shape))
            bar.advance()
    return Grams(
        torch.tensor(block),
        torch.tensor(distance, dtype=torch.float64),
        torch.stack(image),
        torch.stack(data),
        torch.stack(roughness),
    )


def tap_classes() -> list[tuple[float, Tensor]]:
    """Return the six distances of two taps of a 3 x 3 filter, each with its 0-1 matrix `[9, 9]` of such pairs."""
    position = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double()
    squared = (position[:, None] - position[None]).square().sum(-1)
    return [(float(value) ** 0.5, (squared == value).double()) for value in squared.unique()]


def difference_variances(covariance: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return `diag(D M Dᵀ)` for an image-space matrix `[dx, dx]`: variances of neighbouring pixels' differences."""
    index = torch.arange(shape[0] * shape[1]).reshape(shape)
    first = torch.cat([index[:, :-1].flatten(), index[:-1].flatten()])
    second = torch.cat([index[:, 1:].flatten(), index[1:].flatten()])
    diagonal = covariance.diagonal()
    variances = diagonal[first] + diagonal[second] - covariance[first, second] - covariance[second, first]
    return variances.clamp_min(0.0)


def sampled_roughness(
    linearised: LinearisedImage, probes: int, generator: torch.Generator | None, by_block: bool
) -> Tensor:
    """Estimate `diag(D J_d J_dᵀ Dᵀ)` by `mean (D J_d z)²` with Rademacher probes; `[blocks or 1, m]`."""
    total = linearised.weights.numel()
    z = rademacher(probes, total, generator=generator, device=torch.device("cpu"), dtype=linearised.dtype)
    rows = []
    parts = linearised.slices if by_block else [slice(0, total)]
    for part in parts:
        masked = torch.zeros_like(z)
        masked[:, part] = z[:, part]
        images = linearised.jvp(masked).reshape(probes, *linearised.image.shape)
        rows.append(differences(images).square().mean(dim=0))
    return torch.stack(rows)

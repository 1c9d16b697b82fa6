"""Reconstruct without a network: a starting image, and total variation by a primal-dual method."""

from __future__ import annotations

import builtins
import math

import torch
from torch import Tensor

from marquis.arguments import Positive, checked
from marquis.errors import DataError
from marquis.functional.checks import check_finite
from marquis.tomography.operators import Measurement, check_data, readings

ITERATIONS = 300


@checked
def fbp(data: Tensor, measurement: Measurement) -> Tensor:
    """Return the filtered back-projection; for a measurement without one, a scaled adjoint.

    The scale is the length of a steepest-descent step from zero on `|y - A x|²`.
    """
    data = check_data(data, measurement)
    method = getattr(measurement, "fbp", None)
    if method is not None:
        return method(data)
    image = measurement.adjoint(data)
    projected = measurement.forward(image)
    return image * (image.square().sum() / projected.square().sum().clamp_min(torch.finfo(torch.float64).tiny))


def differences(images: Tensor) -> Tensor:
    """Return all differences of neighbouring pixels of `[..., H, W]`, horizontal ones first, as `[..., m]`."""
    horizontal = images[..., :, 1:] - images[..., :, :-1]
    vertical = images[..., 1:, :] - images[..., :-1, :]
    return torch.cat([horizontal.flatten(-2), vertical.flatten(-2)], dim=-1)


def differences_adjoint(values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the transpose of `differences` applied to `[..., m]`, as images `[..., H, W]`."""
    height, width = shape
    horizontal, vertical = values.split([height * (width - 1), (height - 1) * width], dim=-1)
    horizontal = horizontal.unflatten(-1, (height, width - 1))
    vertical = vertical.unflatten(-1, (height - 1, width))
    images = values.new_zeros(*values.shape[:-1], height, width)
    images[..., :, 1:] += horizontal
    images[..., :, :-1] -= horizontal
    images[..., 1:, :] += vertical
    images[..., :-1, :] -= vertical
    return images


@checked
def total_variation(images: Tensor) -> Tensor:
    """Return the anisotropic total variation, the sum of absolute differences, of `[..., H, W]`."""
    if images.dim() < 2 or images.dtype == torch.bool:
        raise DataError(f"images of shape {list(images.shape)} ({images.dtype}): [..., H, W] in numbers are needed.")
    check_finite(images, "images")
    return differences(images).abs().sum(dim=-1)


@checked
def tv(
    data: Tensor,
    measurement: Measurement,
    weight: Positive,
    *,
    range: tuple[float, float] | None = None,
    iterations: int = ITERATIONS,
) -> Tensor:
    """Return the image that minimises `|y - A x|² / dy + weight TV(x)`.

    Chambolle and Pock's primal-dual method with the diagonal steps of Pock and Chambolle (2011), applied to
    `½ |s A x - s y|² + TV(x)`, `s² = 2 / (weight dy)`. Costs one `forward` and one `adjoint` per iteration.

    Args:
        data: what was measured.
        measurement: the operator A.
        weight: weight of the total variation, positive.
        range: least and largest value of a pixel; only non-negative values by default.
        iterations: number of iterations.
    """
    data = check_data(data, measurement)
    low, high = (0.0, math.inf) if range is None else range
    scale = math.sqrt(2 / (weight * readings(measurement)))
    row_sums, column_sums = _absolute_sums(measurement)
    shape = measurement.image_shape
    neighbours = _neighbour_counts(shape)
    primal_step = 1 / (scale * column_sums + neighbours)
    dual_step = 1 / (scale * row_sums)
    x = fbp(data, measurement).clamp(low, high)
    extrapolated = x
    dual, dual_tv = torch.zeros_like(data), differences(torch.zeros_like(x))
    for _ in builtins.range(iterations):
        residual = scale * (measurement.forward(extrapolated) - data)
        dual = (dual + dual_step * residual) / (1 + dual_step)
        dual_tv = (dual_tv + 0.5 * differences(extrapolated)).clamp(-1, 1)
        gradient = scale * measurement.adjoint(dual) + differences_adjoint(dual_tv, shape)
        following = (x - primal_step * gradient).clamp(low, high)
        extrapolated = 2 * following - x
        x = following
    return x


def _neighbour_counts(shape: tuple[int, int]) -> Tensor:
    """Return each pixel's number of neighbours: the column sums of |D|."""
    counts = torch.full(shape, 4.0, dtype=torch.float64)
    counts[0] -= 1
    counts[-1] -= 1
    counts[:, 0] -= 1
    counts[:, -1] -= 1
    return counts


def _absolute_sums(measurement: Measurement) -> tuple[Tensor, Tensor]:
    """Return row and column sums of |A|, or its norm in every place where its entries have signs.

    Both satisfy the convergence condition of Pock and Chambolle (2011, lemma 2).
    """
    if getattr(measurement, "nonnegative", False):
        rows = measurement.forward(torch.ones(measurement.image_shape, dtype=torch.float64))
        columns = measurement.adjoint(torch.ones(measurement.data_shape, dtype=torch.float64))
        # A bin that sees no pixel has residual -y, whatever the step.
        return torch.where(rows > 0, rows, rows.max()), columns
    norm = operator_norm(measurement)
    ones = torch.ones(measurement.data_shape, dtype=torch.float64)
    return norm * ones, norm * torch.ones(measurement.image_shape, dtype=torch.float64)


def operator_norm(measurement: Measurement) -> float:
    """Return an upper estimate of A's largest singular value, by 50 power iterations (times 1.01)."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(measurement.image_shape, generator=generator, dtype=torch.float64)
    value = 0.0
    for _ in range(50):
        vector = vector / vector.norm()
        vector = measurement.adjoint(measurement.forward(vector))
        value = float(vector.norm())
    return 1.01 * math.sqrt(value)

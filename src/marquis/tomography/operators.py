"""Define linear inverse problems: what a measurement has to offer, and how it is checked, applied and simulated.

The rest of `marquis.tomography` sees a measurement only through `forward` and `adjoint`. Both are called outside
`torch.func` (which cannot differentiate sparse products): the operator is linear, so its derivative is itself and the
derivative's transpose is the adjoint.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from marquis.arguments import NotNegative, as_numbers, checked
from marquis.errors import DataError
from marquis.functional.linear_map import LinearMap

LARGEST_STD = 1e150
"""Largest standard deviation of the noise: its square is a float."""
ADJOINT_TOLERANCE = 1e-4
LARGEST_EDGE = 8192
"""Pixels along an edge: more do not fit the network's memory, and are taken for a mistake."""


@runtime_checkable
class Measurement(Protocol):
    """Describe a linear map from images to data, `y = A x`."""

    @property
    def image_shape(self) -> tuple[int, int]:
        """Return height and width of an image."""
        ...

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Return the shape of one image's data."""
        ...

    def forward(self, images: Tensor) -> Tensor:
        """Return `A x`: images `[..., H, W]` to data `[..., *data_shape]`, in the images' floating type."""
        ...

    def adjoint(self, data: Tensor) -> Tensor:
        """Return `Aᵀ y`: data `[..., *data_shape]` to images `[..., H, W]`, in the data's floating type."""
        ...


def image_edges(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width of an image, given as one edge or both.

    Raises:
        DataError: not whole numbers, fewer than 2 or more than 8192.
    """
    edges = (size, size) if isinstance(size, int) else tuple(size)
    if len(edges) != 2 or not all(isinstance(edge, int) for edge in edges):
        raise DataError(f"size is {size}; pass one whole number, or height and width.")
    if not 2 <= min(edges) <= max(edges) <= LARGEST_EDGE:
        raise DataError(f"size is {size}; an image needs at least 2 x 2 pixels, and at most {LARGEST_EDGE} an edge.")
    return edges


@checked
def as_layer(measurement: Measurement) -> LinearMap:
    """Return the measurement as the last layer of a network: gradients and curvature go through it.

    `mq.Laplace(nn.Sequential(network, as_layer(measurement)), ...)` fits a posterior to the data, and
    `predict(x, at="0")` reads it at the image.
    """
    return LinearMap(measurement.forward, measurement.adjoint, measurement.image_shape, measurement.data_shape)


def pixels(measurement: Measurement) -> int:
    """Return the number of pixels, dx."""
    return math.prod(measurement.image_shape)


def readings(measurement: Measurement) -> int:
    """Return the number of readings, dy."""
    return math.prod(measurement.data_shape)


def forward_rows(measurement: Measurement, rows: Tensor) -> Tensor:
    """Return `A x` for flattened images `[k, dx]`, as `[k, dy]`."""
    return measurement.forward(rows.reshape(-1, *measurement.image_shape)).reshape(rows.shape[0], -1)


def adjoint_rows(measurement: Measurement, rows: Tensor) -> Tensor:
    """Return `Aᵀ y` for flattened data `[k, dy]`, as `[k, dx]`."""
    return measurement.adjoint(rows.reshape(-1, *measurement.data_shape)).reshape(rows.shape[0], -1)


def dense_matrix(measurement: Measurement) -> Tensor:
    """Return A written out, `[dy, dx]` in float64; costs dx applications."""
    return forward_rows(measurement, torch.eye(pixels(measurement), dtype=torch.float64)).T.contiguous()


def sandwich(measurement: Measurement, matrix: Tensor) -> Tensor:
    """Return `A M Aᵀ` for a symmetric image-space matrix `[dx, dx]`."""
    half = forward_rows(measurement, matrix)  # M Aᵀ, rows are pixels
    product = forward_rows(measurement, half.T.contiguous())
    return (product + product.T) / 2


@checked
def check_measurement(measurement: Measurement, seed: int = 0) -> None:
    """Check shapes, types and the adjoint identity `<A x, y> = <x, Aᵀ y>` for random `x`, once with `y = A x`.

    An independent random `y` is nearly orthogonal to `A x` and would miss a wrong scale; `A x` itself does not.

    Raises:
        DataError: a product has another shape or type than promised, is not finite, or the identity fails by more
            than 1e-4 of `|A x| |y|`; the message has the mismatch.
    """
    name = type(measurement).__name__
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(measurement.image_shape, generator=generator, dtype=torch.float64)
    data = torch.randn(measurement.data_shape, generator=generator, dtype=torch.float64)
    projected, returned = measurement.forward(image), measurement.adjoint(data)
    for what, value, shape in (
        ("forward", projected, measurement.data_shape),
        ("adjoint", returned, measurement.image_shape),
    ):
        if tuple(value.shape) != tuple(shape) or value.dtype != torch.float64:
            raise DataError(
                f"{name}.{what} returned {value.dtype} of shape {tuple(value.shape)} for a float64 input; expected "
                f"float64 of shape {tuple(shape)}."
            )
        if not bool(torch.isfinite(value).all()):
            raise DataError(f"{name}.{what} returned values that are not finite for a finite input.")
    if not bool(projected.any()):
        raise DataError(f"{name}.forward maps a random image to zero: there is nothing to reconstruct from.")
    for vector, back in ((data, returned), (projected, measurement.adjoint(projected))):
        left, right = float((projected * vector).sum()), float((image * back).sum())
        size = float(projected.norm() * vector.norm())
        if not 0.0 < size < math.inf:
            raise DataError(
                f"{name}.forward maps numbers around 1 to some of size {float(projected.norm()):.3g}, whose products "
                "no float holds; give lengths and readings in other units."
            )
        mismatch = abs(left - right) / size
        if mismatch > ADJOINT_TOLERANCE:
            raise DataError(
                f"{name}.adjoint is not the transpose of {name}.forward: <A x, y> = {left:.6g} but <x, Aᵀ y> = "
                f"{right:.6g} (mismatch {mismatch:.2g} of |A x| |y|, at most {ADJOINT_TOLERANCE:g}). Scaling or "
                "filtering inside adjoint is the usual cause."
            )


def check_data(data: Tensor, measurement: Measurement, name: str = "data") -> Tensor:
    """Return the data in float64 after checking their shape and that they are finite.

    Raises:
        DataError: another shape than the measurement's (both are named), NaN or infinite entries.
    """
    data = data if isinstance(data, Tensor) else torch.as_tensor(as_numbers(name, data))
    if tuple(data.shape) != tuple(measurement.data_shape):
        raise DataError(
            f"{name} has shape {tuple(data.shape)}, but {type(measurement).__name__} measures "
            f"{tuple(measurement.data_shape)}; pass the geometry with which it was recorded."
        )
    if data.is_complex():
        raise DataError(f"{name} is complex; pass real and imaginary parts as readings, as `Fourier` does.")
    data = data.to(torch.float64)
    bad = ~torch.isfinite(data.square())  # as large as that, no sum of squares could be computed
    if bool(bad.any()):
        place = tuple(int(i) for i in bad.nonzero()[0])
        raise DataError(f"{name} has {int(bad.sum())} NaN or infinite entries, the first at {place}.")
    return data


def check_image(image: Tensor, measurement: Measurement, name: str = "image") -> Tensor:
    """Return an image in float64 after checking its shape and that it is finite."""
    image = image if isinstance(image, Tensor) else torch.as_tensor(as_numbers(name, image))
    if tuple(image.shape) != tuple(measurement.image_shape):
        raise DataError(f"{name} has shape {tuple(image.shape)}; expected {tuple(measurement.image_shape)}.")
    if not bool(torch.isfinite(image).all()):
        raise DataError(f"{name} has NaN or infinite entries.")
    return image.to(torch.float64)


def noise_std(data: Tensor, noise: float) -> float:
    """Return the noise's standard deviation: `noise` times the mean absolute reading.

    Raises:
        DataError: all data are zero, or no float holds the variance.
    """
    level = float(data.abs().mean())
    if level == 0.0:
        raise DataError("all readings are zero: there is nothing to reconstruct, and noise relative to them is zero.")
    if noise * level > LARGEST_STD:
        raise DataError(f"noise={noise:.3g} of readings of {level:.3g} has a variance that no float holds; pass less.")
    return noise * level


@checked
def simulate(
    image: Tensor, measurement: Measurement, *, noise: NotNegative = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Return simulated data `A x + e`, `e` Gaussian with standard deviation `noise` times the mean of `|A x|`.

    Args:
        image: `[H, W]`.
        measurement: what is measured.
        noise: relative standard deviation of the noise.
        generator: source of the noise.
    """
    clean = measurement.forward(check_image(image, measurement))
    std = noise_std(clean, noise)
    return clean + std * torch.randn(clean.shape, generator=generator, dtype=clean.dtype)

"""Define inverse problems other than X-ray projection: inpainting, blur, downsampling, Fourier samples, a matrix."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.arguments import as_numbers, checked_arrays, checked_methods
from marquis.errors import DataError
from marquis.tomography.operators import image_edges


@checked_methods
class Inpainting:
    """Measure some pixels; the others are missing.

    Args:
        mask: `[H, W]`, true where a pixel is measured.
    """

    nonnegative = True

    @checked_arrays
    def __init__(self, mask: Tensor) -> None:
        self._mask = _as_mask(mask)
        self.image_shape = int(self._mask.shape[0]), int(self._mask.shape[1])
        self.data_shape = (int(self._mask.sum()),)

    def forward(self, images: Tensor) -> Tensor:
        """Return the measured pixels `[..., m]`."""
        return _fitting(self, images, self.image_shape)[..., self._mask]

    def adjoint(self, data: Tensor) -> Tensor:
        """Return images with the data in their places and zeros elsewhere."""
        data = _fitting(self, data, self.data_shape)
        images = data.new_zeros(*data.shape[:-1], *self.image_shape)
        images[..., self._mask] = data
        return images


@checked_methods
class Blur:
    """Convolve with a kernel; pixels outside the image count as zero, the output has the image's size.

    Args:
        kernel: `[h, w]`, both odd; applied as a correlation, as `torch.nn.functional.conv2d` does.
        size: edge of the image in pixels, or its height and width.
    """

    @checked_arrays
    def __init__(self, kernel: Tensor, size: int | tuple[int, int]) -> None:
        kernel = torch.as_tensor(as_numbers("kernel", kernel))
        if kernel.ndim != 2 or kernel.shape[0] % 2 == 0 or kernel.shape[1] % 2 == 0:
            raise DataError(f"kernel has shape {tuple(kernel.shape)}; it needs two odd dimensions.")
        self.image_shape = self.data_shape = image_edges(size)
        self.nonnegative = bool((kernel >= 0).all())
        self._kernel, self._padding = kernel, (kernel.shape[0] // 2, kernel.shape[1] // 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return blurred images `[..., H, W]`."""
        images = _fitting(self, images, self.image_shape)
        kernel = self._kernel.to(images)[None, None]
        return F.conv2d(_stack(images), kernel, padding=self._padding).reshape(images.shape)

    def adjoint(self, data: Tensor) -> Tensor:
        """Return the transposed convolution of `[..., H, W]`."""
        data = _fitting(self, data, self.data_shape)
        kernel = self._kernel.to(data)[None, None]
        return F.conv_transpose2d(_stack(data), kernel, padding=self._padding).reshape(data.shape)


@checked_methods
class Downsampling:
    """Average over square tiles: an image of lower resolution.

    Args:
        factor: edge of a tile; it has to divide the image's height and width.
        size: edge of the image in pixels, or its height and width.
    """

    nonnegative = True

    @checked_arrays
    def __init__(self, factor: int, size: int | tuple[int, int]) -> None:
        self.image_shape = image_edges(size)
        height, width = self.image_shape
        if factor < 1 or height % factor or width % factor:
            raise DataError(f"factor is {factor}; it has to divide the image's {height} x {width} pixels.")
        self.factor = factor
        self.data_shape = height // factor, width // factor

    def forward(self, images: Tensor) -> Tensor:
        """Return tile averages `[..., H / factor, W / factor]`."""
        images = _fitting(self, images, self.image_shape)
        return F.avg_pool2d(_stack(images), self.factor).reshape(*images.shape[:-2], *self.data_shape)

    def adjoint(self, data: Tensor) -> Tensor:
        """Return images in which every tile has its value, divided by the number of its pixels."""
        data = _fitting(self, data, self.data_shape)
        repeated = data.repeat_interleave(self.factor, -2).repeat_interleave(self.factor, -1)
        return repeated / self.factor**2


@checked_methods
class Fourier:
    """Measure some coefficients of the orthonormal two-dimensional Fourier transform, as MRI does.

    Real and imaginary parts are readings of their own, with independent noise. The image is real, so a coefficient
    and its mirror image carry the same information: choose one of each pair.

    Args:
        mask: `[H, W]` in `torch.fft.fft2`'s order (frequency zero at the first entry), true where measured.
    """

    nonnegative = False

    @checked_arrays
    def __init__(self, mask: Tensor) -> None:
        self._mask = _as_mask(mask)
        self.image_shape = int(self._mask.shape[0]), int(self._mask.shape[1])
        self.data_shape = (2, int(self._mask.sum()))

    def forward(self, images: Tensor) -> Tensor:
        """Return real and imaginary parts `[..., 2, m]` of the measured coefficients."""
        coefficients = torch.fft.fft2(_fitting(self, images, self.image_shape), norm="ortho")[..., self._mask]
        return torch.stack([coefficients.real, coefficients.imag], dim=-2)

    def adjoint(self, data: Tensor) -> Tensor:
        """Return the real part of the inverse transform, coefficients that were not measured set to zero."""
        data = _fitting(self, data, self.data_shape)
        values = torch.complex(data[..., 0, :].contiguous(), data[..., 1, :].contiguous())
        spectrum = values.new_zeros(*values.shape[:-1], *self.image_shape)
        spectrum[..., self._mask] = values
        return torch.fft.ifft2(spectrum, norm="ortho").real


@checked_methods
class Dense:
    """Measure by any matrix.

    Args:
        matrix: `[readings, pixels]`, pixels row by row.
        size: edge of the image in pixels, or its height and width.
    """

    @checked_arrays
    def __init__(self, matrix: Tensor, size: int | tuple[int, int]) -> None:
        matrix = torch.from_numpy(as_numbers("matrix", matrix))
        self.image_shape = image_edges(size)
        if matrix.ndim != 2 or matrix.shape[1] != math.prod(self.image_shape):
            raise DataError(
                f"matrix has shape {tuple(matrix.shape)}; it needs one column for each of the "
                f"{math.prod(self.image_shape)} pixels of a {self.image_shape[0]} x {self.image_shape[1]} image."
            )
        if not bool(torch.isfinite(matrix).all()):
            raise DataError("matrix has NaN or infinite entries.")
        self.data_shape = (matrix.shape[0],)
        self.nonnegative = bool((matrix >= 0).all())
        self._matrix = matrix

    def forward(self, images: Tensor) -> Tensor:
        """Return the matrix times the flattened images."""
        images = _fitting(self, images, self.image_shape)
        return images.flatten(-2) @ self._matrix.to(images).T

    def adjoint(self, data: Tensor) -> Tensor:
        """Return the transposed matrix times the data, as images."""
        data = _fitting(self, data, self.data_shape)
        return (data @ self._matrix.to(data)).unflatten(-1, self.image_shape)


def _fitting(problem: Any, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the value in single or double precision, or say that it is not of this problem's shape."""
    if tuple(value.shape[-len(shape) :]) != shape or value.is_complex():
        kind = f"{value.dtype} of shape {tuple(value.shape)}"
        raise DataError(f"{type(problem).__name__} got {kind}; real numbers are needed, and last dimensions {shape}.")
    return value if value.dtype in (torch.float32, torch.float64) else value.to(torch.float32)


def _stack(images: Tensor) -> Tensor:
    """Return images as a batch with one channel."""
    return images.reshape(-1, 1, *images.shape[-2:])


def _as_mask(mask: Tensor) -> Tensor:
    """Return a boolean mask, checked."""
    if not isinstance(mask, Tensor):
        as_numbers("mask", mask)
        mask = torch.as_tensor(mask)
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise DataError(f"mask is {mask.dtype} of shape {tuple(mask.shape)}; pass booleans [H, W].")
    if not bool(mask.any()):
        raise DataError("mask measures nothing: all its entries are false.")
    return mask

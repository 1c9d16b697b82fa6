"""Linear inverse problems other than X-ray projection: inpainting, blur, downsampling, Fourier samples, a matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.errors import DataError


class Inpainting:
    """Measure some pixels; the others are missing.

    Args:
        mask: `[H, W]`, true where a pixel is measured.
    """

    nonnegative = True

    def __init__(self, mask: Tensor) -> None:
        self._mask = _as_mask(mask)
        self.image_shape = int(mask.shape[0]), int(mask.shape[1])
        self.data_shape = (int(self._mask.sum()),)

    def forward(self, images: Tensor) -> Tensor:
        """Return the measured pixels `[..., m]`."""
        return images[..., self._mask]

    def adjoint(self, data: Tensor) -> Tensor:
        """Return images with the data in their places and zeros elsewhere."""
        images = data.new_zeros(*data.shape[:-1], *self.image_shape)
        images[..., self._mask] = data
        return images


class Blur:
    """Convolve with a kernel; pixels outside the image count as zero, the output has the image's size.

    Args:
        kernel: `[h, w]`, both odd; applied as a correlation, as `torch.nn.functional.conv2d` does.
        size: edge of the image in pixels, or its height and width.
    """

    def __init__(self, kernel: Tensor, size: int | tuple[int, int]) -> None:
        kernel = torch.as_tensor(kernel, dtype=torch.float64)
        if kernel.ndim != 2 or kernel.shape[0] % 2 == 0 or kernel.shape[1] % 2 == 0:
            raise DataError(f"kernel has shape {tuple(kernel.shape)}; it needs two odd dimensions.")
        self.image_shape = self.data_shape = _as_shape(size)
        self.nonnegative = bool((kernel >= 0).all())
        self._kernel, self._padding = kernel, (kernel.shape[0] // 2, kernel.shape[1] // 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return blurred images `[..., H, W]`."""
        kernel = self._kernel.to(images)[None, None]
        return F.conv2d(_stack(images), kernel, padding=self._padding).reshape(images.shape)

    def adjoint(self, data: Tensor) -> Tensor:
        """Return the transposed convolution of `[..., H, W]`."""
        kernel = self._kernel.to(data)[None, None]
        return F.conv_transpose2d(_stack(data), kernel, padding=self._padding).reshape(data.shape)


class Downsampling:
    """Averages over square tiles: a picture of lower resolution.

    Args:
        factor: edge of a tile; it has to divide the image's height and width.
        size: edge of the image in pixels, or its height and width.
    """

    nonnegative = True

    def __init__(self, factor: int, size: int | tuple[int, int]) -> None:
        self.image_shape = _as_shape(size)
        height, width = self.image_shape
        if factor < 1 or height % factor or width % factor:
            raise DataError(f"factor is {factor}; it has to divide the image's {height} x {width} pixels.")
        self.factor = factor
        self.data_shape = height // factor, width // factor

    def forward(self, images: Tensor) -> Tensor:
        """Return tile averages `[..., H / factor, W / factor]`."""
        return F.avg_pool2d(_stack(images), self.factor).reshape(*images.shape[:-2], *self.data_shape)

    def adjoint(self, data: Tensor) -> Tensor:
        """Return images in which every tile has its value, divided by the number of its pixels."""
        repeated = data.repeat_interleave(self.factor, -2).repeat_interleave(self.factor, -1)
        return repeated / self.factor**2


class Fourier:
    """Measure some coefficients of the orthonormal two-dimensional Fourier transform, as MRI does.

    Real and imaginary parts are readings of their own, with independent noise. The image is real, so a coefficient
    and its mirror image carry the same information: choose one of each pair.

    Args:
        mask: `[H, W]` in `torch.fft.fft2`'s order (frequency zero at the first entry), true where measured.
    """

    nonnegative = False

    def __init__(self, mask: Tensor) -> None:
        self._mask = _as_mask(mask)
        self.image_shape = int(mask.shape[0]), int(mask.shape[1])
        self.data_shape = (2, int(self._mask.sum()))

    def forward(self, images: Tensor) -> Tensor:
        """Return real and imaginary parts `[..., 2, m]` of the measured coefficients."""
        coefficients = torch.fft.fft2(images, norm="ortho")[..., self._mask]
        return torch.stack([coefficients.real, coefficients.imag], dim=-2)

    def adjoint(self, data: Tensor) -> Tensor:
        """Return the real part of the inverse transform, coefficients that were not measured set to zero."""
        values = torch.complex(data[..., 0, :].contiguous(), data[..., 1, :].contiguous())
        spectrum = values.new_zeros(*values.shape[:-1], *self.image_shape)
        spectrum[..., self._mask] = values
        return torch.fft.ifft2(spectrum, norm="ortho").real


class Dense:
    """Measure by any matrix.

    Args:
        matrix: `[readings, pixels]`, pixels row by row.
        size: edge of the image in pixels, or its height and width.
    """

    def __init__(self, matrix: Tensor, size: int | tuple[int, int]) -> None:
        matrix = torch.as_tensor(matrix, dtype=torch.float64)
        self.image_shape = _as_shape(size)
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
        return images.flatten(-2) @ self._matrix.to(images).T

    def adjoint(self, data: Tensor) -> Tensor:
        """Return the transposed matrix times the data, as images."""
        return (data @ self._matrix.to(data)).unflatten(-1, self.image_shape)


def _stack(images: Tensor) -> Tensor:
    return images.reshape(-1, 1, *images.shape[-2:])


def _as_shape(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 2:
        raise DataError(f"size is {size}; an image needs at least 2 x 2 pixels.")
    return int(height), int(width)


def _as_mask(mask: Tensor) -> Tensor:
    mask = torch.as_tensor(mask)
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise DataError(f"mask is {mask.dtype} of shape {tuple(mask.shape)}; pass booleans [H, W].")
    if not bool(mask.any()):
        raise DataError("mask measures nothing: all its entries are false.")
    return mask

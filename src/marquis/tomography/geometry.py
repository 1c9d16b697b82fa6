"""Project by X-rays: parallel and fan beams, with their projections and filtered back-projections."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, NotNegative, Positive, as_numbers, checked, checked_arrays, checked_methods
from marquis.errors import DataError
from marquis.tomography.footprint import Matrix, pixel_centres, project_points, projection_matrix
from marquis.tomography.operators import image_edges

MOST_ANGLES = 1_000_000


@checked_methods
class _Beam:
    """Project by a sparse matrix; keep the matrix and its transpose, one pair per floating type."""

    nonnegative = True
    _full_circle = math.pi

    @checked_arrays
    def __init__(
        self,
        size: int | tuple[int, int],
        angles: int | Sequence[float] | Tensor,
        detectors: AtLeastOne | None = None,
        spacing: Positive = 1.0,
        *,
        pixel_size: Positive = 1.0,
    ) -> None:
        self.image_shape = image_edges(size)
        self.angles = _as_angles(angles, self._full_circle)
        self.spacing, self.pixel_size = float(spacing), float(pixel_size)
        count = math.ceil(self._shadow() / self.spacing) if detectors is None else int(detectors)
        if detectors is None and count % 2 == 0:
            count += 1  # an odd number has a bin in the middle
        self.detectors = count
        self.data_shape = len(self.angles), self.detectors
        self._matrices: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        self._double: Matrix | None = None

    def _shadow(self) -> float:
        """Return the length of the shadow of the image's circumscribed circle, in pixels."""
        return math.hypot(*self.image_shape)

    def _footprints(self) -> Matrix:
        """Return the projection matrix in units of pixels."""
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        """Return the arguments that describe the detector."""
        return {"detectors": self.detectors, "spacing": self.spacing, "pixel_size": self.pixel_size}

    def matrix(self) -> Matrix:
        """Return the projection as a SciPy CSR matrix `[readings, pixels]` in float64."""
        if self._double is None:
            self._double = Matrix(self._footprints() * self.pixel_size)
        return self._double

    @checked
    def forward(self, images: Tensor) -> Tensor:
        """Return the sinograms `[..., angles, detectors]` of images `[..., H, W]`."""
        return self._apply(images, 0, self.image_shape, self.data_shape)

    @checked
    def adjoint(self, data: Tensor) -> Tensor:
        """Return the unfiltered back-projections `[..., H, W]` of sinograms `[..., angles, detectors]`."""
        return self._apply(data, 1, self.data_shape, self.image_shape)

    def with_angles(self, angles: int | Sequence[float] | Tensor) -> Any:
        """Return the same geometry at other angles (in radians)."""
        return type(self)(self.image_shape, angles, **self._options())

    def subset(self, indices: Sequence[int] | Tensor) -> Any:
        """Return the geometry of some of the angles, by their indices."""
        chosen = torch.as_tensor(as_numbers("indices", indices))
        whole = chosen.dim() == 1 and bool((chosen == chosen.round()).all())
        if not whole or not len(chosen) or not bool((chosen.abs() < len(self.angles)).all()):
            raise DataError(
                f"indices are whole numbers below the {len(self.angles)} angles, one for each that is kept."
            )
        return self.with_angles(self.angles[chosen.long()])

    def fbp(self, data: Tensor) -> Tensor:
        """Return the filtered back-projection (ramp filter) of a sinogram."""
        raise NotImplementedError

    def _require(self, value: Tensor, shape: tuple[int, ...]) -> None:
        """Refuse tensors of another shape, complex ones and those without entries."""
        name = type(self).__name__
        if tuple(value.shape[-2:]) != shape or 0 in value.shape:
            raise DataError(f"{name} got a tensor of shape {tuple(value.shape)}; its last dimensions must be {shape}.")
        if value.is_complex() or value.device.type == "meta":
            raise DataError(f"{name} got a tensor of {value.dtype} on {value.device}; real numbers are needed.")

    def _apply(self, value: Tensor, which: int, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
        self._require(value, before)
        if not value.is_floating_point():
            value = value.to(torch.get_default_dtype())
        dtype = value.dtype if value.dtype in (torch.float32, torch.float64) else torch.float32
        columns = value.reshape(-1, math.prod(before)).to("cpu", dtype).T
        product = self._pair(dtype)[which] @ columns.contiguous()
        return product.T.reshape(*value.shape[:-2], *after).to(value)

    def _pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return matrix and transpose in a floating type, made once."""
        if dtype not in self._matrices:
            matrix = self.matrix()
            self._matrices[dtype] = _csr(matrix, dtype), _csr(Matrix(matrix.T), dtype)
        return self._matrices[dtype]

    def __repr__(self) -> str:
        height, width = self.image_shape
        beam = f"{len(self.angles)} angles, {self.detectors} detectors"
        return f"{type(self).__name__}({height} x {width} pixels, {beam})"


@checked_methods
class ParallelBeam(_Beam):
    """Project by parallel rays onto a flat detector, by exact pixel footprints.

    Lengths are in pixels. A reading is the average over its bin of line integrals; the entries of one pixel at one
    angle sum to `pixel_size / spacing`. The rotation centre is the image's centre.

    Args:
        size: edge of the image in pixels, or its height and width.
        angles: how many, equidistant over half a turn from 0, or the angles themselves in radians.
        detectors: number of bins; by default those that the image's diagonal needs, made odd.
        spacing: width of a bin, in pixels.
        pixel_size: length of a pixel's edge in the unit of the line integrals (`1 / width` makes readings comparable
            between resolutions).
    """

    def _footprints(self) -> Matrix:
        return projection_matrix(self.image_shape, self.angles.tolist(), self.detectors, self.spacing)

    def fbp(self, data: Tensor) -> Tensor:
        """Return the filtered back-projection of a sinogram, every angle weighted alike.

        The ramp filter is the band-limited one in space (Kak and Slaney 1988, eq. 3.61), the back-projection is
        `adjoint`.
        """
        self._require(data, self.data_shape)
        filtered = _ramp_filtered(data, self.spacing)
        scale = math.pi * self.spacing / (len(self.angles) * self.pixel_size**2)
        return scale * self.adjoint(filtered)


@checked_methods
class FanBeam(_Beam):
    """Project by rays from a point source onto a flat detector, by pixel footprints.

    Lengths are in pixels.

    Args:
        size: edge of the image in pixels, or its height and width.
        angles: how many, equidistant over a full turn from 0, or the angles themselves in radians.
        detectors: number of bins; by default those that cover the image's circumscribed circle, made odd.
        spacing: width of a bin on the detector, in pixels.
        source: distance from the source to the centre of rotation; more than half of the image's diagonal.
        detector: distance from the centre of rotation to the detector.
        pixel_size: length of a pixel's edge in the unit of the line integrals.
    """

    _full_circle = 2 * math.pi

    @checked_arrays
    def __init__(
        self,
        size: int | tuple[int, int],
        angles: int | Sequence[float] | Tensor,
        detectors: AtLeastOne | None = None,
        spacing: Positive = 1.0,
        *,
        source: float,
        detector: NotNegative,
        pixel_size: Positive = 1.0,
    ) -> None:
        radius = math.hypot(*image_edges(size)) / 2
        if not source > radius:
            raise DataError(
                f"source is {source}: the source would turn inside the image, whose corners are "
                f"{radius:.4g} pixels from the centre; distances are in pixels."
            )
        self.source, self.detector = float(source), float(detector)
        super().__init__(size, angles, detectors, spacing, pixel_size=pixel_size)

    def _shadow(self) -> float:
        radius = super()._shadow() / 2
        return 2 * (self.source + self.detector) * radius / math.sqrt(self.source**2 - radius**2)

    def _footprints(self) -> Matrix:
        angles = self.angles.tolist()
        return projection_matrix(self.image_shape, angles, self.detectors, self.spacing, self.source, self.detector)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "source": self.source, "detector": self.detector}

    def fbp(self, data: Tensor) -> Tensor:
        """Return the filtered back-projection of a full turn (Kak and Slaney 1988, eq. 3.104-3.106)."""
        self._require(data, self.data_shape)
        magnification = (self.source + self.detector) / self.source
        pitch = self.spacing / magnification  # of the detector, moved to the centre of rotation
        position = (torch.arange(self.detectors, dtype=torch.float64) - (self.detectors - 1) / 2) * pitch
        cosine = self.source / torch.sqrt(self.source**2 + position**2)
        filtered = _ramp_filtered(data.double() * cosine, pitch)
        x, y = pixel_centres(self.image_shape)
        total = torch.zeros(*filtered.shape[:-2], x.size, dtype=torch.float64)
        for index, angle in enumerate(self.angles.tolist()):
            coordinate, depth = project_points(x, y, angle, self.source, self.detector)
            bins = coordinate / self.spacing + (self.detectors - 1) / 2
            low = np.clip(np.floor(bins).astype(np.int64), 0, self.detectors - 2)
            share = torch.from_numpy(np.clip(bins - low, 0.0, 1.0))
            weight = torch.from_numpy((self.source / depth) ** 2)
            rows = filtered[..., index, :]
            total = total + (rows[..., low] * (1 - share) + rows[..., low + 1] * share) * weight
        total = total * (math.pi / (len(self.angles) * self.pixel_size))
        return total.reshape(*data.shape[:-2], *self.image_shape).to(data)


def _as_angles(angles: int | Sequence[float] | Tensor, full: float) -> Tensor:
    """Return angles in radians, equidistant ones for a number."""
    if isinstance(angles, int):
        if not 1 <= angles <= MOST_ANGLES:
            raise DataError(f"angles is {angles}; 1 to {MOST_ANGLES:,} are possible.")
        return torch.arange(angles, dtype=torch.float64) * (full / angles)
    values = torch.from_numpy(as_numbers("angles", angles)).reshape(-1)
    if values.numel() == 0 or not bool(torch.isfinite(values).all()):
        raise DataError("angles has no entries, or some that are not finite; pass radians.")
    if float(values.abs().max()) > 4 * math.pi + 1e-6:
        raise DataError(f"angles go up to {float(values.abs().max()):.4g}; pass radians, not degrees.")
    return values


def _csr(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """Convert a sparse matrix of SciPy to torch."""
    matrix = Matrix(matrix)
    index = torch.int32 if matrix.nnz < 2**31 else torch.int64
    with warnings.catch_warnings():
        # torch calls its support of CSR beta; the products used here are stable.
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr).to(index),
            torch.from_numpy(matrix.indices).to(index),
            torch.from_numpy(matrix.data).to(dtype),
            size=matrix.shape,
            check_invariants=True,
        )


def _ramp_filtered(data: Tensor, pitch: float) -> Tensor:
    """Return data convolved along the detector with the band-limited ramp, `pitch` times the kernel's sum."""
    count = data.shape[-1]
    offsets = torch.arange(-(count - 1), count, dtype=torch.float64)
    kernel = torch.where(offsets % 2 == 0, torch.zeros_like(offsets), -1 / (math.pi * offsets) ** 2)
    kernel[count - 1] = 0.25
    length = 1 << (3 * count).bit_length()
    spectrum = torch.fft.rfft(data.double(), n=length) * torch.fft.rfft(kernel, n=length)
    filtered = torch.fft.irfft(spectrum, n=length)[..., count - 1 : 2 * count - 1]
    return (filtered / pitch).to(data)

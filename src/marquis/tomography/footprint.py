"""Build sparse projection matrices from the shadows of pixels on a detector.

A square pixel casts a trapezoid on the detector. Its breakpoints are the four projected corners, in order, and its
integral over a detector bin has a closed form. Parallel rays make this exact; diverging rays make it an approximation
of second order in the pixel's size (Long, Fessler and Balter 2010, the trapezoid footprint, here in two dimensions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix, vstack

Matrix = csr_matrix


def pixel_centres(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the x (to the right) and y (upwards) coordinates of all pixels, in pixels, the image's centre at zero."""
    height, width = shape
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return (columns - (width - 1) / 2).ravel(), ((height - 1) / 2 - rows).ravel()


def projection_matrix(
    shape: tuple[int, int],
    angles: Sequence[float],
    detectors: int,
    spacing: float,
    source: float | None = None,
    detector: float = 0.0,
) -> Matrix:
    """Return the matrix whose rows are detector bins (angle by angle) and whose columns are pixels, in float64.

    An entry is the average over the bin of the lengths that rays travel inside the pixel (docs/method/tomography.md).

    Args:
        shape: height and width of the image.
        angles: directions of the detector axis in radians; 0 is the image's horizontal axis.
        detectors: number of bins.
        spacing: width of a bin, in pixels.
        source: distance from the source to the centre of rotation; None for parallel rays.
        detector: distance from the centre of rotation to the detector, for a source at a finite distance.
    """
    x, y = pixel_centres(shape)
    blocks = [_one_angle(x, y, angle, detectors, spacing, source, detector) for angle in angles]
    return csr_matrix(vstack(blocks, format="csr"))


def project_points(
    x: np.ndarray, y: np.ndarray, angle: float, source: float | None, detector: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the detector coordinates of points and the points' distances from the source plane (1 if parallel)."""
    along = x * math.cos(angle) + y * math.sin(angle)
    if source is None:
        return along, np.ones_like(along)
    depth = source - (y * math.cos(angle) - x * math.sin(angle))
    return (source + detector) * along / depth, depth


def _one_angle(
    x: np.ndarray,
    y: np.ndarray,
    angle: float,
    detectors: int,
    spacing: float,
    source: float | None,
    detector: float,
) -> Matrix:
    """Return the projection matrix of one angle."""
    corners = [project_points(x + dx, y + dy, angle, source, detector)[0] for dx in (-0.5, 0.5) for dy in (-0.5, 0.5)]
    breakpoints = np.sort(np.stack(corners), axis=0)  # [4, pixels]
    mass = np.ones_like(x)
    if source is not None:
        # The integral over the detector of a unit square's chords: D sec(gamma) / depth.
        centre, depth = project_points(x, y, angle, source, detector)
        distance = source + detector
        mass = distance * np.sqrt(1 + (centre / distance) ** 2) / depth
    first_edge = -detectors * spacing / 2
    first = np.floor((breakpoints[0] - first_edge) / spacing).astype(np.int64)
    span = int(np.max(np.ceil((breakpoints[3] - first_edge) / spacing).astype(np.int64) - first))
    edges = first_edge + spacing * (first[None, :] + np.arange(span + 1)[:, None])
    entries = mass * np.diff(_trapezoid_integral(edges, breakpoints), axis=0) / spacing  # [span, pixels]
    bins = first[None, :] + np.arange(span)[:, None]
    valid = (bins >= 0) & (bins < detectors) & (entries > 0)
    columns = np.broadcast_to(np.arange(x.size), bins.shape)
    return csr_matrix((entries[valid], (bins[valid], columns[valid])), shape=(detectors, x.size))


def _trapezoid_integral(u: np.ndarray, breakpoints: np.ndarray) -> np.ndarray:
    """Return the integral up to `u` of the trapezoid with these four breakpoints and unit mass."""
    a, b, c, d = breakpoints
    height = 2 / ((d - a) + (c - b))
    rising, falling = b - a, d - c
    up = np.clip(u - a, 0, rising)
    flat = np.clip(u - b, 0, c - b)
    down = np.clip(u - c, 0, falling)
    # A vertical edge (0/0 at angles along the axes) has no area.
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.where(rising > 0, up**2 / (2 * rising), 0.0)
        right = np.where(falling > 0, down - down**2 / (2 * falling), 0.0)
    return height * (left + flat + right)

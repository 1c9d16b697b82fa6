"""Score an image and its error bars where the truth is known."""

from __future__ import annotations

import math

from torch import Tensor

from marquis.arguments import checked
from marquis.errors import DataError
from marquis.functional.checks import check_finite
from marquis.tomography.operators import check_image
from marquis.tomography.result import UncertainImage


@checked
def psnr(image: Tensor, truth: Tensor, span: float | None = None) -> float:
    """Return the peak signal-to-noise ratio in decibels; `span` is the range of values, by default the truth's."""
    if image.shape != truth.shape or not truth.numel() or image.is_complex() or truth.is_complex():
        raise DataError(f"image {list(image.shape)} and truth {list(truth.shape)} have to be real and of one shape.")
    image, truth = image.double(), truth.double()
    check_finite((image, truth), "image and truth")
    span = float(truth.max() - truth.min()) if span is None else span
    difference = image - truth
    largest = float(difference.abs().max())
    if largest == 0:
        return math.inf
    if not span:
        return -math.inf
    # In logarithms, and relative to the largest difference: squares of large numbers overflow.
    decibels = 20 * math.log10(largest) + 10 * math.log10(float((difference / largest).square().mean()))
    return 20 * math.log10(abs(span)) - decibels


@checked
def scores(result: UncertainImage, truth: Tensor, span: float | None = None) -> dict[str, float]:
    """Return measures of a result against the true image, per pixel where they are sums.

    `log_density` uses the full covariance (absent without one), `marginal_log_density` independent pixels, both with
    the floor; `raw_marginal_log_density` without it. `coverage` is the share of pixels inside their 95 % intervals,
    `correlation` that of the absolute error and the standard deviation, `squared_z` the mean squared standardised
    error (1 if calibrated).
    """
    truth = check_image(truth, result.measurement, "truth")
    error = (result.image - truth).flatten()
    std = result.std.flatten()
    low, high = result.interval(0.95)
    count = truth.numel()
    rows = {
        "psnr": psnr(result.image, truth, span),
        "marginal_log_density": result.log_density(truth, marginal=True) / count,
        "coverage": float(((truth >= low) & (truth <= high)).double().mean()),
        "correlation": correlation(error.abs(), std),
        "squared_z": float((error / std).square().mean()),
        "mean_std": float(std.mean()),
        "noise_variance": result.noise_variance,
    }
    if bool((result.variance > 0).any()):  # constant noise is all floor
        raw = result.variance.flatten().clamp_min(1e-12)
        density = -0.5 * (error.square() / raw + raw.log() + math.log(2 * math.pi))
        rows["raw_marginal_log_density"] = float(density.mean())
    if result.posterior_covariance is not None:
        rows["log_density"] = result.log_density(truth) / count
    return rows


def correlation(first: Tensor, second: Tensor) -> float:
    """Return Pearson's correlation, 0 where one of the two is constant."""
    a, b = first - first.mean(), second - second.mean()
    scale = a.norm() * b.norm()
    return float((a * b).sum() / scale) if float(scale) > 1e-12 * first.numel() else 0.0

"""Define TV-PredCP, a prior over variances (or lengthscales) from the total variation that they let images have.

The predictive complexity prior (Nalisnick, Gordon and Hernandez-Lobato 2021) puts an exponential density on
`κ = E TV(x)` under a block's prior and changes variables to the block's hyper-parameter. Differences of neighbouring
pixels are Gaussian, `N(μ_i, s_i²)`, so κ has a closed form and no sampling is needed (docs/method/tomography.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SMALLEST = 1e-30


def expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """Return `E|z|` for `z ~ N(mean, std²)`: the mean of the folded normal distribution."""
    ratio = mean / std
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio**2) + mean * torch.erf(ratio / math.sqrt(2))


def expected_absolute_slope(mean: Tensor, std: Tensor) -> Tensor:
    """Return the derivative of `E|z|` by the standard deviation, `√(2/π) exp(-mean² / 2 std²)`."""
    return math.sqrt(2 / math.pi) * torch.exp(-0.5 * (mean / std) ** 2)


def expected_tv(mean: Tensor, variance: Tensor) -> Tensor:
    """Return κ, the expected total variation of differences with means and variances `[..., m]`."""
    return expected_absolute(mean, _std(variance)).sum(dim=-1)


def expected_tv_slope(mean: Tensor, variance: Tensor, variance_slope: Tensor) -> Tensor:
    """Return dκ/dh where `variance_slope` is the derivative of the variances by h, `[..., m]`."""
    std = _std(variance)
    return (expected_absolute_slope(mean, std) * variance_slope / (2 * std)).sum(dim=-1)


def log_prior_of_variance(mean: Tensor, roughness: Tensor, variance: Tensor, rate: float) -> Tensor:
    """Return the log density of `log v` for each block, normalised over the real line.

    `log λ - λ (κ(v) - κ(0)) + log(dκ / d log v)`. κ grows from `TV(x̂)` at `v = 0` to infinity, strictly.

    Args:
        mean: differences of neighbouring pixels of the image `[m]`.
        roughness: prior variances of those differences for `v = 1`, `[blocks, m]`.
        variance: `[blocks]`.
        rate: λ.
    """
    variances = variance[:, None] * roughness
    kappa = expected_tv(mean, variances)
    slope = expected_tv_slope(mean, variances, variances)
    return math.log(rate) - rate * (kappa - mean.abs().sum()) + torch.log(slope)


def log_prior_of_lengthscale(
    mean: Tensor, roughness: Tensor, distance: Tensor, variance: Tensor, lengthscale: Tensor, rate: float, power: float
) -> Tensor:
    """Return the log density of one block's `log ℓ`: `log λ - λ κ + power log|dκ / d log ℓ|`.

    κ is bounded in ℓ, so the density integrates to less than one even with `power=1`; the published code raises the
    Jacobian to the power λ.

    Args:
        mean: differences of neighbouring pixels `[m]`.
        roughness: roughness of the terms of different tap distances `[6, m]`.
        distance: distance of the terms `[6]`.
        variance: variance of the block.
        lengthscale: lengthscale of the block.
        rate: λ.
        power: power of the Jacobian.
    """
    decay = variance * torch.exp(-distance / lengthscale)
    variances = decay @ roughness
    slope = expected_tv_slope(mean, variances, (decay * distance / lengthscale) @ roughness)
    return math.log(rate) - rate * expected_tv(mean, variances) + power * torch.log(slope.abs() + _SMALLEST)


def _std(variance: Tensor) -> Tensor:
    """Return the standard deviation, positive also where the variance vanishes."""
    # A saturated output has variance zero; the floor keeps 0/0 out of values and gradients.
    return torch.sqrt(variance.clamp_min(_SMALLEST))

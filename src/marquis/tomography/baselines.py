"""Estimate uncertainty without linearisation, as the same result: MC dropout, an ensemble, constant noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import Share, checked, checked_arrays
from marquis.errors import DataError
from marquis.tomography.operators import Measurement, check_data
from marquis.tomography.result import UncertainImage, noise_floor
from marquis.tomography.training import TrainedImage, deep_image_prior

DROPOUT = 0.05


@checked_arrays
def dropout(
    data: Tensor,
    measurement: Measurement,
    *,
    rate: Share = DROPOUT,
    samples: int = 100,
    noise_variance: float | None = None,
    generator: torch.Generator | None = None,
    **training: Any,
) -> UncertainImage:
    """Train with dropout and keep it active for samples (Gal and Ghahramani 2016).

    Args:
        data: what was measured.
        measurement: the operator A.
        rate: probability of dropping a channel.
        samples: forward passes with different channels dropped.
        noise_variance: variance of the noise of one reading, for the floor; the mean squared residual by default.
        generator: source of initial weights and dropped channels.
        training: further arguments of `deep_image_prior`, of which `tv` is required.
    """
    if samples < 2:
        raise DataError(f"samples is {samples}; a variance needs at least two.")
    trained = deep_image_prior(data, measurement, dropout=rate, generator=generator, **training)
    network = trained.network.train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        images = torch.stack([network(trained.inputs)[0, 0] for _ in range(samples)]).double()
    network.eval()
    return from_images(images, data, measurement, "MC dropout", noise_variance)


@checked_arrays
def ensemble(
    data: Tensor,
    measurement: Measurement,
    *,
    members: int = 5,
    noise_variance: float | None = None,
    generator: torch.Generator | None = None,
    **training: Any,
) -> UncertainImage:
    """Train several networks from different initial weights (Lakshminarayanan et al. 2017).

    Args:
        data: what was measured.
        measurement: the operator A.
        members: number of networks.
        noise_variance: variance of the noise of one reading, for the floor; the mean squared residual by default.
        generator: source of initial weights.
        training: further arguments of `deep_image_prior`, of which `tv` is required.
    """
    if members < 2:
        raise DataError(f"members is {members}; a variance needs at least two.")
    if training.get("network") is not None:
        raise DataError("network= would give all members the same initial weights; leave it out for an ensemble.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    images = [deep_image_prior(data, measurement, generator=generator, **training).image for _ in range(members)]
    return from_images(torch.stack(images), data, measurement, f"ensemble of {members}", noise_variance)


@checked
def constant(trained: TrainedImage, measurement: Measurement, *, noise_variance: float | None = None) -> UncertainImage:
    """Return a trained image with the same variance in every pixel: the floor alone.

    Args:
        trained: from `deep_image_prior`.
        measurement: the operator A.
        noise_variance: variance of the noise of one reading; the mean squared residual by default.
    """
    variance = trained.residual if noise_variance is None else noise_variance
    return UncertainImage(
        trained.image,
        torch.zeros_like(trained.image),
        variance * noise_floor(measurement),
        variance,
        measurement,
        "deep image prior, constant noise",
    )


def from_images(
    images: Tensor | Sequence[Tensor],
    data: Tensor,
    measurement: Measurement,
    method: str,
    noise_variance: float | None = None,
) -> UncertainImage:
    """Return mean and variance of several reconstructions `[n, H, W]` as a Gaussian with independent pixels."""
    stack = images if isinstance(images, Tensor) else torch.stack(list(images))
    mean = stack.mean(dim=0)
    if noise_variance is None:
        noise_variance = float((check_data(data, measurement) - measurement.forward(mean)).square().mean())
    return UncertainImage(
        mean,
        stack.var(dim=0),
        noise_variance * noise_floor(measurement),
        noise_variance,
        measurement,
        method,
        deviations=(stack - mean).flatten(1),
    )

"""Compute linearised predictions with gradients to the inputs, for optimisation over inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marquis.functional.jacobian import values_and_jacobian
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.linearised import OutputMoments, check_covariance_fits
from marquis.predictive.prediction import Draw


def differentiable_moments(
    function: PosteriorFunction, x: Any, *, joint: bool, limit: int | None
) -> tuple[OutputMoments, Draw]:
    """Return mean, variance and covariance of the outputs, and a function that samples them, all with gradients to `x`.

    Equal to `closed_form`. Samples are `f(x) + J(x) (theta_s - theta*)`, so the same weights serve all inputs and no
    root of a covariance is differentiated. Cost: that of `closed_form`, and O more backward passes per gradient; memory
    `B O P`, as the graph keeps the Jacobian.
    """
    outputs, posterior = function.at_point(x), function.posterior
    shape = outputs.shape
    check_covariance_fits(outputs, outputs.numel(), limit, function, True)
    with torch.enable_grad():
        values, jacobian = values_and_jacobian(function, x, differentiable=True)
        mean = values.reshape(shape)
        rows = jacobian.to(posterior.precision.dtype)
        covariance = posterior.precision.quadratic(rows.flatten(0, 1) if joint else rows)
        variance = covariance.diagonal(dim1=-2, dim2=-1).reshape(shape).to(mean.dtype)

    def draw(n: int, generator: torch.Generator | None) -> Tensor:
        weights = posterior.precision.sample_from(posterior.noise(n, generator))
        with torch.enable_grad():
            return mean + torch.einsum("bok,nk->nbo", rows, weights).reshape(n, *shape).to(mean.dtype)

    return OutputMoments(mean, variance, covariance), draw

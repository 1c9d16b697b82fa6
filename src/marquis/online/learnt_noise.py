"""Hold the noise precision of a Gaussian likelihood: fixed, or learnt as one number or in groups of outputs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from marquis.errors import UnsupportedOperationError
from marquis.likelihoods import Gaussian, Likelihood, as_likelihood

Number = float | Literal["learnt"] | None


def likelihood_and_noise(likelihood: str | Likelihood, noise_precision: Number) -> tuple[Likelihood, Number]:
    """Return the likelihood object, and its noise precision: the user's, or that of a Gaussian object."""
    resolved = as_likelihood(likelihood)
    scalar = resolved.scalar_noise_precision
    if scalar is None:
        if noise_precision is not None:
            raise UnsupportedOperationError(f"noise_precision={noise_precision!r}: {resolved} has no single one.")
        return resolved, 1.0  # β multiplies the curvature: 1 where the likelihood is complete
    is_fixed = not isinstance(likelihood, str) and isinstance(resolved, Gaussian) and not resolved.learnt
    return resolved, float(scalar) if noise_precision is None and is_fixed else noise_precision


def start_value(precision: float | str) -> float:
    """Return the first value of a precision: one if it is learnt."""
    return 1.0 if isinstance(precision, str) else float(precision)


def squared_error(
    f: Tensor, y: Tensor, mask: Tensor | None, groups: str = "scalar"
) -> tuple[float | Tensor, float | Tensor]:
    """Return the sum of squared errors over the observed entries, and their number.

    Args:
        f: Outputs `[B, C, ...]`.
        y: Labels, of the same shape.
        mask: 1 where a label was observed.
        groups: "scalar" for the sums over everything; else tensors that broadcast to one sample's outputs, with one sum
            per "channel" (dimension 1) or "output".
    """
    observed = None if mask is None else mask.to(torch.bool).expand_as(f)
    squares = (f - y).square() if observed is None else torch.where(observed, f - y, 0).square()
    if groups == "scalar":
        return float(squares.sum()), float(f.numel() if observed is None else observed.sum())
    counts = torch.ones_like(squares) if observed is None else observed
    error, entries = (values.double().sum(0).cpu() for values in (squares, counts))
    rest = tuple(range(1, error.ndim))
    if groups == "channel" and rest:
        error, entries = error.sum(rest, keepdim=True), entries.sum(rest, keepdim=True)
    return error, entries

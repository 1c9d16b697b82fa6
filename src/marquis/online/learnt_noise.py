"""The noise of a likelihood where it is one number, given or learnt."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from marquis.errors import UnsupportedOperationError
from marquis.likelihoods import Gaussian, Likelihood, as_likelihood

Number = float | Literal["learnt"] | None


def likelihood_and_noise(likelihood: str | Likelihood, given: Number) -> tuple[Likelihood, Number]:
    """The likelihood, and its noise precision where that is one number."""
    own = as_likelihood(likelihood)
    held = own.scalar_noise_precision
    if held is None:
        if given is not None:
            raise UnsupportedOperationError(f"noise_precision={given!r}: {own} has no single noise precision.")
        return own, 1.0  # β multiplies the curvature: 1 where the likelihood already says everything
    chosen_by_user = not isinstance(likelihood, str) and isinstance(own, Gaussian) and not own.learnt
    if given is None and chosen_by_user:
        return own, float(held)
    return own, given


def start_value(precision: float | str) -> float:
    """Where a precision begins: at one if it is learnt."""
    return 1.0 if isinstance(precision, str) else float(precision)


def squared_error(f: Tensor, y: Tensor, mask: Tensor | None) -> tuple[float, float]:
    """Sum of squared errors over the observed entries, and how many there are."""
    if mask is None:
        return float((f - y).square().sum()), float(f.numel())
    seen = mask.to(torch.bool).expand_as(f)
    return float(torch.where(seen, f - y, 0).square().sum()), float(seen.sum())

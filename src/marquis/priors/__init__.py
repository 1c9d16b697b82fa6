"""Define Gaussian priors over the weights, one precision per group."""

from __future__ import annotations

from marquis.priors.prior import BoundPrior, Prior, StructuredPrior

__all__ = ["BoundPrior", "Prior", "StructuredPrior"]

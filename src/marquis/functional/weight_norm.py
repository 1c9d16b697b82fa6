"""Compute weight normalisation from differentiable parts: torch's fused operation has no right second derivative.

The double backward pass of `torch._weight_norm` (torch 2.13) is silently wrong, far beyond rounding, and it has no
forward-mode derivative. Both ways to normalise a weight call it; a replica calls these instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm


def normalised_weight(direction: Tensor, magnitude: Tensor, dim: int) -> Tensor:
    """Return `magnitude * direction / |direction|`, norms taken over all dimensions but one (-1: over all)."""
    return direction * (magnitude / torch.norm_except_dim(direction, 2, dim))


class DifferentiableParametrization(_WeightNorm):
    """Compute what `torch.nn.utils.parametrizations.weight_norm` registers."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """Return the weight."""
        return normalised_weight(weight_v, weight_g, self.dim)


class DifferentiableHook(WeightNorm):
    """Compute what the older `torch.nn.utils.weight_norm` puts before a module's forward pass."""

    def compute_weight(self, module: nn.Module) -> Any:
        """Return the weight."""
        return normalised_weight(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)


DIFFERENTIABLE: dict[type, type] = {_WeightNorm: DifferentiableParametrization, WeightNorm: DifferentiableHook}
"""Classes of torch's, and those that take their place in a replica."""

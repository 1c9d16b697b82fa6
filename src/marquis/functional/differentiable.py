"""Modules of torch's whose derivatives are wrong or of two kinds, and what takes their place in a replica.

Weight normalisation: the double backward pass of `torch._weight_norm` (torch 2.13) is silently wrong, far beyond
rounding, and it has no forward-mode derivative. Both ways to normalise a weight call it.
Embeddings with `padding_idx`: backward passes say that the row of the padding has no effect, forward mode does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm


def normalised_weight(direction: Tensor, magnitude: Tensor, dim: int) -> Tensor:
    """Return `magnitude * direction / |direction|`, norms taken over all dimensions but one (-1: over all)."""
    others = [d for d in range(direction.ndim) if d != dim]
    return direction * (magnitude / torch.linalg.vector_norm(direction, dim=others, keepdim=True))


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


class DifferentiableEmbedding(nn.Embedding):
    """Look up rows; that of the padding is a constant in forward mode, too."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows."""
        rows = super().forward(input)
        if self.padding_idx is None or forward_ad._current_level < 0:
            return rows
        return torch.where((input == self.padding_idx).unsqueeze(-1), rows.detach(), rows)


DIFFERENTIABLE: dict[type, type] = {
    _WeightNorm: DifferentiableParametrization,
    WeightNorm: DifferentiableHook,
    nn.Embedding: DifferentiableEmbedding,
}
"""Classes of torch's, and those that take their place in a replica."""

"""Data drawn in one dimension, for the toy experiments."""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = 0.1
"""Standard deviation of the noise of `two_clusters`."""


def two_clusters(per_cluster: int = 40) -> tuple[Tensor, Tensor]:
    """Draw inputs in [-1.5, -0.5] and [0.5, 1.5], a smooth function and noise of standard deviation 0.1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2 * per_cluster, 1, generator=generator, dtype=torch.float64) + 0.5
    x[:per_cluster] -= 2.0
    y = target(x) + NOISE * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return x, y


def target(x: Tensor) -> Tensor:
    """Return the function behind the clusters."""
    return torch.sin(3 * x) + 0.3 * x


def noisy_sine(n: int, seed: int, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Draw a period of a sine at `n` random inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
    return x, torch.sin(torch.pi * x) + noise * torch.randn(x.shape, generator=generator, dtype=torch.float64)


def line(low: float, high: float, points: int = 121) -> Tensor:
    """Return inputs at which curves are drawn."""
    return torch.linspace(low, high, points, dtype=torch.float64).unsqueeze(1)

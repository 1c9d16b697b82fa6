"""Make random numbers for training that are a function of a seed and a count, both of which checkpoints keep."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist

from marquis.randomness import new_seed

_STEP, _PROCESS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # odd and far apart, so that no two pairs meet


class TrainingNoise(nn.Module):
    """Make a generator for every training step; a resumed run samples what an uninterrupted one would have sampled.

    Seed and count are buffers, so they are part of any checkpoint of the weights. Processes that train together draw
    differently.

    Args:
        generator: Source of the seed; by default torch's global random stream.
    """

    seed: Tensor
    count: Tensor

    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.register_buffer("seed", torch.tensor(new_seed(generator)))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def next(self, device: torch.device) -> torch.Generator:
        """Return the generator of the next step."""
        self.count += 1
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        mixed = int(self.seed) + int(self.count) * _STEP + rank * _PROCESS
        return torch.Generator(device=device).manual_seed(mixed % 2**63)

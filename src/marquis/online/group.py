"""One batch's curvature over all processes of a group: the ordinary sum."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist

from marquis.structures import Structure


def sum_over_group(
    batch: Structure | None, size: int, error: float, entries: float, device: torch.device
) -> tuple[Structure | None, int, float, float]:
    """The global batch's curvature, size, squared error and number of entries; the same on every process.

    Two exchanges: the numbers, and the curvature if it was computed (on all processes or on none).
    """
    counts = torch.tensor([size, error, entries], dtype=torch.float64, device=device)
    dist.all_reduce(counts)
    if batch is not None:
        batch = batch.with_tensors([_summed(tensor) for tensor in batch.tensors()])
    size, error, entries = counts.tolist()
    return batch, int(size), error, entries


def from_first_process(numbers: Tensor) -> Tensor:
    """Process 0's numbers, on all of them."""
    numbers = numbers.clone()
    dist.broadcast(numbers, src=0)
    return numbers


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total

"""One training loop for all studies: batches in a new order for every epoch, and steps of an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class Shuffled:
    """Iterate over mini-batches of tensors in a new order for every pass, the same for the same seed.

    Args:
        tensors: Images and, if there are any, labels: a batch has as many parts.
        batch: Rows of a batch.
        seed: Random seed of the orders.
        flip: Whether half of the images are mirrored.
        skip: Passes whose orders are left out: training that goes on has orders of its own.
    """

    def __init__(self, tensors: tuple[Tensor, ...], batch: int, seed: int, flip: bool = False, skip: int = 0) -> None:
        self._tensors, self._batch, self._flip = tensors, batch, flip
        self._generator = torch.Generator().manual_seed(seed)
        for _ in range(skip):
            torch.randperm(len(tensors[0]), generator=self._generator)

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self._tensors[0]) // self._batch)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of one pass."""
        for rows in torch.randperm(len(self._tensors[0]), generator=self._generator).split(self._batch):
            x, *rest = (tensor[rows] for tensor in self._tensors)
            if self._flip:
                mirrored = torch.rand(len(rows), 1, 1, 1, generator=self._generator) < 0.5
                x = torch.where(mirrored, x.flip(3), x)
            yield x, *rest


def descend(
    optimiser: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, ...]],
    epochs: int,
    loss_of: Callable[..., Tensor],
    schedule: Any = None,
) -> Iterator[tuple[int, Tensor]]:
    """Take a step of the optimiser (and of the schedule) for every batch; yield the epoch, from 1 on, and the loss."""
    for epoch in range(1, epochs + 1):
        for batch in batches:
            loss = loss_of(*batch)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if schedule is not None:
                schedule.step()
            yield epoch, loss.detach()

"""Sums and messages between the processes of a `torch.distributed` group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from marquis.errors import DataError, MarquisError


def group_is_up() -> bool:
    """Return whether there are other processes to sum with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def exchange(report: Any, failure: Exception | None = None) -> list[Any]:
    """Return the reports of all processes by rank, or raise in all of them if one failed.

    Every process has to call this, also one that failed or had no data; otherwise the others would wait for ever.

    Args:
        report: Anything that can be pickled.
        failure: What went wrong in this process, if anything did; raised again here.

    Raises:
        DataError: Another process failed; its rank and message are repeated.
        MarquisError: Another process is gone (killed, its machine or link down) or did not answer in time.
    """
    everyone: list[Any] = [None] * dist.get_world_size()
    message = None if failure is None else f"{type(failure).__name__}: {failure}"
    try:
        dist.all_gather_object(everyone, (message, report))
    except RuntimeError as error:
        if failure is not None:
            raise failure from error
        raise MarquisError(
            f"another process of the group is gone ({str(error).partition(chr(10))[0][:200]}); start all again. "
            "A pass with checkpoint= continues where it was."
        ) from error
    if failure is not None:
        raise failure
    for rank, (message, _) in enumerate(everyone):
        if message is not None:
            raise DataError(f"process {rank} failed on its share of the data: {message}")
    return [report for _, report in everyone]


def own_or_first(value: Any | None) -> Any | None:
    """Return this process's value, or that of the first process that has one; None if none has."""
    there = [rank for rank, has in enumerate(exchange(value is not None)) if has]
    if not there or len(there) == dist.get_world_size():
        return value
    sent = [value if dist.get_rank() == there[0] else None]
    dist.broadcast_object_list(sent, src=there[0])
    return sent[0] if value is None else value


def sum_tensor(tensor: Tensor) -> Tensor:
    """Return the sum of all processes' tensors, which have to be of one shape and type."""
    total = _sendable(tensor)
    dist.all_reduce(total)
    return total.to(tensor.device)


def concatenate_columns(columns: Tensor) -> Tensor:
    """Return all processes' columns `[P, c]` side by side, in the order of their ranks; `c` may differ."""
    counts = exchange(columns.shape[1])
    padded = _sendable(torch.nn.functional.pad(columns, (0, max(counts) - columns.shape[1])))
    received = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(received, padded)
    cut = [part[:, :count] for part, count in zip(received, counts, strict=True)]
    return torch.cat(cut, dim=1).to(columns.device)


def from_first_process(tensor: Tensor) -> Tensor:
    """Return process 0's tensor in all processes."""
    copy = _sendable(tensor)
    dist.broadcast(copy, src=0)
    return copy.to(tensor.device)


def _sendable(tensor: Tensor) -> Tensor:
    """Return a copy where the group's backend can send it."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.cuda() if dist.get_backend() == "nccl" and not copy.is_cuda else copy

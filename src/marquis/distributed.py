"""Exchange sums and messages between the processes of a `torch.distributed` group."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist

from marquis.errors import DataError, MarquisError

Function = TypeVar("Function", bound=Callable[..., Any])

SECONDS = 1.0
"""Time between two looks at whether another process has failed."""


def group_is_up() -> bool:
    """Return whether there are other processes to sum with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def exchange(report: Any, failure: Exception | None = None) -> list[Any]:
    """Return the reports of all processes by rank, or raise in all of them if one failed.

    Every process has to call this, also one that failed or had no data; otherwise the others would wait for ever.
    Every other message between processes follows an exchange, so a failed process always meets the others in one.

    Args:
        report: Anything that can be pickled.
        failure: What went wrong in this process, if anything did; raised again here.

    Raises:
        DataError: Another process failed; its rank and message are repeated.
        MarquisError: Another process is gone (killed, its machine or link down) or did not answer in time.
    """
    global _exchanges
    everyone: list[Any] = [None] * dist.get_world_size()
    message = None if failure is None else f"{type(failure).__name__}: {failure}"
    if failure is not None:
        key = _failure_key()
        _StoreQuery(lambda: _store().set(key, b"")).join(5.0)
    _exchanges += 1
    try:
        dist.all_gather_object(everyone, (message, report))
    except RuntimeError as error:
        lost = " and ".join(map(str, _lost()))
        gone = f"process {lost}" if lost else "another process"
        failure = failure or MarquisError(
            f"{gone} left the group: killed, ended by an error of its own, or at the end of its loop before the others "
            f"({str(error).partition(chr(10))[0][:120]}). Start all again; every process has to take as many steps. A "
            "pass with checkpoint= continues where it was."
        )
        raise _marked(failure) from error
    if failure is not None:
        raise _marked(failure)
    for rank, (message, _) in enumerate(everyone):
        if message is not None:
            raise _marked(DataError(f"process {rank} failed on its share of the data: {message}"))
    return [report for _, report in everyone]


_exchanges = 0
"""How often this process met the others: the same number in all of them."""


def fails_together(function: Function, *, confirm: bool = True) -> Function:
    """Make a function that all processes of a group call raise in all of them if it raises in one.

    The others stop at their next exchange, or at their next batch where they read through `guarded`. A function with an
    argument `distributed` is left alone where that is False.

    Args:
        function: Ends in the same exchange, or raises, in every process.
        confirm: Meet once more at the end, for a function that can fail in one process after its last exchange.
    """

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if named.get("distributed") is False or not group_is_up():
            return function(*arguments, **named)
        try:
            result = function(*arguments, **named)
        except Exception as error:
            if not getattr(error, "raised_by_all_processes", False):
                exchange(None, error)
            raise
        if confirm:
            exchange(None)
        return result

    return cast(Function, wrapper)


def guarded(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader; raise within about a second after another process has failed."""
    last_check, query = time.monotonic(), None
    for batch in loader:
        if query is None and time.monotonic() - last_check >= SECONDS:
            last_check, key = time.monotonic(), _failure_key()
            query = _StoreQuery(lambda key=key: _store().check([key]))
            query.join(0.05)
        if query is not None and not query.is_alive():
            if query.answer:
                exchange(None)
            query = None
        yield batch


class _StoreQuery(Thread):
    """Ask the store in a thread of its own: where the link to it is cut, torch waits for the answer for ever."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.answer: Any = None
        self._ask = ask
        self.start()

    def run(self) -> None:
        """Keep the answer, or None where there was none."""
        with suppress(RuntimeError):  # what becomes of the others, the next exchange tells
            self.answer = self._ask()


def _marked(error: Exception) -> Exception:
    """Mark an error that all processes raise, so that it is not exchanged again."""
    error.raised_by_all_processes = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


def _store() -> Any:
    """Return the table that all processes of the group read and write without waiting for each other."""
    return dist.distributed_c10d._get_default_store()


def _failure_key() -> str:
    return f"marquis: failed before exchange {_exchanges}"


def _lost() -> list[int]:
    """Return the processes that no longer take messages, as far as the backend can tell."""
    lost = []
    for rank in sorted(set(range(dist.get_world_size())) - {dist.get_rank()}):
        try:
            if dist.get_backend() == "gloo":
                dist.isend(torch.zeros(1), rank)
        except RuntimeError:
            lost.append(rank)
    return lost


def this_or_first(value: Any | None) -> Any | None:
    """Return this process's value, or that of the first process that has one; None if none has."""
    there = [rank for rank, has in enumerate(exchange(value is not None)) if has]
    if not there or len(there) == dist.get_world_size():
        return value
    sent = [value if dist.get_rank() == there[0] else None]
    dist.broadcast_object_list(sent, src=there[0])
    return sent[0] if value is None else value


def sum_of_shares(compute: Callable[[], Sequence[Tensor]], in_group: bool) -> list[Tensor]:
    """Return the sums over processes of the tensors that each computes from its share of the data.

    Args:
        compute: Returns tensors of the same shapes in all processes, zeros where there are no data.
        in_group: Whether this process's data are a share; otherwise its own tensors are returned.

    Raises:
        DataError: Another process failed, as in `exchange`.
    """
    if not in_group:
        return list(compute())
    return [sum_tensor(share) for share in fails_together(compute)()]


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
    exchange(None)
    return from_process(tensor, 0)


def from_process(tensor: Tensor, rank: int) -> Tensor:
    """Return one process's tensor in all processes, which have one of its shape and type; follows an exchange."""
    copy = _sendable(tensor)
    dist.broadcast(copy, src=rank)
    return copy.to(tensor.device)


def path_of_process(path: str | Path) -> Path:
    """Return this process's file of several that belong together."""
    return Path(f"{path}.{dist.get_rank()}")


def all_shares(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of all processes' loaders in all processes, in the order of the ranks."""
    for rank in range(dist.get_world_size()):
        share = iter(loader) if rank == dist.get_rank() else None
        while True:
            batch, failure = None, None
            try:
                batch = None if share is None else next(share, None)
            except Exception as error:
                failure = error
            batch = exchange(batch, failure)[rank]
            if batch is None:
                break
            yield batch


def require_same(what: str, digest: str) -> None:
    """Raise in all processes unless they have the same, by its fingerprint."""
    for rank, other in enumerate(everyone := exchange(digest)):
        if other != everyone[0]:
            raise _marked(
                DataError(
                    f"processes 0 and {rank} have different {what}, but each holds only a part of the posterior; pass "
                    "the same everywhere, or a share of the data to predict_loader."
                )
            )


def _sendable(tensor: Tensor) -> Tensor:
    """Return a copy where the group's backend can send it."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.cuda() if dist.get_backend() == "nccl" and not copy.is_cuda else copy

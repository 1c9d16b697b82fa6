"""The sum of structures over the processes of a `torch.distributed` group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from marquis.errors import DataError, ModelMismatchError
from marquis.structures import Structure, from_state_dict


def group_is_up() -> bool:
    """Whether there are other processes to sum with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_processes(own: Structure | None, failure: Exception | None, identity: str) -> Structure:
    """The sum of all processes' structures, the same in each. One exchange, however many batches each had.

    Every process has to call this, also one that failed or had no data; otherwise the others would wait for ever.

    Args:
        own: this process's sum, or None if it had no data.
        failure: what went wrong here, if anything did.
        identity: fingerprint of network and options, which must be the same everywhere.

    Raises:
        DataError: a process failed on its share (its message is repeated), or none had any data.
        ModelMismatchError: the processes have different networks or options.
    """
    mine = {
        "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
        "identity": identity,
        "signature": None if own is None else [(tuple(t.shape), str(t.dtype)) for t in own.tensors()],
    }
    everyone: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    if failure is not None:
        raise failure
    for rank, other in enumerate(everyone):
        if other["failure"] is not None:
            raise DataError(f"process {rank} failed on its share of the data: {other['failure']}")
        if other["identity"] != everyone[0]["identity"]:
            raise ModelMismatchError(
                f"processes 0 and {rank} have different parameters, likelihoods or options; load the same network "
                "and pass the same arguments everywhere."
            )
    with_data = [rank for rank, other in enumerate(everyone) if other["signature"] is not None]
    if not with_data:
        raise DataError("no process's loader yields a batch; there is no curvature without data.")
    own = _with_empty_shares(own, with_data, len(everyone))
    if own.reduction == "gather":
        return own.with_tensors([_gathered(own.tensors()[0])])
    for rank in with_data:
        if everyone[rank]["signature"] != everyone[with_data[0]]["signature"]:
            raise ModelMismatchError(
                f"processes {with_data[0]} and {rank} keep the curvature in different forms; give all of them "
                "batches of the same kind."
            )
    return own.with_tensors([_summed(tensor) for tensor in own.tensors()])


def _with_empty_shares(own: Structure | None, with_data: list[int], processes: int) -> Structure:
    """A process without data takes zeros of the form that the others have."""
    if len(with_data) < processes:
        template = [own.state_dict() if own is not None and dist.get_rank() == with_data[0] else None]
        dist.broadcast_object_list(template, src=with_data[0])
        if own is None:
            assert template[0] is not None
            like = from_state_dict(template[0])
            if like.reduction == "gather":
                return like.with_tensors([like.tensors()[0][:, :0]])
            return like.with_tensors([torch.zeros_like(tensor) for tensor in like.tensors()])
    assert own is not None
    return own


def _on_wire(tensor: Tensor) -> Tensor:
    """A copy where the group's backend can send it."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy.cuda() if dist.get_backend() == "nccl" and not copy.is_cuda else copy


def _summed(tensor: Tensor) -> Tensor:
    copy = _on_wire(tensor)
    dist.all_reduce(copy)
    return copy.to(tensor.device)


def _gathered(columns: Tensor) -> Tensor:
    """All processes' columns side by side, in the order of their ranks; padded on the way to one width."""
    counts: list[Any] = [0] * dist.get_world_size()
    dist.all_gather_object(counts, columns.shape[1])
    padded = _on_wire(torch.nn.functional.pad(columns, (0, max(counts) - columns.shape[1])))
    received = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(received, padded)
    cut = [part[:, :count] for part, count in zip(received, counts, strict=True)]
    return torch.cat(cut, dim=1).to(columns.device)

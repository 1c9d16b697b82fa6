"""The sum of structures over the processes of a `torch.distributed` group."""

from __future__ import annotations

import torch
from torch import distributed as dist

from marquis.distributed import concatenate_columns, exchange, sum_tensor
from marquis.errors import DataError, ModelMismatchError
from marquis.structures import Structure, from_state_dict


def sum_over_processes(share: Structure | None, identity: str) -> Structure:
    """Return the sum of all processes' structures, the same in each; one exchange, however many batches each had.

    Every process has to call this, also one that had no data.

    Args:
        share: This process's sum, or None if it had no data.
        identity: Fingerprint of network and options, which must be the same everywhere.

    Raises:
        DataError: A process failed on its share (its message is repeated), or none had any data.
        ModelMismatchError: The processes have different networks or options.
    """
    signature = None if share is None else [(tuple(t.shape), str(t.dtype)) for t in share.tensors()]
    everyone = exchange((identity, signature))
    for rank, (other, _) in enumerate(everyone):
        if other != everyone[0][0]:
            raise ModelMismatchError(
                f"processes 0 and {rank} have different parameters, likelihoods or options; load the same network "
                "and pass the same arguments everywhere."
            )
    with_data = [rank for rank, (_, other) in enumerate(everyone) if other is not None]
    if not with_data:
        raise DataError("no process's loader yields a batch; there is no curvature without data.")
    share = _with_empty_shares(share, with_data, len(everyone))
    if share.reduction == "gather":
        return share.with_tensors([concatenate_columns(share.tensors()[0])])
    for rank in with_data:
        if everyone[rank][1] != everyone[with_data[0]][1]:
            raise ModelMismatchError(
                f"processes {with_data[0]} and {rank} keep the curvature in different forms; give all of them "
                "batches of the same kind."
            )
    return share.with_tensors([sum_tensor(tensor) for tensor in share.tensors()])


def _with_empty_shares(share: Structure | None, with_data: list[int], processes: int) -> Structure:
    """Return this process's share; zeros of the form that the others have if it had no data."""
    if len(with_data) < processes:
        template = [share.state_dict() if share is not None and dist.get_rank() == with_data[0] else None]
        dist.broadcast_object_list(template, src=with_data[0])
        if share is None:
            assert template[0] is not None
            like = from_state_dict(template[0])
            if like.reduction == "gather":
                return like.with_tensors([like.tensors()[0][:, :0]])
            return like.with_tensors([torch.zeros_like(tensor) for tensor in like.tensors()])
    assert share is not None
    return share

"""Sum structures over the processes of a `torch.distributed` group, and share work among them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed as dist

from marquis.distributed import concatenate_columns, exchange, fails_together, from_process, group_is_up, sum_tensor
from marquis.errors import DataError, ModelMismatchError
from marquis.structures import Kronecker, Structure, from_state_dict
from marquis.structures.pieces import KroneckerPiece


def sum_over_processes(share: Structure | None, identity: str) -> Structure:
    """Return the sum of all processes' structures, the same in each; one exchange, however many batches each had.

    Every process has to call this, also one that had no data.

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


def decompose_over_processes(total: Structure) -> None:
    """Compute the eigen-decompositions of Kronecker factors once per group, and leave them in all processes.

    Each process decomposes factors of about the same cost in all, n³ each, and sends the result to the others; so all
    have the same bits. Every process has to call this, with the same factors.
    """
    if not isinstance(total, Kronecker) or not group_is_up():
        return
    factors = [
        (name, side, piece, getattr(piece, side))
        for name, piece in total.pieces.items()
        if isinstance(piece, KroneckerPiece)
        for side in ("left", "right")
    ]
    owners = balanced([factor.shape[0] * factor.shape[-1] ** 3 for *_, factor in factors], dist.get_world_size())

    @fails_together
    def run_share() -> None:
        for (name, side, piece, _), owner in zip(factors, owners, strict=True):
            if owner == dist.get_rank():
                piece.decompose(name, side)

    run_share()
    for (_, side, piece, factor), owner in zip(factors, owners, strict=True):
        blank = factor.new_zeros(factor.shape[:-1]), torch.zeros_like(factor)
        parts = piece.decomposed.get(side, blank)  # values, vectors; zeros where another process has them
        piece.decomposed[side] = (from_process(parts[0], owner), from_process(parts[1], owner))


def balanced(costs: Sequence[float], processes: int) -> list[int]:
    """Return who does which of several jobs: the dearest first, each to the one who has least to do."""
    load, owners = [0.0] * processes, [0] * len(costs)
    for job in sorted(range(len(costs)), key=lambda job: -costs[job]):
        owners[job] = load.index(min(load))
        load[owners[job]] += costs[job]
    return owners


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

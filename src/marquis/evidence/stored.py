"""Jacobians of small problems, kept in memory: every later product is two matrix multiplications, no backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from marquis.curvature.linop.products import FrozenNetwork
from marquis.curvature.planning.memory import available_bytes
from marquis.structures import Layout

STORED_BYTES = 2**30
"""Jacobians are kept up to this size, or up to a quarter of the free memory if that is less."""

TEMPORARY_BYTES = 2**28
"""For the gradients of the data that are differentiated side by side."""


class StoredBatch:
    """One batch with its Jacobian `[B M, P]`, M outputs per datum; the same interface as `TangentBatch`."""

    def __init__(self, x: Any, y: Tensor, mask: Tensor | None, f: Tensor, jacobian: Tensor) -> None:
        self.x, self.y, self.mask, self.f = x, y, mask, f
        self._jacobian = jacobian

    def push(self, rows: Tensor) -> Tensor:
        """J v for rows `[k, P]`: `[k, *f.shape]`."""
        return (rows.to(self._jacobian) @ self._jacobian.mT).reshape(len(rows), *self.f.shape)

    def pull(self, cotangents: Tensor) -> Tensor:
        """J^T u for cotangents `[k, *f.shape]`: `[k, P]`."""
        return cotangents.reshape(len(cotangents), -1).to(self._jacobian) @ self._jacobian

    def gram(self, blocks: Tensor) -> Tensor:
        """`sum_n J_n^T L_n J_n` for blocks L `[B, M, M]`: `[P, P]`."""
        count, width = blocks.shape[:2]
        rows = self._jacobian.reshape(count, width, -1)
        return self._jacobian.mT @ (blocks.to(rows) @ rows).reshape(count * width, -1)


def fits(network: FrozenNetwork, layout: Layout, outputs: Tensor, data: int, limit: int | None) -> bool:
    """Whether the Jacobians of all data may be kept.

    Args:
        network: gives device and type.
        layout: the P weights.
        outputs: of one batch.
        data: number of data in all batches.
        limit: bytes; None for `STORED_BYTES` or a quarter of what is free.
    """
    if limit is None:
        limit = min(STORED_BYTES, available_bytes(network.device) // 4)
    return data * outputs[0].numel() * layout.total * outputs.element_size() <= limit


def jacobian_of(network: FrozenNetwork, layout: Layout, x: Any, outputs: Tensor) -> Tensor | None:
    """Rows `d f_m(x_n) / d theta`, `[B M, P]`; None where data cannot be differentiated one by one.

    That is where an operation has no rule for `vmap`, or where a datum's outputs depend on the rest of its batch.
    Cost: M backward passes per datum; memory B M P.
    """
    count, width = outputs.shape[0], outputs[0].numel()
    point = [network.params[name] for name in network.names]

    def alone(leaves: list[Tensor], sample: Any) -> Tensor:
        batch = pytree.tree_map_only(Tensor, lambda t: t.unsqueeze(0), sample)
        return network.outputs(leaves, batch)[0].reshape(-1)

    def rows(sample: Any) -> tuple[Tensor, Tensor]:
        value, pull, *_ = torch.func.vjp(lambda leaves: alone(leaves, sample), point)
        (gradients,) = torch.vmap(pull)(torch.eye(width, dtype=value.dtype, device=value.device))
        return value, layout.flatten(dict(zip(network.names, gradients, strict=True)))

    axes = pytree.tree_map(lambda t: 0 if isinstance(t, Tensor) else None, x)
    each = max(1, TEMPORARY_BYTES // (4 * width * layout.total * outputs.element_size()))
    try:
        with sdpa_kernel(SDPBackend.MATH):
            values, found = torch.vmap(rows, in_dims=(axes,), chunk_size=min(each, count))(x)
    except RuntimeError:
        return None
    close = 1e3 * torch.finfo(outputs.dtype).eps * (1 + float(outputs.abs().max()))
    if float((values.reshape_as(outputs) - outputs).abs().max()) > close:
        return None
    return found.detach().reshape(count * width, layout.total)

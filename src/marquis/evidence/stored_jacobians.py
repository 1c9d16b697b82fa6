"""Keep the Jacobians of small problems in memory, so that every later product is two matrix multiplications."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marquis.curvature.planning.memory import available_bytes
from marquis.functional.checks import samples_of
from marquis.functional.function import NetworkFunction
from marquis.functional.jacobian import values_and_jacobian
from marquis.structures import Layout

STORED_BYTES = 2**30
"""Jacobians are kept up to this size, or up to a quarter of the free memory if that is less."""

TEMPORARY_BYTES = 2**28
"""For the gradients of the data that are differentiated side by side."""


class StoredBatch:
    """Hold one batch with its Jacobian `[B M, P]`, M outputs per sample; the interface is that of `TangentBatch`."""

    def __init__(self, x: Any, y: Tensor, mask: Tensor | None, f: Tensor, jacobian: Tensor) -> None:
        self.x, self.y, self.mask, self.f = x, y, mask, f
        self._jacobian = jacobian

    def times(self, rows: Tensor) -> Tensor:
        """Return J v for rows `[k, P]`: `[k, *f.shape]`."""
        return (rows.to(self._jacobian) @ self._jacobian.mT).reshape(len(rows), *self.f.shape)

    def transposed_times(self, cotangents: Tensor) -> Tensor:
        """Return J^T u for cotangents `[k, *f.shape]`: `[k, P]`."""
        return cotangents.reshape(len(cotangents), -1).to(self._jacobian) @ self._jacobian

    def gram(self, blocks: Tensor) -> Tensor:
        """Return `sum_n J_n^T L_n J_n` for blocks L `[B, M, M]`: `[P, P]`."""
        count, width = blocks.shape[:2]
        rows = self._jacobian.reshape(count, width, -1)
        return self._jacobian.mT @ (blocks.to(rows) @ rows).reshape(count * width, -1)


def jacobians_fit(network: NetworkFunction, layout: Layout, outputs: Tensor, data: int, limit: int | None) -> bool:
    """Return whether the Jacobians of all `data` examples fit into `limit` bytes; by default see `STORED_BYTES`."""
    if limit is None:
        limit = min(STORED_BYTES, available_bytes(network.device) // 4)
    return data * outputs[0].numel() * layout.total * outputs.element_size() <= limit


def jacobian_of(network: NetworkFunction, x: Any, outputs: Tensor) -> Tensor | None:
    """Return rows `d f_m(x_n) / d theta`, `[B M, P]`; None where a sample's outputs depend on the rest of its batch.

    Cost: M backward passes per sample; memory B M P.
    """
    count, width = outputs.shape[0], outputs[0].numel()
    each = max(1, TEMPORARY_BYTES // (4 * width * network.size * outputs.element_size()))
    pieces = [values_and_jacobian(network, samples_of(x, n, n + each)) for n in range(0, count, each)]
    values, rows = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    close = 1e3 * torch.finfo(outputs.dtype).eps * (1 + float(outputs.abs().max()))
    if float((values.reshape_as(outputs) - outputs).abs().max()) > close:
        return None
    return rows.reshape(count * width, network.size)

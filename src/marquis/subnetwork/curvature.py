"""Compute the curvature of single weights: the sub-block of the whole network's, without the whole network's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.accumulate import Observer, accumulate
from marquis.curvature.ggn import ggn
from marquis.curvature.over_processes import sum_over_processes
from marquis.curvature.resume import digest_of
from marquis.distributed import group_is_up, guarded
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model
from marquis.functional.checks import batch_size, samples_of
from marquis.functional.selection import parameters_of
from marquis.likelihoods import Likelihood
from marquis.loaders import MaskOf, number_of_batches, read_batches
from marquis.progress import ProgressBar
from marquis.structures import Block, Diagonal, Full, LowRank, Structure
from marquis.subnetwork.choose import Chosen

BUDGET = 2**28
"""Bytes for the columns of the parameters that hold chosen weights."""


def subcurvature(
    model: Model,
    loader: Iterable[Any],
    likelihood: Likelihood,
    chosen: Chosen,
    structure: str,
    estimator: str,
    *,
    params: Mapping[str, Tensor] | None = None,
    probes: int = 1,
    generator: torch.Generator | None = None,
    memory_limit: int | None = None,
    progress: bool = True,
    mask_of: MaskOf | None = None,
    observer: Observer | None = None,
    **unsupported: Any,
) -> Structure:
    """Return `H_ss`, summed over a loader, for the chosen weights s.

    See docs/method/curvature.md#last-layer-and-subnetworks.

    Columns `J^T S` of the parameters that hold chosen weights are computed for a few data at a time, and only the
    chosen rows are kept. Memory: K^2 for "full"; cost that of structure="lowrank" over those parameters.
    Arguments as in `curvature.accumulate`; masks and options of it that mean nothing here are refused by name.
    """
    if unsupported:
        raise UnsupportedOperationError(f"{sorted(unsupported)} are not supported for a subnetwork.")
    if mask_of is not None:
        raise UnsupportedOperationError("masks are not supported for a subnetwork; use parameters='all' or names.")
    names = list(chosen.layout.names)
    options: dict[str, Any] = {"params": params, "parameters": names, "probes": probes, "generator": generator}
    if structure == "diagonal":
        options |= {"memory_limit": memory_limit, "progress": progress, "observer": observer}
        whole = accumulate(model, loader, likelihood, "diagonal", estimator, **options)
        return Diagonal(chosen.inside, whole.diagonal()[chosen.index.to(whole.device)])
    device = parameters_of(model, params)[names[0]].device
    collected = _Collected(chosen, structure)
    with ProgressBar("subnetwork curvature", number_of_batches(loader), progress) as bar:
        for batch in read_batches(guarded(loader) if group_is_up() else loader, device):
            size, start = batch_size(batch.x), 0
            while start < size:
                stop = min(size, start + collected.width(memory_limit))
                part = samples_of(batch, start, stop)
                observe = None if observer is None else lambda f, part=part: observer(f, part)
                lowrank = ggn(model, part.x, likelihood, "lowrank", estimator, observer=observe, **options)
                assert isinstance(lowrank, LowRank)
                collected.add(lowrank.columns, stop - start)
                start = stop
            bar.advance()
    if group_is_up():
        identity = digest_of((chosen.index, structure, repr(chosen.layout)))
        return sum_over_processes(None if collected.is_empty else collected.structure(), identity)
    return collected.structure()


class _Collected:
    """Add up columns of the chosen weights in the form that the structure keeps."""

    def __init__(self, chosen: Chosen, structure: str) -> None:
        self._chosen, self._structure = chosen, structure
        self._blocks = chosen.inside.by_module() if structure == "block" else {"all": chosen.inside.names}
        self._sums: dict[str, Tensor] = {}
        self._columns: list[Tensor] = []
        self._bytes_per_sample = 0

    def width(self, limit: int | None) -> int:
        """Return the number of samples at a time; one, until its memory is known."""
        if not self._bytes_per_sample:
            return 1
        return max(1, (BUDGET if limit is None else limit) // self._bytes_per_sample)

    def add(self, columns: Tensor, count: int) -> None:
        """Take columns `[P, R]` of all weights of the parameters, of `count` data."""
        self._bytes_per_sample = max(1, 3 * columns.numel() * columns.element_size() // count)
        rows = columns[self._chosen.index.to(columns.device)]
        if self._structure == "lowrank":
            self._columns.append(rows)
            return
        for block, names in self._blocks.items():
            chosen_rows = torch.cat([rows[self._chosen.inside.slice(name)] for name in names])
            product = chosen_rows @ chosen_rows.mT
            self._sums[block] = self._sums[block] + product if block in self._sums else product

    @property
    def is_empty(self) -> bool:
        """Return whether there were no data yet."""
        return not self._sums and not self._columns

    def structure(self) -> Structure:
        """Return the sub-block as a structure."""
        if self.is_empty:
            raise DataError("the loader yields no batches; there is no curvature without data.")
        inside = self._chosen.inside
        if self._structure == "lowrank":
            return LowRank(inside, torch.cat(self._columns, 1))
        if self._structure == "full":
            return Full(inside, self._sums["all"])
        return Block(inside, {block: (names, self._sums[block]) for block, names in self._blocks.items()})

"""Compute the curvature of single weights: the sub-block of the whole network's, without the whole network's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.accumulate import Observer, accumulate
from marquis.curvature.data_pass import joined, plus
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
    parts: tuple[Structure, ...] = ()
    width = 1  # samples at a time, until the memory of one is known
    with ProgressBar("subnetwork curvature", number_of_batches(loader), progress) as bar:
        for batch in read_batches(guarded(loader) if group_is_up() else loader, device):
            size, start = batch_size(batch.x), 0
            while start < size:
                stop = min(size, start + width)
                part = samples_of(batch, start, stop)
                observe = None if observer is None else lambda f, part=part: observer(f, part)
                lowrank = ggn(model, part.x, likelihood, "lowrank", estimator, observer=observe, **options)
                assert isinstance(lowrank, LowRank)
                parts = plus(parts, _of_chosen(chosen, structure, lowrank.columns))
                each = max(1, 3 * lowrank.columns.numel() * lowrank.columns.element_size() // (stop - start))
                start, width = stop, max(1, (BUDGET if memory_limit is None else memory_limit) // each)
            bar.advance()
    if group_is_up():
        identity = digest_of((chosen.index, structure, repr(chosen.layout)))
        return sum_over_processes(joined(parts) if parts else None, identity)
    if not parts:
        raise DataError("the loader yields no batches; there is no curvature without data.")
    return joined(parts)


def _of_chosen(chosen: Chosen, structure: str, columns: Tensor) -> Structure:
    """Return the sub-block of the chosen weights from columns `[P, R]` of all weights of their parameters."""
    rows, inside = columns[chosen.index.to(columns.device)], chosen.inside
    if structure == "lowrank":
        return LowRank(inside, rows)
    if structure == "full":
        return Full(inside, rows @ rows.mT)
    blocks: dict[str, tuple[tuple[str, ...], Tensor]] = {}
    for block, names in inside.by_module().items():
        part = torch.cat([rows[inside.slice(name)] for name in names])
        blocks[block] = (names, part @ part.mT)
    return Block(inside, blocks)

"""Continue a half-done pass with another number of processes than it was begun with.

Every checkpoint lists the samples that are in its sum, by their digests. The new processes share the old sums among
them, and skip the samples that are in one of these, whoever's loader yields them now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from marquis.curvature.resume import Checkpoint, Saved, row_digests
from marquis.distributed import exchange
from marquis.errors import DataError
from marquis.io.previous import remove_both
from marquis.loaders import MaskOf, read_batches, refuse_one_shot


def take_over(
    file: Checkpoint, loader: Iterable[Any], home: torch.device, mask_of: MaskOf | None
) -> tuple[Saved | None, Counter[int]] | None:
    """Return what this process inherits from another number of processes, and the samples that it has to skip.

    All processes have to call this. None means that there is nothing of that kind: the pass is new, or was begun by as
    many processes, each of which continues behind its own batches.

    Args:
        file: This process's checkpoint.
        loader: Its share of the data, which is read once more for the digests.
        home: Device of the model.
        mask_of: As in `accumulate`.

    Raises:
        DataError: The loaders do not yield all of the samples that are in the sums.
    """
    chosen = _chosen(file)
    if chosen is None:
        return None
    saved = file.load() if chosen == file.world else _inherited(file, chosen)
    refuse_one_shot(loader, "a checkpointed pass that continues with other processes")
    mine: Counter[int] = Counter()
    for batch in read_batches(loader, home, mask_of):
        mine.update(row_digests((batch.x, batch.mask)).tolist())
    done: Counter[int] = Counter()
    for rows in _everyone(file, [] if saved is None else saved.done.tolist()):
        done.update(rows)
    skip: Counter[int] = Counter()
    for rank, counts in enumerate(_everyone(file, {row: mine[row] for row in done if mine[row]})):
        taken = Counter({row: min(count, done[row]) for row, count in counts.items()})
        done -= taken
        skip = taken if rank == file.rank else skip
    if done:
        raise DataError(
            f"{sum(done.values())} samples in the checkpoints {file.base}* are in no process's loader now (or less "
            "often). Continuing needs the same data without repetitions (no padding by a sampler), in any shares; or "
            "delete the files to start anew."
        )
    return saved, skip


def _everyone(file: Checkpoint, report: Any) -> list[Any]:
    return exchange(report) if file.world > 1 else [report]


def _chosen(file: Checkpoint) -> int | None:
    """Return the number of processes whose checkpoints count; None where these continue as they are."""
    files: dict[int, set[int]] = {}
    moves: dict[int, tuple[int, int]] = {}
    for seen in _everyone(file, _sets(file)):
        for world, (ranks, moved) in seen.items():
            files.setdefault(world, set()).update(ranks)
            moves |= {} if moved is None else {world: moved}
    for world, (before, count) in moves.items():  # two sets are there if the change itself was interrupted
        if before in files and before != world:
            unwanted = before if len(files[world]) == count else world
            for rank in files.pop(unwanted):
                remove_both(file.of(rank, unwanted).path)
    if not files:
        return None
    if len(files) > 1:
        raise DataError(
            f"checkpoints of {sorted(files)} processes lie at {file.base}*; delete those that do not count."
        )
    (world,) = files
    return None if world == file.world and world not in moves else world


def _sets(file: Checkpoint) -> dict[int, tuple[list[int], tuple[int, int] | None]]:
    """Return, by number of processes, the ranks whose files this process sees, and `Saved.moved` of one of them."""
    sets: dict[int, list[int]] = {}
    for rank, world in file.present():
        sets.setdefault(world, []).append(rank)
    known = {}
    for world, ranks in sets.items():
        saved = file.of(file.rank if file.rank in ranks else ranks[0], world).load()
        known[world] = (ranks, None if saved is None else saved.moved)
    return known


def _inherited(file: Checkpoint, world: int) -> Saved | None:
    """Return this process's share of the sums of `world` processes, whose files it replaces."""
    seen = _everyone(file, sorted(rank for rank, of in file.present() if of == world))
    parts: list[Saved] = []
    heirs = set()
    for rank in sorted(set().union(*seen)):
        can = [process for process, ranks in enumerate(seen) if rank in ranks]
        heir = can[rank % len(can)]
        heirs.add(heir)
        if heir == file.rank and (part := file.of(rank, world).load()) is not None:
            parts.append(part)
    saved = None
    if parts:
        total = parts[0].total
        for part in parts[1:]:
            total = total + part.total
        limits = [part.rows for part in parts if part.rows is not None]
        done = torch.cat([part.done for part in parts])
        saved = Saved(total, 0, min(limits, default=None), "", None, done, (world, len(heirs)))
        file.save(saved)
    _everyone(file, None)  # all are written before any of the old ones goes
    for rank, of in file.present():
        if of == world:
            remove_both(file.of(rank, world).path)
    _everyone(file, None)
    return saved

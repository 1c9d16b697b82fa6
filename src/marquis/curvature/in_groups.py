"""Compute the curvature of a sharded network (FSDP2) group by group of its parameters, each kept by one process.

All processes sum a group's curvature over their shares of the data, and only its owner keeps it. So a process holds its
own group and the one at work, about 2/R of the whole for R processes, for R passes over its share of the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from marquis.curvature.planning.memory import result_bytes
from marquis.curvature.resume import Checkpoint
from marquis.distributed import fails_together
from marquis.errors import DataError
from marquis.functional.call import Model
from marquis.functional.unwrap import submodule
from marquis.loaders import refuse_one_shot
from marquis.structures import Diagonal, Layout, Spread, Structure

SPREADABLE = ("diagonal", "kronecker")
"""Structures that are a direct sum over parameters."""

OneGroup = Callable[[list[str], bool, "Path | None"], tuple[Structure, "Checkpoint | None"]]
"""Takes names, whether they are the first group, and a file; returns the sum over all processes, and its checkpoint."""


def sum_in_groups(
    one_group: OneGroup,
    model: Model,
    layout: Layout,
    structure: str,
    loader: Iterable[Any],
    like: Tensor,
    checkpoint: str | Path | None,
) -> Spread:
    """Return the curvature of all parameters, of which this process keeps its group.

    Args:
        one_group: Computes one group.
        model: The network.
        layout: All parameters that count.
        structure: One of `SPREADABLE`.
        loader: This process's share of the data.
        like: Gives dtype and device of an empty part.
        checkpoint: File of the whole pass; each group has one of its own, kept until the last group is finished.
    """
    refuse_one_shot(loader, "the curvature of a sharded network")
    if checkpoint is not None:
        fails_together(refuse_other_groups)(Path(checkpoint))
    groups = neighbours(model, layout, structure, dist.get_world_size())
    local: Structure = Diagonal(Layout({}), like.detach().new_zeros(0))
    files: list[Checkpoint] = []
    first = True
    for owner, names in enumerate(groups):
        if not names:
            continue
        path = None if checkpoint is None else Path(f"{checkpoint}.group{owner}")
        total, file = one_group(names, first, path)
        files += [] if file is None else [file]
        local, first = (total if owner == dist.get_rank() else local), False
        del total
    for file in files:
        file.remove()
    return Spread(layout, local, structure)


def refuse_other_groups(checkpoint: Path) -> None:
    """Refuse the checkpoints of another number of processes, whose groups of parameters are others.

    Raises:
        DataError: There are such files.
    """
    now = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    pattern = re.compile(rf"{re.escape(checkpoint.name)}\.group\d+(?:\.\d+-of-(\d+))?")
    names = [path.name for path in checkpoint.parent.glob("*")] if checkpoint.parent.is_dir() else []
    counts = {int(match[1] or 1) for name in names if (match := pattern.fullmatch(name))}
    if counts - {now}:
        raise DataError(
            f"the checkpoints {checkpoint}.group* are of {', '.join(map(str, sorted(counts)))} processes and there are "
            f"{now} now: a sharded network's groups of parameters differ. Continue with as many, or delete the files."
        )


def neighbours(model: Model, layout: Layout, structure: str, processes: int) -> list[list[str]]:
    """Return one run of neighbouring parameters per process, of about the same number of bytes."""
    costs = {name: _bytes(model, layout, structure, name) for name in layout.names}
    total, before = sum(costs.values()), 0.0
    groups: list[list[str]] = [[] for _ in range(processes)]
    for name, cost in costs.items():
        groups[min(processes - 1, int(processes * (before + cost / 2) / max(1, total)))].append(name)
        before += cost
    return groups


def _bytes(model: Model, layout: Layout, structure: str, name: str) -> int:
    """Return the bytes of one parameter's part; an embedding has no Kronecker factors."""
    module = submodule(model, name.rpartition(".")[0]) if isinstance(model, nn.Module) else None
    return result_bytes(structure, layout.select([name]), 1, 1, [name] if isinstance(module, nn.Embedding) else [])

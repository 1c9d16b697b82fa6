"""Donors for `marquis impute --method codes`: complete rows whose codes stand for what there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import typer
from torch import Tensor

from marquis.data.registry import set_name
from marquis.data.value import as_floats
from marquis.errors import DataError

if TYPE_CHECKING:
    from marquis.run import Run

HELP = "pass others by --donors FILE"


def chosen_donors(run: Run, wanting: Tensor, source: str | None, most: int, generator: torch.Generator) -> Tensor:
    """Complete rows `[n, ...]` as the model wants them, at random if there are too many; says which.

    Files and folders are often sorted by class, so the first rows would not do.

    Args:
        run: Whose training rows are taken where there is no `source`.
        wanting: The rows that are to be filled. With hidden halves they may be complete, and donors themselves: an
            answer would then come from the very thing that was hidden, so those are left out.
        source: File, folder or name; of a name the training rows.
        most: How many at most.
        generator: For the choice.

    Raises:
        DataError: There are none, or the training rows cannot be read.
    """
    if most < 1:
        raise DataError(f"--donor-rows {most}: at least 1")
    if source is None:
        stored, called = _training_rows(run), f"training rows of {run.settings.data}"
    else:
        stored, called = (
            run.read(source, split="train" if set_name(source) else None, holes=True).x,
            f"rows of {source}",
        )
    complete = stored.flatten(1).isfinite().all(1)
    own = complete & _among(stored, wanting)
    rows = (complete & ~own).nonzero()[:, 0]
    if len(rows) == 0 and not bool(complete.any()):
        raise DataError(f"donors: all {called} have missing entries; {HELP}")
    if len(rows) == 0:
        raise DataError(f"donors: all complete {called} are among those to be filled; fill fewer (--limit), or {HELP}")
    if len(rows) > most:
        rows = rows[torch.randperm(len(rows), generator=generator)[:most]]
    left_out = {"with missing entries": int((~complete).sum()), "among those to be filled": int(own.sum())}
    notes = [f"{count} {why}" for why, count in left_out.items() if count]
    typer.echo(f"donors: {len(rows)} of {len(stored)} {called}" + (f"; left out: {', '.join(notes)}" if notes else ""))
    return as_floats(stored[rows], torch.float32)


def _training_rows(run: Run) -> Tensor:
    try:
        run.data_module.setup()
    except DataError as problem:
        raise DataError(f"donors: the run's training rows cannot be read ({problem}); {HELP}") from problem
    return run.data_module.train.stored


def _among(stored: Tensor, wanting: Tensor) -> Tensor:
    """Which rows are among others, to the bit."""
    known = {row.tobytes() for row in wanting.numpy()}
    parts = (as_floats(part, wanting.dtype).numpy() for part in stored.split(1000))
    return torch.tensor([row.tobytes() in known for part in parts for row in part])

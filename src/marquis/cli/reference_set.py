"""Choose the reference set of `marquis impute --method weighted`: complete rows whose codes represent the prior."""

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

HELP = "pass other rows by --reference FILE"


def reference_rows(run: Run, to_fill: Tensor, source: str | None, most: int, generator: torch.Generator) -> Tensor:
    """Return complete rows `[n, ...]`, scaled for the model, at random if there are too many; prints which.

    Files and folders are often sorted by class, so the first rows would not do.

    Args:
        run: Its training rows are taken where there is no `source`.
        to_fill: The rows that are to be filled. With hidden halves they may be complete, and in the reference set
            themselves; they are left out, as an imputation would otherwise copy the entries that were hidden.
        source: File, folder or name; of a name the training rows.
        most: Maximum number of rows.
        generator: Source of the choice.

    Raises:
        DataError: There are none, or the training rows cannot be read.
    """
    if most < 1:
        raise DataError(f"--reference-rows {most}: at least 1")
    if source is None:
        reference, name = _training_rows(run), f"training rows of {run.settings.data}"
    else:
        split = "train" if set_name(source) else None
        reference, name = run.read(source, split=split, allow_missing=True).x, f"rows of {source}"
    complete = reference.flatten(1).isfinite().all(1)
    repeated = complete & _is_among(reference, to_fill)
    rows = (complete & ~repeated).nonzero()[:, 0]
    if len(rows) == 0 and not bool(complete.any()):
        raise DataError(f"reference set: all {name} have missing entries; {HELP}")
    if len(rows) == 0:
        raise DataError(
            f"reference set: all complete {name} are among those to be filled; fill fewer (--limit), or {HELP}"
        )
    if len(rows) > most:
        rows = rows[torch.randperm(len(rows), generator=generator)[:most]]
    left_out = {"with missing entries": int((~complete).sum()), "among those to be filled": int(repeated.sum())}
    notes = [f"{count} {reason}" for reason, count in left_out.items() if count]
    end = f"; left out: {', '.join(notes)}" if notes else ""
    typer.echo(f"reference set: {len(rows)} of {len(reference)} {name}{end}")
    return as_floats(reference[rows], torch.float32)


def _training_rows(run: Run) -> Tensor:
    """Return the training rows of a run, scaled."""
    try:
        run.data_module.setup()
    except DataError as problem:
        raise DataError(f"reference set: the run's training rows cannot be read ({problem}); {HELP}") from problem
    return run.data_module.train.stored


def _is_among(reference: Tensor, others: Tensor) -> Tensor:
    """Return which rows are equal, to the bit, to one of the others."""
    row_bytes = {row.tobytes() for row in others.numpy()}
    parts = (as_floats(part, others.dtype).numpy() for part in reference.split(1000))
    return torch.tensor([row.tobytes() in row_bytes for part in parts for row in part])

"""Arguments and options that several commands on a finished run share, with one wording each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _checked_seed(seed: int) -> int:
    from marquis.errors import DataError
    from marquis.run.settings import SEEDS

    if not 0 <= seed < SEEDS:
        raise DataError(f"--seed {seed}: from 0 to {SEEDS - 1}")
    return seed


FinishedRun = Annotated[Path, typer.Argument(help="Folder of a run that `marquis train` has finished.")]
DataSource = Annotated[str, typer.Argument(help="File, folder or name of the data.")]
ColumnsFile = Annotated[
    Path | None, typer.Option(help="A .csv, .parquet or .npz file.", show_default="a .csv in the run's folder")
]
Split = Annotated[str | None, typer.Option(help="train, test or all.", show_default="test of a name, all of a file")]
Draws = Annotated[int, typer.Option(help="Draws of the model.")]
Linear = Annotated[
    bool,
    typer.Option(
        "--linearised", help="By the linearised network: lae at effective temperature 1, lae-posthoc at its own."
    ),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a .csv file begins with names.", show_default="found out"),
]
FirstRows = Annotated[int | None, typer.Option(help="Only the first so many rows.")]
DrawSeed = Annotated[int, typer.Option(help="Of the random draws.", callback=_checked_seed)]
OverwriteFile = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]

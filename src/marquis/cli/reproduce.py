"""`marquis reproduce NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marquis.experiments import EXPERIMENTS, find

app = typer.Typer(help="Run an experiment of the papers.", no_args_is_help=True)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help=f"Which experiment: {', '.join(EXPERIMENTS)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="A minute or two: does it run?")] = False,
    full: Annotated[bool, typer.Option("--full", help="As large as in the paper: hours to days.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for results. [default: runs/NAME]")] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The first folder to look in for data. [env: MARQUIS_DATA]")
    ] = None,
) -> None:
    """Run an experiment of the papers and write its tables and pictures; a run that was stopped goes on."""
    if quick and full:
        raise typer.BadParameter("choose one of --quick and --full")
    module = find(name)
    size = "quick" if quick else "full" if full else "default"
    page = module.run(size, out or Path("runs") / name, data_dir, typer.echo)
    typer.echo(f"written: {page}")

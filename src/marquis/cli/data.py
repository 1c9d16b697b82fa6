"""Define `marquis data list | fetch | check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marquis.cli.options import new_app

app = new_app(help="Find, download and check data sets.")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The first folder to look in and to download to. [env: MARQUIS_DATA]"),
]


@app.command("list")
def list_sets(data_dir: DataDir = None) -> None:
    """Show all named data sets: what they hold, and where they lie or how to get them."""
    from rich.console import Console
    from rich.table import Table

    from marquis.data.registry import SETS
    from marquis.data.status import statuses

    table = Table("name", "contents")
    table.add_column("where, or how to get it", overflow="fold")  # a path cut short is of no use
    for status in statuses(data_dir=data_dir):
        split = "" if status.split == "all" else f" ({status.split})"
        where = status.folder or f"absent: {status.advice}"
        table.add_row(status.name + split, SETS[status.name].contents, where)
    Console().print(table)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name that `marquis data list` shows.")], data_dir: DataDir = None
) -> None:
    """Download a data set, unless it is there already, and check it."""
    from marquis.data.download import find_or_download
    from marquis.data.registry import find_set

    named = find_set(name)
    if named.addresses:
        find_or_download(named, "all", data_dir)
    _check_and_print(name, data_dir, absent_is_error=True)


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(help="One set; by default all that are there.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Check SHA-256 and shape of the data sets that are there; fails if any is damaged or wrong."""
    _check_and_print(name, data_dir, absent_is_error=name is not None)


def _check_and_print(name: str | None, data_dir: Path | None, *, absent_is_error: bool) -> None:
    """Print one line per split as it is checked; raise one error at the end for all that is wrong."""
    from marquis.data.status import check as checked
    from marquis.errors import DataError

    problems = []
    for status in checked(name, data_dir):
        if status.problem:
            typer.echo(f"{status.name} {status.split}: WRONG ({status.folder})")
            problems.append(status.problem)
        elif status.folder is None:
            typer.echo(f"{status.name} {status.split}: absent")
            if absent_is_error:
                problems.append(f"{status.name}: split {status.split!r} is absent; {status.advice}")
        else:
            typer.echo(f"{status.name} {status.split}: right ({status.folder})")
    if problems:
        raise DataError("; ".join(problems))

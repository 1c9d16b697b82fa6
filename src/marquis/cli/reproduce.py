"""Define `marquis reproduce NAME`, which runs an experiment of the separate distribution `marquis-experiments`."""

from __future__ import annotations

import ast
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from marquis.choices import choose
from marquis.cli.options import new_app
from marquis.errors import DataError

GROUP = "marquis.experiments"
"""Entry-point group under which a distribution registers its experiments."""

app = new_app()


def experiments() -> dict[str, EntryPoint]:
    """Return the installed experiments by name; nothing is imported.

    Raises:
        DataError: No experiment is installed.
    """
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if not installed:
        raise DataError(
            "no experiments are installed; they are a distribution of their own: "
            "`pip install ./experiments` in a checkout of Marquis installs them."
        )
    return installed


def find(name: str) -> EntryPoint:
    """Return the experiment of that name.

    Raises:
        DataError: None has that name, or none is installed.
    """
    installed = experiments()
    return installed[choose("experiment", name, sorted(installed), error=DataError)]


def summary(entry: EntryPoint) -> str:
    """Return the first line of the docstring of an experiment's module, which is read but not imported."""
    spec = find_spec(entry.module)
    if spec is None or spec.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.split("\n", 1)[0].split(f"`{entry.name}`: ", 1)[-1]


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of the experiment; without a name all are listed.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run at a size of a minute or two.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Run at the paper's size: hours to days.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for results. [default: runs/NAME]")] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="First folder to look in for data. [env: MARQUIS_DATA]")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Take rows that are committed in the checkout as computed.")
    ] = False,
) -> None:
    """Run an experiment of the papers and write its tables and pictures; an interrupted run resumes."""
    if quick and full:
        raise typer.BadParameter("choose one of --quick and --full")
    if name is None:
        installed = experiments()
        width = max(map(len, installed))
        for each in sorted(installed):
            typer.echo(f"{each:{width}}  {summary(installed[each])}")
        return
    size = "quick" if quick else "full" if full else "default"
    page = find(name).load().run(size, out or Path("runs") / name, data_dir, typer.echo, go_on=go_on)
    typer.echo(f"written: {page}")

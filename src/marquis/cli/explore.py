"""Define `marquis explore RUN [RUN2]`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marquis.cli.options import FinishedRun, OverwriteFile, new_app

app = new_app()


@app.command()
def explore(
    run: FinishedRun,
    other: Annotated[
        Path | None, typer.Argument(help="A second run, shown beside the first.", metavar="[RUN2]")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A second data set to compare with: file, folder or name.")] = None,
    split: Annotated[str, typer.Option(help="Rows of the run's own data: test, train or all.")] = "test",
    rows: Annotated[int, typer.Option(help="Maximum number of rows, chosen at random.", min=1)] = 10_000,
    port: Annotated[int, typer.Option(help="Port to listen on.", show_default="a free one")] = 0,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "127.0.0.1",
    export: Annotated[Path | None, typer.Option(help="Write one self-contained .html file instead of serving.")] = None,
    browser: Annotated[bool, typer.Option(help="Whether to open a browser.")] = True,
    force: OverwriteFile = False,
) -> None:
    """Open a page on which one sees what an autoencoder knows and does not know; Ctrl-C ends it.

    The page shows the codes with their standard deviations, decodes wherever the mouse is, explains outliers, fills in
    missing values and interpolates along geodesics. It is served on this machine only and loads nothing from elsewhere.
    """
    from marquis.cli.outputs import require_free

    if export is not None:
        require_free(export, force, (".html", ".htm"))
    from marquis.explorer.workspace import Workspace

    runs = [run] if other is None else [run, other]
    workspace = Workspace(runs, second=data, split=split, most=rows)
    if export is not None:
        from marquis.explorer.export import export_page

        size = export_page(workspace, export).stat().st_size
        typer.echo(f"written: {export} ({size / 1e6:.1f} MB)")
        return
    from marquis.explorer.server import Server

    server = Server(workspace, port, host)
    typer.echo(f"{server.url}  (Ctrl-C ends it)")
    if browser:
        import webbrowser

        webbrowser.open(server.url)
    server.run()
    typer.echo("stopped")

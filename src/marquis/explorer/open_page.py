"""Open the explorer for a model and its data: `explore`."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Any

from marquis.arguments import checked
from marquis.explorer.server import Server
from marquis.explorer.workspace import MOST_ROWS, Workspace


@checked
def explore(
    model: Any,
    data: Any = None,
    labels: Any = None,
    *,
    second: Any = None,
    most: int | None = MOST_ROWS,
    port: int = 0,
    open_browser: bool = True,
    block: bool | None = None,
    export: str | os.PathLike[str] | None = None,
) -> Server | None:
    """Open the explorer, a page on which one sees what an autoencoder knows and does not know (docs/explorer.md).

    The page is served on this machine only and loads nothing from elsewhere. Cost: codes and scores of all rows once,
    24 networks each.

    Args:
        model: A run's folder, a model with `encode`, `decode` and `reconstruct`, a fitted
            `marquis.sklearn.LaplacianAutoencoder`, or a list of two of these to be shown side by side.
        data: Rows `[n, ...]` as an array, a tensor, a pandas table or `marquis.data.Data`; of a run by default the rows
            that it held out.
        labels: One number or text per row.
        second: A second data set, to be compared with the first.
        most: Maximum number of rows, chosen at random; None for all.
        port: Port of the server; 0 for a free one.
        open_browser: Whether to open a browser.
        block: Whether to serve until Ctrl-C; by default yes, but not in a notebook, where the page is shown in a frame.
        export: Write one self-contained HTML file there instead of serving.

    Returns:
        The running server with its `url` and `close()`; None after an export, or when it has been stopped.

    Raises:
        UnsupportedOperationError: The packages of `marquis[explore]` are not installed.
        DataError: The data do not fit the model.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    workspace = Workspace(models, data, labels, second, most=most)
    if export is not None:
        from marquis.explorer.export import export_page

        export_page(workspace, export)
        return None
    server, notebook = Server(workspace, port), _in_notebook()
    if notebook:
        from IPython.display import IFrame, display  # pyright: ignore[reportMissingImports]

        server.start()
        display(IFrame(server.url, width="100%", height=760))
        return server
    if block is False:
        server.start()
    if open_browser:
        webbrowser.open(server.url)
    if block is False:
        return server
    print(f"{server.url}  (Ctrl-C ends it)")
    server.run()
    return None


def _in_notebook() -> bool:
    """Return whether the code runs in a notebook's kernel, which can show frames."""
    shell = sys.modules.get("IPython")
    current = shell.get_ipython() if shell is not None else None
    return type(current).__name__ == "ZMQInteractiveShell"

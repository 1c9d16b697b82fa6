"""Explore an autoencoder on a page that shows what it knows and does not know.

`explore` opens it for any model; `marquis explore RUN` does so for a run. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marquis.lazy import lazy_names

if TYPE_CHECKING:
    from marquis.explorer.export import export_page
    from marquis.explorer.open_page import explore
    from marquis.explorer.server import Server
    from marquis.explorer.session import Session
    from marquis.explorer.workspace import Workspace

__all__ = ["Server", "Session", "Workspace", "explore", "export_page"]

__getattr__ = lazy_names(
    __name__,
    {
        "Server": "server",
        "Session": "session",
        "Workspace": "workspace",
        "explore": "open_page",
        "export_page": "export",
    },
)

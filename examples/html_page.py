"""A report in one file: headings, text, tables and pictures, with the pictures inside the file itself."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
@media (prefers-color-scheme: dark) { body { background: #16181d; color: #ddd; } }
"""


class Page:
    """Collects the parts of a report; `write` puts them into one file that needs no other.

    Args:
        title: The page's title and first heading.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def text(self, text: str) -> None:
        """Add a paragraph of plain text."""
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def heading(self, text: str) -> None:
        """Add a heading."""
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table of text cells."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self.parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def picture(self, figure: Figure, description: str) -> None:
        """Add a figure as a PNG, with a description for those who cannot see it."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        self.parts.append(f'<p><img alt="{html.escape(description)}" src="data:image/png;base64,{data}"></p>')

    def write(self, path: Path) -> None:
        """Write the page."""
        title = html.escape(self.title)
        path.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>{''.join(self.parts)}</body></html>\n",
            encoding="utf-8",
        )

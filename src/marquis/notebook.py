"""Show results in notebooks: as HTML tables, or as the text that `print` shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

ROWS = 10
"""Largest number of rows of a result that a notebook shows."""


class ShownAsText:
    """Show a result in notebooks as `print` does."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def html_table(title: str, header: Sequence[object], rows: Sequence[Sequence[object]], total: int | None = None) -> str:
    """Return a table as HTML; cells are escaped, and numbers have four digits.

    Args:
        title: Line above the table.
        header: Names of the columns.
        rows: Cells by row.
        total: Number of rows of the whole result, if these are the first of more.
    """
    cells = ["".join(f"<td>{escape(_text(cell))}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{escape(str(name))}</th>" for name in header)
    more = "" if total is None or total <= len(rows) else f"<p>{total - len(rows)} more rows</p>"
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(cell: object) -> str:
    if cell is None or cell != cell:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)

"""Write a report as one HTML file: headings, text, tables and figures, all in the file itself."""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marquis.arguments import checked_methods
from marquis.errors import DataError
from marquis.io.atomic import destination, make_folder, replacing, write_text
from marquis.options import renamed_attributes
from marquis.report.canvas import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  background: #ffffff; color: #1c1e22; overflow-wrap: anywhere; }
h1 { line-height: 1.2; } h2 { margin-top: 2.4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; overflow-wrap: normal; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #d5d7db; text-align: right;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.2rem 0; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; padding: 6px; box-sizing: border-box; }
figcaption, .small { color: #5a5f68; font-size: .9rem; }
@media (prefers-color-scheme: dark) {
  body { background: #16181d; color: #dcdfe4; } th, td { border-color: #3a3f48; }
  figcaption, .small { color: #a3a9b3; }
}
"""
# No script and no other source, whatever the texts contain.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@renamed_attributes(picture="figure")
@checked_methods
class Page:
    """Collect the parts of a report; `write` puts them into one file that needs no other.

    All texts are plain: HTML in them is shown literally.

    Args:
        title: The page's title and first heading.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.figures: dict[str, bytes] = {}

    def text(self, text: str, small: bool = False) -> None:
        """Add a paragraph."""
        self.parts.append(f"<p{' class=small' if small else ''}>{_escaped(text)}</p>")

    def heading(self, text: str) -> None:
        """Add a heading."""
        self.parts.append(f"<h2>{_escaped(text)}</h2>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; the first column is text, the others are aligned to the right."""
        if any(len(row) != len(columns) for row in rows):
            raise DataError(f"every row of a table has as many cells as there are columns, here {len(columns)}.")
        head = "".join(f'<th scope="col">{_escaped(column)}</th>' for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self.parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def figure(self, name: str, figure: Figure, caption: str) -> None:
        """Add a figure with a caption, which is also its alternative text.

        Args:
            name: Name of its PNG file, without the ending: letters, digits and hyphens.
            figure: The figure, which is not changed.
            caption: What it shows.
        """
        self.image(name, png(figure), caption)

    def image(self, name: str, content: bytes, caption: str) -> None:
        """Add a PNG that is there already; arguments as in `figure`."""
        if not re.fullmatch(r"[a-z0-9-]+", name) or name in self.figures:
            raise DataError(f"{name!r}: figures have different names of small letters, digits and hyphens.")
        self.figures[name] = content
        data = base64.b64encode(self.figures[name]).decode("ascii")
        image = f'<img alt="{_escaped(caption)}" src="data:image/png;base64,{data}">'
        self.parts.append(f"<figure>{image}<figcaption>{_escaped(caption)}</figcaption></figure>")

    def html(self) -> str:
        """Return the whole page."""
        title = _escaped(self.title)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style></head>\n"
            f"<body><h1>{title}</h1>\n" + "\n".join(self.parts) + "\n</body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and its figures as PNG files into a folder of the same name without the ending.

        Each file is written atomically, the page last.
        """
        path = Path(path)
        destination(path)
        folder = make_folder(path.with_suffix(""))
        for name, data in self.figures.items():
            with replacing(folder / f"{name}.png") as temporary:
                temporary.write_bytes(data)
        write_text(path, self.html())
        return path


def settings_rows(settings: Mapping[str, object]) -> list[list[str]]:
    """Return names and values as rows of a table, numbers shortened."""
    return [[str(name), cell(value)] for name, value in settings.items()]


def cell(value: object) -> str:
    """Format a number as short as it can be read; what is missing or not a number is a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if value != value:
            return "–"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"
    return str(value)


def _escaped(text: str) -> str:
    """Escape text and attributes; what HTML or UTF-8 does not allow (odd file names) is replaced."""
    valid = str(text).encode("utf-8", "replace").decode("utf-8")
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", " ", valid), quote=True)

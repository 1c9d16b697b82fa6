"""Make figures without a display and without pyplot's global state; matplotlib shows their labels literally."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marquis.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, GREEN, PURPLE = "#2f6fab", "#d1602b", "#555555", "#3b8f5a", "#8a5aa8"
LINES = (BLUE, ORANGE, GREEN, PURPLE, "#a8842c", "#3a9c9c", "#b0446a", GREY)
"""Colours of models and data sets, in this order."""
CLASSES = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#0b3d2e"),
    *("#aec7e8", "#ffbb78", "#98df8a", "#ff9896", "#c5b0d5", "#c49c94", "#f7b6d2", "#dbdb8d", "#9edae5", "#7f0000"),
)
"""Colours of classes; without grey, the colour of the maps."""
DPI = 130


def panels(count: int, columns: int, width: float, height: float, margin: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels, `columns` per row, each of this size in inches, with room beside them."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = new_figure(width * columns + margin, height * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in grid[count:]:
        empty.remove()
    return figure, grid[:count]


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG, the same bytes for the same figure."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # names in scripts that the font lacks become boxes; the page below the figure has them in full
        warnings.filterwarnings("ignore", ".*[Gg]lyph .* missing.*")
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def label(text: object, limit: int = 24) -> str:
    """Return a user's text so that matplotlib shows it literally: one line, not too long, no formula.

    Between dollars matplotlib sees a formula, and labels that begin with an underscore vanish from legends.
    """
    short = re.sub(r"[\x00-\x1f\x7f\s]+", " ", str(text)).strip() or "(no name)"
    if len(short) > limit:  # names of one family differ at the end as often as at the beginning
        short = f"{short[: limit - limit // 3 - 1]}…{short[-(limit // 3) :]}"
    short = short.replace("$", r"\$")
    return f" {short}" if short.startswith("_") else short


def use_log(axis: Any, which: str, low: float, high: float) -> bool:
    """Make an axis logarithmic with plain numbers if the values span a factor of ten, and return whether it is."""
    if not 0 < 10 * low < high:
        return False
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    getattr(axis, f"set_{which}scale")("log")
    ruler = getattr(axis, f"{which}axis")
    steps = (1.0, 2.0, 5.0) if high < 50 * low else (1.0, 3.0) if high < 1000 * low else (1.0,)
    ruler.set_major_locator(LogLocator(10, subs=steps, numticks=5 if len(steps) == 1 else None))
    ruler.set_major_formatter(FormatStrFormatter("%g"))
    ruler.set_minor_formatter(NullFormatter())
    return True


def note(axes: Axes, text: str) -> None:
    """Write a sentence into a panel for which there is nothing to plot."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=9, color=GREY, wrap=True)
    axes.set(xticks=[], yticks=[])


def legend_width(names: Sequence[str]) -> float:
    """Return the width in inches that `add_legend` needs."""
    return 0.2 + _legend_columns(names) * (0.55 + 0.085 * max(map(len, names), default=0))


def add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], title: str) -> None:
    """Add a legend to the right of all panels."""
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "ncols": _legend_columns(names)}
    figure.legend(list(handles), list(names), loc="outside right center", title=title, **style)


def _legend_columns(names: Sequence[str]) -> int:
    """Return the number of columns of a legend."""
    return 1 if len(names) <= 12 else 2

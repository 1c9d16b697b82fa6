"""Figures of pages: panels in a grid, saved as PNG without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marquis.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY, GREEN = "#2f6fab", "#d1602b", "#555555", "#3b8f5a"
PURPLE, GOLD, LIGHT_BLUE, LIGHT_GREY = "#8a5aa8", "#b8860b", "#7fb2dd", "#bbbbbb"


class Figure:
    """Arrange panels in rows and columns, and save them as one PNG.

    Args:
        panels: Number of panels.
        columns: Panels per row.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
        share: Whether panels share their vertical axis.
    """

    def __init__(self, panels: int, columns: int, width: float = 3.2, height: float = 2.6, share: bool = False) -> None:
        rows = -(-panels // columns)
        self.figure = new_figure(width * columns, height * rows)
        grid = self.figure.subplots(rows, columns, squeeze=False, sharey=share)
        self.axes: list[Any] = list(grid.flat)[:panels]
        for empty in list(grid.flat)[panels:]:
            empty.set_visible(False)

    def legend(self, place: Any = "outside lower center", columns: int = 4) -> None:
        """Draw one legend for all panels, with the labels of the first."""
        handles = self.axes[0].get_legend_handles_labels()
        self.figure.legend(*handles, loc=place, ncols=columns, fontsize=8, frameon=False)

    def save(self, path: Path, dpi: int = 100) -> None:
        """Write the PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure.savefig(path, dpi=dpi, metadata={"Software": None})


def band(axis: Axes, x: Any, mean: Any, std: Any, noise: float, colour: str = BLUE) -> None:
    """Draw a mean with two standard deviations of the function (dark) and of a new observation (light)."""
    total = (std**2 + noise) ** 0.5
    axis.fill_between(x, mean - 2 * total, mean + 2 * total, color=colour, alpha=0.15, lw=0)
    axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=colour, alpha=0.35, lw=0)
    axis.plot(x, mean, color=colour, lw=1.5)


GREY_LEVEL = 1 / 255
"""Standard deviations that are smaller everywhere get no full range of colours."""
Panel = tuple[Any, float | None, str]
"""An image `[H, W]` or `[H, W, 3]`, the top of its scale (None: an image in [0, 1] or in colours), and a text below."""


def image_rows(
    path: Path, rows: Mapping[str, Sequence[Panel | None]], titles: Sequence[str], size: float = 0.6, dpi: int = 130
) -> None:
    """Draw rows of images beside their labels; panels with a scale are standard deviations, None leaves a gap."""
    columns = len(titles)
    figure = Figure(len(rows) * columns, columns, size, 1.12 * size)
    for row, (label, panels) in enumerate(rows.items()):
        axes = figure.axes[row * columns : (row + 1) * columns]
        for axis, panel, title in zip(axes, panels, titles, strict=True):
            axis.set(xticks=[], yticks=[], frame_on=False)
            if panel is not None:
                image, top, below = panel
                axis.imshow(image, cmap="gray" if top is None else "magma", vmin=0, vmax=top or 1)
                axis.set_xlabel(below, fontsize=7, labelpad=1)
            if row == 0:
                axis.set_title(title, fontsize=8)
        axes[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    figure.save(path, dpi)

"""Figures of pages: panels in a grid, saved as PNG without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY, GREEN = "#2f6fab", "#d1602b", "#555555", "#3b8f5a"


class Figure:
    """Panels in rows and columns, saved as one PNG.

    Args:
        panels: Number of panels.
        columns: Panels per row.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
        share: Whether panels share their vertical axis.
    """

    def __init__(self, panels: int, columns: int, width: float = 3.2, height: float = 2.6, share: bool = False) -> None:
        from matplotlib import figure
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        rows = -(-panels // columns)
        self.figure = figure.Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(self.figure)
        grid = self.figure.subplots(rows, columns, squeeze=False, sharey=share)
        self.axes: list[Any] = list(grid.flat)[:panels]
        for empty in list(grid.flat)[panels:]:
            empty.set_visible(False)

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

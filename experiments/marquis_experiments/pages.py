"""Tables and pictures of the small experiments' pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY, GREEN = "#2f6fab", "#d1602b", "#555555", "#3b8f5a"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are aligned to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, rule, *rows])


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 for a single value, which has none."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def with_error(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error; a single value stands alone."""
    doubt = f" ± {standard_error(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{doubt}"


def by_chance(errors: float, count: int) -> str:
    """How often the mean of so many differences of equals is further from zero than that many standard errors."""
    from scipy.stats import t

    return f"{2 * t.sf(errors, count - 1):.0%} of comparisons of equals"


def write_page(path: Path, pieces: Sequence[str]) -> Path:
    """Paragraphs, tables and headings to one Markdown file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(piece.strip() for piece in pieces) + "\n", encoding="utf-8")
    return path


def command(name: str, size: str) -> str:
    """What to type to get the page again."""
    flag = {"quick": " --quick", "full": " --full"}.get(size, "")
    return f"`marquis reproduce {name}{flag}`"


class Picture:
    """A row (or rows) of panels, saved as one PNG without a display.

    Args:
        panels: how many.
        columns: panels per row.
        width: of a panel in inches.
        height: of a panel in inches.
        share: share the vertical axis.
    """

    def __init__(self, panels: int, columns: int, width: float = 3.2, height: float = 2.6, share: bool = False) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        rows = -(-panels // columns)
        self.figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(self.figure)
        grid = self.figure.subplots(rows, columns, squeeze=False, sharey=share)
        self.axes: list[Any] = list(grid.flat)[:panels]
        for empty in list(grid.flat)[panels:]:
            empty.set_visible(False)

    def save(self, path: Path, dpi: int = 100) -> None:
        """Write the PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure.savefig(path, dpi=dpi, metadata={"Software": None})


def band(axis: Axes, x: Any, mean: Any, sd: Any, noise: float, colour: str = BLUE) -> None:
    """Mean with two standard deviations: of the function (dark), and of a new observation (light)."""
    total = (sd**2 + noise) ** 0.5
    axis.fill_between(x, mean - 2 * total, mean + 2 * total, color=colour, alpha=0.15, lw=0)
    axis.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=colour, alpha=0.35, lw=0)
    axis.plot(x, mean, color=colour, lw=1.5)

"""Explain why a row is an outlier: what each of its entries adds to the score, and what was expected instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marquis import notebook
from marquis.errors import DataError
from marquis.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 12
"""Largest number of columns in a picture."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Hold the outlier scores of rows, entry by entry; see `LaplacianAutoencoder.explain`.

    Attributes:
        contributions: `[N, columns]`: minus the log-probability of each entry given the others of its row. A row's sum
            is its outlier score, minus `score_samples`. Large where an entry was unexpected, negative where it was
            foreseen precisely.
        values: The rows as they were given, `[N, columns]`.
        expected: What was expected of each entry from the others, `[N, columns]`: a mean, or the most probable level.
        low: Lower end of the interval that contains an entry with probability `level`; None for categories.
        high: Its upper end.
        names: Of the columns.
        level: Probability of the intervals.
    """

    contributions: np.ndarray
    values: np.ndarray
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray
    names: list[str]
    level: float

    @property
    def scores(self) -> np.ndarray:
        """Return the outlier score of each row, `[N]`: the sum of its contributions."""
        return self.contributions.sum(1)

    def table(self, row: int = 0) -> Any:
        """Return a row as a pandas table, one line per column, the largest contribution first."""
        import pandas as pd

        place = self._place(row)
        parts = {name: getattr(self, name)[place] for name in ("values", "expected", "low", "high", "contributions")}
        table = pd.DataFrame(parts, index=pd.Index(self.names, name="column"))
        return table.rename(columns={"values": "value", "contributions": "contribution"}).sort_values(
            "contribution", ascending=False
        )

    def _repr_html_(self) -> str:
        """Show the rows with the largest scores, and the column that adds most to each."""
        rows = []
        for i in np.argsort(-self.scores, kind="stable")[: notebook.ROWS]:
            j = int(np.argmax(self.contributions[i]))
            rows.append([i, self.scores[i], self.names[j], *(part[i, j] for part in self._parts)])
        header = ["row", "score", "column that adds most", "value", "expected", "low", "high", "contribution"]
        return notebook.html_table("Outlier scores, the largest first", header, rows, len(self.scores))

    @property
    def _parts(self) -> tuple[np.ndarray, ...]:
        return self.values, self.expected, self.low, self.high, self.contributions

    def plot(self, row: int = 0, ax: Axes | None = None) -> Axes:
        """Draw the contributions to a row's score as bars, the largest `MOST_BARS` in absolute value; returns the axes.

        Args:
            row: Number of the row.
            ax: Axes to draw into; None makes a figure.
        """
        ax = new_figure(7, 3.6).subplots() if ax is None else ax
        place = self._place(row)
        terms = self.contributions[place]
        order = np.argsort(-np.abs(terms))[:MOST_BARS][::-1]
        order = order[np.argsort(terms[order], kind="stable")]
        labels = [f"{self.names[j]} = {_text(self.values[place, j])} ({_text(self.expected[place, j])})" for j in order]
        colours = ["C3" if terms[j] > 0 else "C0" for j in order]
        ax.barh(range(len(order)), terms[order], color=colours)
        ax.set_yticks(range(len(order)), [label.replace("$", r"\$") for label in labels], fontsize=8)
        ax.axvline(0, color="k", lw=0.8)
        ax.set_xlabel("contribution to the outlier score; in brackets the expected value")
        ax.set_title(f"row {row}: score {self.scores[place]:.1f}", fontsize=10)
        return ax

    def _place(self, row: int) -> int:
        """Return the row's number, checked."""
        if not -len(self.values) <= row < len(self.values):
            raise DataError(f"row={row}: there are {len(self.values)} rows.")
        return row


def _text(value: Any) -> str:
    """Format a value for a table."""
    if value is None or value != value:
        return "missing"
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)

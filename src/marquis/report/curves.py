"""Training curves: losses, errors, and learnt hyperparameters by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from marquis.errors import DataError
from marquis.report.canvas import BLUE, LINES, ORANGE, label, panels, use_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, float]
History = Sequence[Row]
"""One row per epoch, as in `metrics.csv`."""

LOSSES = (("train_loss", "training", BLUE), ("validation_loss", "validation", ORANGE))
OTHERS = {
    "validation_error": ("squared error per sample", "validation error"),
    "noise_precision": ("precision", "noise precision"),
    "prior_precision": ("precision", "prior precision"),
    "effective_temperature": ("temperature", "effective temperature"),
}
"""Axis and title of the quantities that are plotted with one line per model."""
LOGARITHMIC = ("noise_precision", "prior_precision", "effective_temperature")


def training_curves(histories: Mapping[str, History]) -> Figure:
    """Plot training and validation loss in a panel per model; other quantities with a line per model.

    Losses of different models are not on one scale, so they are not in one panel.

    Args:
        histories: One row per epoch for each model; what a row lacks is left out.

    Raises:
        DataError: There is nothing to plot.
    """
    losses = {name: rows for name, rows in histories.items() if any(series(rows, key)[0] for key, _, _ in LOSSES)}
    others = [key for key in OTHERS if any(series(rows, key)[0] for rows in histories.values())]
    if not losses and not others:
        raise DataError("the histories have no losses or other numbers to plot.")
    from matplotlib.ticker import MaxNLocator

    figure, axes = panels(len(losses) + len(others), 3, 3.9, 2.9)
    several = len(histories) > 1
    for axis, (name, rows) in zip(axes, losses.items(), strict=False):
        for key, name_of_loss, colour in LOSSES:
            _draw(axis, rows, key, name_of_loss, colour)
        axis.set(xlabel="epoch", ylabel="loss per sample", title=f"loss: {label(name)}" if several else "loss")
        axis.legend(frameon=False, fontsize=8)
    for axis, key in zip(axes[len(losses) :], others, strict=True):
        for (name, rows), colour in zip(histories.items(), cycle(LINES), strict=False):
            _draw(axis, rows, key, label(name), colour)
        ylabel, title = OTHERS[key]
        axis.set(xlabel="epoch", ylabel=ylabel, title=title)
        values = [value for rows in histories.values() for value in series(rows, key)[1]]
        if key in LOGARITHMIC:
            use_log(axis, "y", min(values), max(values))
        if several:
            axis.legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.title.set_fontsize(10)
        axis.grid(alpha=0.25)
        low, high = (round(float(end)) for end in (axis.dataLim.x0, axis.dataLim.x1))
        axis.set_xlim(low - 0.5, high + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def series(rows: History, key: str) -> tuple[list[float], list[float]]:
    """Return epochs (from 1) and values of one quantity, without those that cannot be plotted."""
    pairs = [(row.get("epoch", number) + 1, row[key]) for number, row in enumerate(rows) if key in row]
    least = 0.0 if key in LOGARITHMIC else -math.inf
    kept = [(epoch, value) for epoch, value in pairs if math.isfinite(value) and value > least]
    return [epoch for epoch, _ in kept], [value for _, value in kept]


def _draw(axis: Axes, rows: History, key: str, legend: str, colour: str) -> None:
    epochs, values = series(rows, key)
    if values:
        marker = "o" if len(values) < 3 else None
        axis.plot(epochs, values, color=colour, lw=1.6, marker=marker, ms=4, label=legend)

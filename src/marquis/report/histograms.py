"""Histograms of variances of held-out and OOD data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from marquis.errors import DataError
from marquis.report.canvas import LINES, label, note, panels, use_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 40
Spread = Mapping[str, Mapping[str, Tensor]]
"""One tensor `[n]` per data set, for each kind of variance."""


def variance_figure(models: Mapping[str, Spread]) -> Figure:
    """Plot a row per model, a panel per kind of variance, a histogram per data set.

    Args:
        models: For each model and kind of variance (for instance "code variance") the values by data set.
    """
    kinds = list(next(iter(models.values()), {}))
    if not kinds:
        raise DataError("there are no variances to plot.")
    figure, axes = panels(len(models) * len(kinds), len(kinds), 4.4, 2.7)
    for row, (name, spread) in enumerate(models.items()):
        for column, kind in enumerate(kinds):
            axis = axes[row * len(kinds) + column]
            title = kind if len(models) == 1 else f"{label(name)}: {kind}"
            axis.set_title(title, fontsize=10)
            _draw(axis, spread[kind], kind)
    sets = {set_name for spread in models.values() for kind in spread.values() for set_name in kind}
    first = next((axis for axis in axes if axis.get_legend_handles_labels()[0]), None)
    if first is not None and len(sets) > 1:
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _draw(axis: Axes, sets: Mapping[str, Tensor], kind: str) -> None:
    from matplotlib.ticker import MaxNLocator

    values = {name: tensor.double().numpy() for name, tensor in sets.items()}
    everything = np.concatenate(list(values.values()))
    positive = everything[np.isfinite(everything) & (everything > 0)]
    if len(positive) == 0:
        note(axis, "no variance: the model is\na single network")
        return
    low, high = float(positive.min()), float(positive.max())
    bins = min(BINS, 8 + len(positive) // 10)  # many bins need many samples
    if use_log(axis, "x", low, high):
        edges = np.geomspace(low, high * (1 + 1e-9), bins + 1)
    else:
        gap = max(high - low, 1e-6 * high)
        edges = np.linspace(low - 0.02 * gap, high + 0.02 * gap, bins + 1)
        axis.xaxis.set_major_locator(MaxNLocator(5))
    for (name, variances), colour in zip(values.items(), LINES * len(values), strict=False):
        share = np.full(len(variances), 1 / max(len(variances), 1))  # sets of different sizes side by side
        axis.hist(variances, edges.tolist(), weights=share, color=colour, alpha=0.35, label=label(name))
        axis.hist(variances, edges.tolist(), weights=share, color=colour, histtype="step", lw=1.2)
    axis.set(xlabel=f"{kind} (mean over entries)", ylabel="share of the data")
    axis.tick_params(labelsize=8)

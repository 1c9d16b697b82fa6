"""Draw the figures of the report: functions from numbers to matplotlib figures, without global state.

Training curves, histograms of variances and the posterior's standard deviations are here; latent maps and
reconstructions have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.plots import new_figure
from marquis.posterior import Posterior
from marquis.report.canvas import BLUE, LINES, ORANGE, label, note, panels, use_log
from marquis.report.examples import Examples, image_figure, table_figure
from marquis.report.latent_map import LatentMap, latent_figure, latent_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Examples",
    "LatentMap",
    "image_figure",
    "latent_figure",
    "latent_map",
    "posterior_widths",
    "table_figure",
    "training_curves",
    "variance_figure",
    "widths_figure",
]

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
MOST_BINS = 40
Spread = Mapping[str, Mapping[str, Tensor]]
"""One tensor `[n]` per data set, for each kind of variance."""
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


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
            _curve(axis, rows, key, name_of_loss, colour)
        axis.set(xlabel="epoch", ylabel="loss per sample", title=f"loss: {label(name)}" if several else "loss")
        axis.legend(frameon=False, fontsize=8)
    for axis, key in zip(axes[len(losses) :], others, strict=True):
        for (name, rows), colour in zip(histories.items(), cycle(LINES), strict=False):
            _curve(axis, rows, key, label(name), colour)
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
    finite = [(epoch, value) for epoch, value in pairs if math.isfinite(value) and value > least]
    return [epoch for epoch, _ in finite], [value for _, value in finite]


def _curve(axis: Axes, rows: History, key: str, legend: str, colour: str) -> None:
    """Plot a column of the history against epochs."""
    epochs, values = series(rows, key)
    if values:
        marker = "o" if len(values) < 3 else None
        axis.plot(epochs, values, color=colour, lw=1.6, marker=marker, ms=4, label=legend)


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
            _histogram(axis, spread[kind], kind)
    sets = {set_name for spread in models.values() for kind in spread.values() for set_name in kind}
    first = next((axis for axis in axes if axis.get_legend_handles_labels()[0]), None)
    if first is not None and len(sets) > 1:
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _histogram(axis: Axes, sets: Mapping[str, Tensor], kind: str) -> None:
    """Plot histograms of several sets over common bins, logarithmic where values span decades."""
    from matplotlib.ticker import MaxNLocator

    values = {name: tensor.double().numpy() for name, tensor in sets.items()}
    everything = np.concatenate(list(values.values()))
    positive = everything[np.isfinite(everything) & (everything > 0)]
    if len(positive) == 0:
        note(axis, "no variance: the model is\na single network")
        return
    low, high = float(positive.min()), float(positive.max())
    bins = min(MOST_BINS, 8 + len(positive) // 10)  # many bins need many samples
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


def posterior_of(model: Any) -> Posterior | None:
    """Return the Gaussian over a model's weights, an attribute or a method, if it has one."""
    posterior = getattr(model, "posterior", None)
    posterior = posterior() if callable(posterior) else posterior
    return posterior if isinstance(posterior, Posterior) else None


def posterior_widths(posterior: Posterior) -> dict[str, Tensor]:
    """Return quantiles (1, 25, 50, 75, 99 %) of the weights' standard deviations, for each random parameter."""
    quantiles = {}
    for name, variance in posterior.variance().items():
        values = variance.detach().double().flatten().cpu()
        values = values[values > 0]
        if len(values):
            ordered = values.sqrt().sort().values  # torch.quantile refuses more than 16 million values
            places = torch.tensor(QUANTILES, dtype=torch.float64) * (len(ordered) - 1)
            quantiles[name] = torch.lerp(ordered[places.floor().long()], ordered[places.ceil().long()], places.frac())
    return quantiles


def widths_figure(models: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """Plot a box per parameter, inputs first: quartiles and median; whiskers to the 1 % and 99 % quantiles.

    Args:
        models: Results of `posterior_widths`, by name of the model.
    """
    models = {name: widths for name, widths in models.items() if widths}
    if not models:
        raise DataError("there is no posterior to plot.")
    names = list(dict.fromkeys(name for widths in models.values() for name in widths))
    figure = new_figure(7.4, 1.2 + (0.28 + 0.16 * len(models)) * len(names))
    axis = figure.subplots()
    thickness = 0.7 / len(models)
    from matplotlib.patches import Patch

    handles = []
    for number, (widths, colour) in enumerate(zip(models.values(), LINES * len(models), strict=False)):
        keys: tuple[str, ...] = ("whislo", "q1", "med", "q3", "whishi")
        stats: list[dict[str, Any]] = [
            dict(zip(keys, widths[name].tolist(), strict=True)) for name in names if name in widths
        ]
        places = [names.index(name) + (number - (len(models) - 1) / 2) * thickness for name in names if name in widths]
        axis.bxp(
            stats,
            positions=places,
            widths=0.8 * thickness,
            orientation="horizontal",
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.55, "linewidth": 0.6},
            medianprops={"color": "black", "linewidth": 1.2},
            manage_ticks=False,
        )
        handles.append(Patch(facecolor=colour, alpha=0.55))
    axis.set_yticks(range(len(names)), [label(name, 40) for name in names], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("standard deviation of a weight")
    everything = torch.stack([quantiles for widths in models.values() for quantiles in widths.values()])
    use_log(axis, "x", float(everything.min()), float(everything.max()))
    axis.grid(axis="x", alpha=0.25)
    if len(models) > 1:
        figure.legend(
            handles, [label(name) for name in models], loc="outside upper center", ncols=len(models), frameon=False
        )
    return figure

"""Show examples: originals, mean reconstructions and standard deviations (LAE Figures 8 and 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.plots import new_figure
from marquis.report.canvas import GREY, LINES, label, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLUMNS = 12
"""Columns of a table that are shown."""
MOST_POINTS = 300


@dataclass(frozen=True, eq=False)
class Examples:
    """Hold reconstructions of some data.

    Attributes:
        mean: `[m, ...]`.
        variance: Over posterior samples; None for a single network.
        noise_variance: Variance of the data around a reconstruction; None if the model has none.
    """

    mean: Tensor
    variance: Tensor | None
    noise_variance: Tensor | None

    def rows(self) -> dict[str, Tensor]:
        """Return the standard deviations that vary: not those that are zero or the same everywhere."""
        stds: dict[str, Tensor] = {}
        if self.variance is not None:
            stds["std over\nsamples"] = self.variance.sqrt()
        if self.noise_variance is not None and not _constant(self.noise_variance):
            stds["std of\nnoise"] = self.noise_variance.sqrt()
        return stds

    def total_std(self) -> Tensor:
        """Return the standard deviation of a new observation."""
        total = torch.zeros_like(self.mean)
        for part in (self.variance, self.noise_variance):
            total = total if part is None else total + part
        return total.sqrt()


def is_image(shape: Sequence[int]) -> bool:
    """Return whether data of this shape can be shown as images: `(1 or 3, H, W)`, at least two pixels each way."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def choose(labels: Tensor | None, count: int, most: int = 10) -> Tensor:
    """Return which rows to show: the first of each class in turn, so that all classes appear; else the first ones."""
    if labels is None or labels.is_floating_point():
        return torch.arange(min(most, count))
    by_class = [(labels[:count] == value).nonzero().flatten().tolist() for value in labels[:count].unique()]
    rounds = max(map(len, by_class))
    order = [rows[turn] for turn in range(rounds) for rows in by_class if turn < len(rows)]
    return torch.tensor(order[:most])


def image_figure(originals: Tensor, models: Mapping[str, Examples]) -> Figure:
    """Plot originals in the first row; below, for every model, its mean and its standard deviations.

    Means have the grey scale (or colours) of the originals; standard deviations have one scale per row, whose largest
    value is written beside it.

    Args:
        originals: Images `[m, 1 or 3, H, W]`.
        models: The reconstructions of each model.
    """
    if not is_image(originals.shape[1:]):
        raise DataError(f"data of shape {list(originals.shape[1:])} are no images of one or three channels.")
    rows: list[tuple[str, Tensor, bool]] = [("original", originals, False)]
    for name, example in models.items():
        prefix = f"{label(name, 18)}\n" if len(models) > 1 else ""
        rows.append((f"{prefix}mean", example.mean, False))
        rows += [(kind, std, True) for kind, std in example.rows().items()]
    low, high = _range(originals)
    count, (height, width) = len(originals), originals.shape[-2:]
    cell = 0.85
    figure = new_figure(
        1.9 + cell * count * max(1.0, width / height), 0.35 + cell * len(rows) * max(1.0, height / width)
    )
    grid = figure.subplots(len(rows), count, squeeze=False)
    for axes, (title, images, is_std) in zip(grid, rows, strict=True):
        top = max(float(images.max()), 1e-12)
        for axis, image in zip(axes, images, strict=True):
            if is_std:
                axis.imshow(image.mean(0).numpy(), cmap="magma", vmin=0, vmax=top)
            else:
                axis.imshow(_pixels(image, low, high), cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set(color="#bbbbbb", linewidth=0.5)
        ylabel = f"{title}\n(0 to {top:.2g})" if is_std else title
        axes[0].set_ylabel(ylabel, rotation=0, ha="right", va="center", fontsize=8)
    return figure


def table_figure(
    originals: Tensor, models: Mapping[str, Examples], names: Sequence[str] | None = None
) -> tuple[Figure, int]:
    """Plot every column in a panel: reconstruction against original, with error bars of two standard deviations.

    With more than twelve columns, those with the largest error relative to their spread are shown.

    Args:
        originals: `[m, ...]`; NaN where missing. Other data are flattened.
        models: The reconstructions of each model.
        names: Names of the columns.

    Returns:
        The figure, and the number of columns.
    """
    x = originals.flatten(1).double()
    total = x.shape[1]
    predictions = {
        name: (example.mean.flatten(1).double(), example.total_std().flatten(1).double())
        for name, example in models.items()
    }
    shown = _worst(x, [mean for mean, _ in predictions.values()])
    figure, axes = panels(len(shown), 4, 2.9, 2.7)
    for axis, column in zip(axes, shown, strict=True):
        observed = ~x[:, column].isnan()
        true = x[observed, column][:MOST_POINTS].numpy()
        for (name, (mean, std)), colour in zip(predictions.items(), LINES * len(predictions), strict=False):
            guess, bars = mean[observed, column][:MOST_POINTS].numpy(), 2 * std[observed, column][:MOST_POINTS].numpy()
            style: dict[str, Any] = {"fmt": "o", "ms": 2.5, "elinewidth": 0.5, "alpha": 0.6, "color": colour}
            axis.errorbar(true, guess, yerr=bars, label=label(name), **style)
        if len(true):
            ends = [float(np.min(true)), float(np.max(true))]
            axis.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
        title = names[column] if names is not None and len(names) == total else f"column {column + 1}"
        axis.set_title(label(title), fontsize=9)
        axis.tick_params(labelsize=7)
    if len(models) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(models)), frameon=False, fontsize=8)
    figure.supxlabel("original", fontsize=9)
    figure.supylabel("reconstruction, ± 2 standard deviations", fontsize=9)
    return figure, total


def _worst(x: Tensor, means: Sequence[Tensor]) -> list[int]:
    """Return columns by error relative to their variance, the worst first; in their order if all can be shown."""
    if x.shape[1] <= MOST_COLUMNS:
        return list(range(x.shape[1]))
    error = torch.stack([(mean - x).square().nanmean(0) for mean in means]).mean(0)
    spread = (x - x.nanmean(0)).square().nanmean(0)
    relative = torch.where(spread > 0, error / spread, 0.0).nan_to_num(0.0)
    return relative.argsort(descending=True, stable=True)[:MOST_COLUMNS].tolist()


def _constant(values: Tensor) -> bool:
    """Return whether all values are equal up to rounding."""
    return float(values.max() - values.min()) <= 1e-6 * max(float(values.max()), 1e-30)


def _range(images: Tensor) -> tuple[float, float]:
    """Return the values of black and white: 0 and 1 if the data are in between, else their range."""
    low, high = float(images.nan_to_num(0.0).min()), float(images.nan_to_num(0.0).max())
    return (0.0, 1.0) if low >= 0 and 0.25 < high <= 1 else (low, max(high, low + 1e-12))


def _pixels(image: Tensor, low: float, high: float) -> np.ndarray:
    """Return `[C, H, W]` in matplotlib's order, missing pixels mid-grey."""
    scaled = ((image.double().nan_to_num((low + high) / 2) - low) / (high - low)).clamp(0, 1)
    return (scaled[0] if len(image) == 1 else scaled.permute(1, 2, 0)).numpy()

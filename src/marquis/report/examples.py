"""A few data and what the model makes of them: original, mean, standard deviations (LAE Figures 8 and 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.report.canvas import GREY, LINES, label, new_figure, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLUMNS = 12
"""Columns of a table that are shown."""
MOST_POINTS = 300


@dataclass(frozen=True, eq=False)
class Examples:
    """Reconstructions of some data.

    Attributes:
        mean: `[m, ...]`.
        variance: Over the draws of the model; None if it has only one.
        noise_variance: Of the data around a draw; None if there is no such thing.
    """

    mean: Tensor
    variance: Tensor | None
    noise_variance: Tensor | None

    def rows(self) -> dict[str, Tensor]:
        """Standard deviations worth looking at: not those that are zero or the same everywhere."""
        found: dict[str, Tensor] = {}
        if self.variance is not None:
            found["std over\ndraws"] = self.variance.sqrt()
        if self.noise_variance is not None and not _constant(self.noise_variance):
            found["std of\nnoise"] = self.noise_variance.sqrt()
        return found

    def total_std(self) -> Tensor:
        """Standard deviation of a new observation."""
        total = torch.zeros_like(self.mean)
        for part in (self.variance, self.noise_variance):
            total = total if part is None else total + part
        return total.sqrt()


def is_image(shape: Sequence[int]) -> bool:
    """Whether data of this shape can be shown as pictures: `(1 or 3, H, W)` with at least two pixels each way."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def choose(labels: Tensor | None, count: int, most: int = 10) -> Tensor:
    """Which data to show: the first of each class in turn, so that all classes are there; else the first ones."""
    if labels is None or labels.is_floating_point():
        return torch.arange(min(most, count))
    by_class = [(labels[:count] == value).nonzero().flatten().tolist() for value in labels[:count].unique()]
    rounds = max(map(len, by_class))
    order = [rows[turn] for turn in range(rounds) for rows in by_class if turn < len(rows)]
    return torch.tensor(order[:most])


def image_figure(originals: Tensor, models: Mapping[str, Examples]) -> Figure:
    """Originals in the first row; below, for every model, its mean and its standard deviations.

    Means have the grey scale (or colours) of the originals; standard deviations have one scale per row, whose largest
    value is written beside it.

    Args:
        originals: Images `[m, 1 or 3, H, W]`.
        models: What each model makes of them.
    """
    if not is_image(originals.shape[1:]):
        raise DataError(f"data of shape {list(originals.shape[1:])} are no images of one or three channels.")
    rows: list[tuple[str, Tensor, bool]] = [("original", originals, False)]
    for name, said in models.items():
        called = f"{label(name, 18)}\n" if len(models) > 1 else ""
        rows.append((f"{called}mean", said.mean, False))
        rows += [(kind, std, True) for kind, std in said.rows().items()]
    low, high = _range(originals)
    count, (height, width) = len(originals), originals.shape[-2:]
    cell = 0.85
    figure = new_figure(
        1.9 + cell * count * max(1.0, width / height), 0.35 + cell * len(rows) * max(1.0, height / width)
    )
    grid = figure.subplots(len(rows), count, squeeze=False)
    for axes, (called, images, spread) in zip(grid, rows, strict=True):
        top = max(float(images.max()), 1e-12)
        for axis, image in zip(axes, images, strict=True):
            if spread:
                axis.imshow(image.mean(0).numpy(), cmap="magma", vmin=0, vmax=top)
            else:
                axis.imshow(_pixels(image, low, high), cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set(color="#bbbbbb", linewidth=0.5)
        said = f"{called}\n(0 to {top:.2g})" if spread else called
        axes[0].set_ylabel(said, rotation=0, ha="right", va="center", fontsize=8)
    return figure


def table_figure(
    originals: Tensor, models: Mapping[str, Examples], names: Sequence[str] | None = None
) -> tuple[Figure, int]:
    """Every column in a panel: the reconstruction against the original, with error bars of two standard deviations.

    With more than twelve columns, those with the largest error relative to their spread are shown.

    Args:
        originals: `[m, ...]`; NaN where missing. Anything but a table is taken as one of all its entries.
        models: What each model makes of them.
        names: Of the columns.

    Returns:
        The figure, and how many columns there are.
    """
    x = originals.flatten(1).double()
    total = x.shape[1]
    said = {
        name: (made.mean.flatten(1).double(), made.total_std().flatten(1).double()) for name, made in models.items()
    }
    shown = _worst(x, [mean for mean, _ in said.values()])
    figure, axes = panels(len(shown), 4, 2.9, 2.7)
    for axis, column in zip(axes, shown, strict=True):
        seen = ~x[:, column].isnan()
        true = x[seen, column][:MOST_POINTS].numpy()
        for (name, (mean, std)), colour in zip(said.items(), LINES * len(said), strict=False):
            guess, bars = mean[seen, column][:MOST_POINTS].numpy(), 2 * std[seen, column][:MOST_POINTS].numpy()
            style: dict[str, Any] = {"fmt": "o", "ms": 2.5, "elinewidth": 0.5, "alpha": 0.6, "color": colour}
            axis.errorbar(true, guess, yerr=bars, label=label(name), **style)
        if len(true):
            ends = [float(np.min(true)), float(np.max(true))]
            axis.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
        called = names[column] if names is not None and len(names) == total else f"column {column + 1}"
        axis.set_title(label(called), fontsize=9)
        axis.tick_params(labelsize=7)
    if len(models) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(models)), frameon=False, fontsize=8)
    figure.supxlabel("original", fontsize=9)
    figure.supylabel("reconstruction, ± 2 standard deviations", fontsize=9)
    return figure, total


def _worst(x: Tensor, means: Sequence[Tensor]) -> list[int]:
    """Columns by error relative to their variance, the worst first; in their own order if all can be shown."""
    if x.shape[1] <= MOST_COLUMNS:
        return list(range(x.shape[1]))
    error = torch.stack([(mean - x).square().nanmean(0) for mean in means]).mean(0)
    spread = (x - x.nanmean(0)).square().nanmean(0)
    relative = torch.where(spread > 0, error / spread, 0.0).nan_to_num(0.0)
    return relative.argsort(descending=True, stable=True)[:MOST_COLUMNS].tolist()


def _constant(values: Tensor) -> bool:
    return float(values.max() - values.min()) <= 1e-6 * max(float(values.max()), 1e-30)


def _range(images: Tensor) -> tuple[float, float]:
    """Black and white: 0 and 1 where the data are there already, else their own range."""
    low, high = float(images.nan_to_num(0.0).min()), float(images.nan_to_num(0.0).max())
    return (0.0, 1.0) if low >= 0 and 0.25 < high <= 1 else (low, max(high, low + 1e-12))


def _pixels(image: Tensor, low: float, high: float) -> np.ndarray:
    """`[C, H, W]` as matplotlib wants it, missing pixels mid-grey."""
    scaled = ((image.double().nan_to_num((low + high) / 2) - low) / (high - low)).clamp(0, 1)
    return (scaled[0] if len(image) == 1 else scaled.permute(1, 2, 0)).numpy()

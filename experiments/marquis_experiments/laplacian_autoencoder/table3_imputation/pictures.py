"""Pictures of the page of `imputation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.report.canvas import new_figure, png
from marquis.tasks.imputation import Imputation
from marquis_experiments.common.figure import BLUE, GREY, ORANGE, Figure
from marquis_experiments.laplacian_autoencoder.describe import label

VERSIONS = 5
"""Imputations of one image in a picture."""


def draw_versions(path: Path, originals: Tensor, imputations: Mapping[str, Imputation], put_back: bool) -> None:
    """Draw per model and image: original, observed half, mean, standard deviation, and some imputations.

    Args:
        path: Path of the PNG.
        originals: Images `[m, 1, H, W]`.
        imputations: Imputations of each model.
        put_back: Show imputations with the observed pixels as they were; otherwise as they were reconstructed.
    """
    head = ["original", "observed", "mean", "std", *[""] * VERSIONS]
    head[4 + VERSIONS // 2] = "imputations"
    columns = len(originals) * len(head) + len(originals) - 1
    grid = _grid(len(imputations), columns)
    for row, (key, imputed) in enumerate(imputations.items()):
        versions = imputed.samples if put_back else imputed.reconstructions
        std = versions.std(0) if len(versions) > 1 else torch.zeros_like(versions[0])
        for image, original in enumerate(originals):
            axes = grid[row][image * (len(head) + 1) :][: len(head)]
            if row == 0:
                for axis, title in zip(axes, head, strict=True):
                    axis.set_title(title, fontsize=8)
            observed = original.masked_fill(imputed.missing[image], 0.5)
            shown = [original, observed, versions[:, image].mean(0), std[image], *versions[:VERSIONS, image]]
            for axis, picture, title in zip(axes, shown, head, strict=False):
                top = max(float(picture.max()), 1e-12) if title == "std" else 1.0
                axis.imshow(picture[0].clamp(0, top).numpy(), cmap="gray", vmin=0, vmax=top)
                if title == "std":
                    axis.set_xlabel(f"≤ {float(picture.max()):.2g}", fontsize=7, labelpad=1)
        _name_row(grid[row], key)
    _save(path, grid)


def draw_generated(path: Path, made: Mapping[str, Sequence[Tensor]], titles: Sequence[str]) -> None:
    """Draw per model some generated images of two starts, by several procedures.

    Args:
        path: Path of the PNG.
        made: Images `[S1, n, 1, H, W]` for every model and procedure.
        titles: Titles of the procedures.
    """
    starts, shown = 2, 3
    per_block = starts * shown
    grid = _grid(len(made), len(titles) * (per_block + 1) - 1)
    for row, (key, blocks) in enumerate(made.items()):
        for block, (images, title) in enumerate(zip(blocks, titles, strict=True)):
            axes = grid[row][block * (per_block + 1) :][:per_block]
            for start in range(starts):
                for axis, picture in zip(axes[start * shown :], images[:shown, start], strict=False):
                    axis.imshow(picture[0].clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1)
            if row == 0:
                axes[per_block // 2].set_title(title, fontsize=8)
        _name_row(grid[row], key)
    _save(path, grid)


def draw_reliability(path: Path, panels: Mapping[str, Mapping[str, Sequence[dict[str, Any]]]]) -> None:
    """Draw accuracy against confidence in bins, pooled over seeds; the area of a point is its share of the images.

    Args:
        path: Path of the PNG.
        panels: Key of a model to name of a procedure to the bins of every seed.
    """
    figure = Figure(len(panels), min(4, len(panels)), 2.6, 2.7, share=True)
    colours = (GREY, ORANGE, BLUE)
    for axis, (key, lines) in zip(figure.axes, panels.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="black", lw=0.8, ls=":")
        for (name, seeds), colour, style in zip(lines.items(), colours, ("--", "-.", "-"), strict=False):
            confidence, accuracy, share = pooled(seeds)
            axis.plot(confidence, accuracy, color=colour, ls=style, lw=1.3, label=name)
            axis.scatter(confidence, accuracy, s=[4 + 120 * value for value in share], color=colour)
        axis.set(title=label(key), xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axis.title.set_fontsize(9)
    for axis in figure.axes[::4]:
        axis.set_ylabel("accuracy")
    if figure.axes:
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    figure.save(path)


def pooled(seeds: Sequence[dict[str, Any]]) -> tuple[list[float], list[float], list[float]]:
    """Compute confidence, accuracy and share of the images of every bin that has any, pooled over seeds."""
    total = sum(sum(bins["count"]) for bins in seeds)
    bins_of_all: tuple[list[float], list[float], list[float]] = ([], [], [])
    for place in range(len(seeds[0]["count"])):
        count = sum(bins["count"][place] for bins in seeds)
        if count:
            for values, name in zip(bins_of_all, ("confidence", "accuracy"), strict=False):
                values.append(sum(bins["count"][place] * (bins[name][place] or 0) for bins in seeds) / count)
            bins_of_all[2].append(count / total)
    return bins_of_all


def _grid(rows: int, columns: int) -> Any:
    figure = new_figure(0.5 * columns + 1.6, 0.62 * rows + 0.25)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis in grid.flat:
        axis.set(xticks=[], yticks=[])
        axis.set_frame_on(False)
    return grid


def _name_row(axes: Any, key: str) -> None:
    axes[0].set_ylabel(label(key), rotation=0, ha="right", va="center", fontsize=8)


def _save(path: Path, grid: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(grid.flat[0].figure))

"""The pictures of the digits demonstration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

if TYPE_CHECKING:
    from digits import Questions

ALONE, AVERAGED = "#c44e52", "#4c72b0"


def picture_of_digits(
    questions: Questions, alone: Callable[[Tensor], Tensor], averaged: Callable[[Tensor], Tensor]
) -> Figure:
    """Each picture over two bars per class: the trained network alone, and averaged over weights.

    Shows the unknown pictures about which the network alone is surest: those are the mistakes that hurt.
    """
    columns = 8
    rows = {"digits": questions.known, **questions.unknown}
    figure = Figure(figsize=(1.5 * columns, 2.3 * len(rows)), layout="constrained")
    axes = figure.subplots(2 * len(rows), columns, height_ratios=[1.3, 1] * len(rows))
    for row, (name, x) in enumerate(rows.items()):
        surest = alone(x).max(-1).values.argsort(descending=True)
        chosen = x[surest[: len(surest) // 2 : len(surest) // 2 // columns][:columns]]
        before, after = alone(chosen), averaged(chosen)
        for column in range(columns):
            top, bottom = axes[2 * row, column], axes[2 * row + 1, column]
            top.imshow(chosen[column].squeeze().numpy(), cmap="gray_r")
            top.set_axis_off()
            classes = np.arange(10)
            bottom.bar(classes - 0.2, before[column].numpy(), 0.4, color=ALONE, label="network alone")
            bottom.bar(classes + 0.2, after[column].numpy(), 0.4, color=AVERAGED, label="over weights")
            bottom.set(ylim=(0, 1), xticks=classes, yticks=[])
            bottom.tick_params(labelsize=6)
        axes[2 * row, 0].set_title(name, loc="left", fontsize=11)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    return figure


def picture_of_histograms(histograms: dict[str, dict[str, Tensor]]) -> Figure:
    """Predictive entropy of known and unknown pictures, one panel per way of predicting."""
    figure = Figure(figsize=(5 * len(histograms), 3), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(histograms), sharey=True))
    for panel, (title, entropies) in zip(panels, histograms.items(), strict=True):
        bins = np.linspace(0, np.log(10), 24)
        for name, values in entropies.items():
            panel.hist(values.numpy(), bins=bins, alpha=0.55, density=True, label=name)
        panel.set(title=title, xlabel="entropy of the prediction (nats)", yticks=[])
    panels[0].legend(frameon=False)
    return figure

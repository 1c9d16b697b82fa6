"""Standard deviations of the posterior, parameter by parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.posterior import Posterior
from marquis.report.canvas import LINES, label, new_figure, use_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


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

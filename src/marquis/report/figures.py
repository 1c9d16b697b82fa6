"""All figures of the report: functions from numbers to matplotlib figures, without global state."""

from __future__ import annotations

from marquis.report.curves import training_curves
from marquis.report.examples import Examples, image_figure, table_figure
from marquis.report.histograms import variance_figure
from marquis.report.latent_map import LatentMap, latent_figure, latent_map
from marquis.report.widths import posterior_widths, widths_figure

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

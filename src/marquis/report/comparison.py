"""Compare several models on the same data, side by side on one page: `write_comparison`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from marquis.arguments import checked
from marquis.errors import DataError
from marquis.io.atomic import make_folder
from marquis.options import renamed_arguments
from marquis.report import sections
from marquis.report.figures import History
from marquis.report.html import Page
from marquis.report.study import Effort, study

REPORT = "report.html"


@dataclass(frozen=True)
class Comparison:
    """Hold the page and the numbers of a comparison.

    Attributes:
        path: The page.
        table: Numbers by model and name, as on the page; NaN where a number does not apply to a model.
    """

    path: Path
    table: dict[str, dict[str, float]]


@renamed_arguments(outside="out_of_distribution")
@checked
def write_comparison(
    models: Mapping[str, Any],
    data: Tensor,
    labels: Tensor | None,
    out: str | os.PathLike[str],
    history: Mapping[str, History] | None = None,
    *,
    title: str = "Comparison of autoencoders",
    text: str = "",
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    out_of_distribution: Mapping[str, Tensor] | None = None,
    effort: Effort | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare models on held-out data: a table, maps of the code, reconstructions, variances, posteriors, training.

    Writes `out/report.html`, which needs no other file, and the figures as PNGs into `out/report/`. Cost: about
    `samples` passes of each model over the data (at most 2000 rows and 50 posterior samples; fewer for large data).

    Args:
        models: By name; anything with `encode`, `decode` and `reconstruct`.
        data: Held-out data `[n, ...]`.
        labels: Classes `[n]` (integers) or targets (floats), for colours; None for none.
        out: Folder; created if it does not exist.
        history: Rows of the training by model, as in `metrics.csv` or `TrainingResult.rows`.
        title: Title of the page.
        text: First paragraph.
        classes: Names of the classes.
        columns: Names of a table's columns.
        out_of_distribution: OOD data by name, whose variances are compared.
        effort: Size of what is computed; by default what is sensible for the data.
        seed: Random seed.

    Raises:
        DataError: No models, no data, or labels that do not belong to them.
    """
    if not models:
        raise DataError("there are no models to compare: pass {name: model}.")
    if data.dim() < 2 or len(data) == 0:
        raise DataError(f"data of shape {list(data.shape)}: the rows come first, [n, ...], and there is at least one.")
    if labels is not None and (labels.dim() == 0 or len(labels) != len(data)):
        raise DataError(f"{len(data)} data but {labels.shape[0] if labels.dim() else 'no list of'} labels.")
    if labels is not None and labels.dim() != 1 and not labels.is_floating_point():
        raise DataError(f"labels of shape {list(labels.shape)}: classes are one integer per sample, [n].")
    if unknown := sorted(set(history or {}) - set(models)):
        raise DataError(f"history= has {', '.join(unknown)}, not one of the models {', '.join(models)}.")
    effort = effort or Effort.sensible(data.shape[1:])
    data = data[: effort.rows].detach().cpu()
    labels = None if labels is None else labels[: effort.rows].detach().cpu()
    shown = sections.shown_rows(data.shape[1:], labels, len(data))
    limited = {name: other[: effort.rows] for name, other in (out_of_distribution or {}).items()}
    studies = {
        name: study(model, data, shown, out_of_distribution=limited, effort=effort, seed=seed)
        for name, model in models.items()
    }
    page = Page(title)
    if text:
        page.text(text)
    page.heading(f"Metrics on {len(data)} held-out samples")
    sections.add_table(page, studies)
    sections.add_map(page, studies, labels, classes)
    sections.add_examples(page, studies, data[shown], columns)
    sections.add_variances(page, studies)
    sections.add_widths(page, studies)
    sections.add_training(page, history or {})
    path = page.write(make_folder(out) / REPORT)
    return Comparison(path, {name: dict(result.numbers) for name, result in studies.items()})

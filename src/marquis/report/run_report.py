"""Write the page of a finished run: `write_report`."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from marquis.arguments import checked
from marquis.data import Data
from marquis.errors import DataError, StorageError
from marquis.io.checksum import read_json
from marquis.report import sections
from marquis.report.comparison import REPORT
from marquis.report.examples import Examples
from marquis.report.html import Page, settings_rows
from marquis.report.ood_section import add_ood
from marquis.report.study import Effort, Study, study
from marquis.run import Run, Scaling
from marquis.run.directory import SUMMARY


@checked
def write_report(run_dir: str | os.PathLike[str], *, effort: Effort | None = None, seed: int = 0) -> Path:
    """Write the report of a run of `marquis train`: `report.html`, which needs no other file, and PNGs in `report/`.

    Held-out data are the test rows, else the validation rows, else the training rows (and the page says so). Tables are
    shown in the units of the data. What `marquis evaluate --ood` wrote into the folder is shown and explained.

    Args:
        run_dir: The run's folder, with a finished model.
        effort: Size of what is computed; by default what is sensible for the data's size.
        seed: Random seed.

    Returns:
        The page.

    Raises:
        DataError: There is no run, or its training is not finished.
    """
    run = Run.open(run_dir)
    model = run.model()
    data, split = _held_out(run)
    effort = effort or Effort.sensible(run.spec.shape)
    data = data[: effort.rows]
    x, labels = data.x, data.y
    shown = sections.shown_rows(run.spec.shape, labels, len(data))
    name = run.settings.model
    result = study(model, x, shown, effort=effort, seed=seed)

    page = Page(f"{name} on {Path(run.settings.data).stem}")
    page.text(
        f"Latent size {run.spec.latent}; metrics on {len(data)} {split} rows, {result.samples} posterior samples."
    )
    summary = _summary(run.path)
    if summary:
        page.table(["", "value"], settings_rows(summary))
    page.heading("Metrics")
    if run.scaling is not None:
        page.text("Columns were scaled to mean 0 and standard deviation 1 for training.")
    sections.add_table(page, {name: result})
    sections.add_map(page, {name: result}, labels, data.target_names)
    originals, units = x[shown], ""
    if run.scaling is not None:
        originals, result, units = _in_units(run.scaling, originals, result)
    sections.add_examples(page, {name: result}, originals, data.feature_names or run.columns, units)
    sections.add_variances(page, {name: result})
    sections.add_widths(page, {name: result})
    add_ood(page, run.path)
    sections.add_training(page, {name: run.rows_of_training()})
    page.heading("Settings")
    settings = {
        key.replace("_", " "): value for key, value in run.settings.as_json().items() if value not in (None, [])
    }
    page.table(["", "value"], settings_rows(settings))
    return page.write(run.path / REPORT)


def _held_out(run: Run) -> tuple[Data, str]:
    """Return the rows that a report is about, and what to call them."""
    module = run.data_module
    module.setup()
    for data, name in ((module.test, "test"), (module.validation, "validation")):
        if data is not None:
            return data, name
    return module.train, "training (none are held out)"


def _summary(path: Path) -> dict[str, Any]:
    """Return the summary that training wrote; a missing or damaged file is no reason to have no report."""
    if not (path / SUMMARY).exists():
        return {}
    try:
        summary = read_json(path / SUMMARY, unsealed=(None,))
    except (DataError, StorageError) as error:
        warnings.warn(f"the report has no summary: {error}", stacklevel=2)
        return {}
    return {name: value for name, value in summary.items() if name != "version"}


def _in_units(scaling: Scaling, originals: Tensor, result: Study) -> tuple[Tensor, Study, str]:
    """Return examples of a table in the units of the data."""
    scaled, squared = result.examples, scaling.deviations(scaling.scale.new_ones(())).square()
    examples = Examples(
        scaling.unscaled(scaled.mean),
        None if scaled.variance is None else scaled.variance.double() * squared,
        None if scaled.noise_variance is None else scaled.noise_variance.double() * squared,
    )
    return scaling.unscaled(originals), replace(result, examples=examples), " in the units of the data"

"""`write_report`: the page of a finished training."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from marquis.data import Data
from marquis.report import sections
from marquis.report.comparison import REPORT
from marquis.report.examples import Examples
from marquis.report.html import Page, settings_rows
from marquis.report.study import Effort, Study, study
from marquis.run import Run, Scaling
from marquis.run.directory import SUMMARY


def write_report(run_dir: str | os.PathLike[str], *, effort: Effort | None = None, seed: int = 0) -> Path:
    """The report of a run of `marquis train`: `report.html`, which needs no other file, and PNGs in `report/`.

    Held-out data are the test rows, else the validation rows, else the training rows (and the page says so). Tables are
    shown in the units of the data.

    Args:
        run_dir: The run's folder, with a finished model.
        effort: How much is computed; by default what is sensible for the data's size.
        seed: Of the draws of the model.

    Returns:
        The page.

    Raises:
        DataError: There is no run, or its training is not over.
    """
    run = Run.open(run_dir)
    model = run.model()
    data, split = _held_out(run)
    effort = effort or Effort.sensible(run.spec.shape)
    data = data[: effort.rows]
    x, labels = data.x, data.y
    shown = sections.shown_rows(run.spec.shape, labels, len(data))
    name = run.settings.model
    found = study(model, x, shown, effort=effort, seed=seed)

    page = Page(f"{name} on {Path(run.settings.data).stem}")
    page.text(f"A code of {run.spec.latent} numbers; measured on {len(data)} {split} rows with {found.draws} draws.")
    summary = _summary(run.path)
    if summary:
        page.table(["", "value"], settings_rows(summary))
    page.heading("Numbers")
    if run.scaling is not None:
        page.text("In columns that were brought to mean 0 and standard deviation 1 for the training.")
    sections.add_table(page, {name: found})
    sections.add_map(page, {name: found}, labels, data.target_names)
    originals, units = x[shown], ""
    if run.scaling is not None:
        originals, found, units = _in_units(run.scaling, originals, found)
    sections.add_examples(page, {name: found}, originals, data.feature_names or run.columns, units)
    sections.add_variances(page, {name: found})
    sections.add_widths(page, {name: found})
    sections.add_training(page, {name: run.rows_of_training()})
    page.heading("Settings")
    settings = {
        key.replace("_", " "): value for key, value in run.settings.as_json().items() if value not in (None, [])
    }
    page.table(["", "value"], settings_rows(settings))
    return page.write(run.path / REPORT)


def _held_out(run: Run) -> tuple[Data, str]:
    module = run.data_module
    module.setup()
    for data, name in ((module.test, "test"), (module.validation, "validation")):
        if data is not None:
            return data, name
    return module.train, "training (none are held out)"


def _summary(path: Path) -> dict[str, Any]:
    """What the training wrote about itself; an old or damaged file is no reason to have no report."""
    try:
        held = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


def _in_units(scaling: Scaling, originals: Tensor, found: Study) -> tuple[Tensor, Study, str]:
    """Examples of a table as the user knows them."""
    said, squared = found.examples, scaling.deviations(scaling.scale.new_ones(())).square()
    examples = Examples(
        scaling.unscaled(said.mean),
        None if said.variance is None else said.variance.double() * squared,
        None if said.noise_variance is None else said.noise_variance.double() * squared,
    )
    return scaling.unscaled(originals), replace(found, examples=examples), " in the units of the data"

"""The estimator of a run's table: `marquis.sklearn.LaplacianAutoencoder`, fitted to the run's training rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from marquis.run import Rows, Run
    from marquis.sklearn import LaplacianAutoencoder
    from marquis.sklearn.imputed_table import ImputedTable


def is_for_estimator(run: Run) -> bool:
    """Return whether a run is of a table of numbers and of the kind that the estimator is."""
    return len(run.spec.shape) == 1 and run.scaling is not None and run.settings.model == "lae"


def fitted(run: Run) -> LaplacianAutoencoder:
    """Return the estimator of default settings, fitted to the run's training rows with the run's seed.

    So the command and `LaplacianAutoencoder(random_state=seed).fit(rows)` give the same numbers. Cost: seconds for a
    few hundred rows, each time.
    """
    from marquis.run.training_data import load_rows
    from marquis.sklearn import LaplacianAutoencoder

    _ = run.data_module  # refuses training data that have changed
    return LaplacianAutoencoder(random_state=run.settings.seed).fit(load_rows(run.settings, "train").x.numpy())


def imputed(run: Run, rows: Rows, samples: int, seed: int) -> ImputedTable:
    """Return rows with their missing entries filled, in their own units."""
    return fitted(run).impute(rows.original.double().numpy(), samples, random_state=seed)


def write_explanation(out: Path, run: Run, rows: Rows) -> None:
    """Write what every entry adds to the outlier score of its row: a line per row and column."""
    from marquis.cli.outputs import column_names, write_columns

    found = fitted(run).explain(rows.original.double().numpy())
    count, width = found.values.shape
    names = np.array(column_names(rows.names, width))
    columns = {"row": np.repeat(np.arange(count), width), "column": np.tile(names, count)}
    parts = {"value": "values", "expected": "expected", "low": "low", "high": "high", "contribution": "contributions"}
    write_columns(out, columns | {name: getattr(found, part).ravel() for name, part in parts.items()})

"""Fit the estimator of a run's table, `marquis.sklearn.LaplacianAutoencoder`, to the run's training rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marquis.data.categories import collapsed
from marquis.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from marquis.run import Rows, Run
    from marquis.sklearn import LaplacianAutoencoder
    from marquis.sklearn.imputed_table import ImputedTable


def is_for_estimator(run: Run) -> bool:
    """Return whether a run is of a table of numbers and of the kind that the estimator is."""
    return run.is_table and run.scaling is not None and run.settings.model == "lae"


def fitted(run: Run) -> LaplacianAutoencoder:
    """Return the estimator of default settings, fitted to the run's training rows with the run's seed.

    So the command and `LaplacianAutoencoder(random_state=seed).fit(rows)` give the same numbers. Cost: seconds for a
    few hundred rows, each time.
    """
    from marquis.run.training_data import load_rows
    from marquis.sklearn import LaplacianAutoencoder

    _ = run.data_module  # refuses training data that have changed
    return LaplacianAutoencoder(random_state=run.settings.seed).fit(_table(run, load_rows(run.settings, "train").x))


def imputed(run: Run, rows: Rows, samples: int, seed: int) -> ImputedTable:
    """Return rows with their missing entries filled, in their own units; a pandas table if there are categories."""
    return fitted(run).impute(_table(run, rows.original, rows.new_levels), samples, random_state=seed)


def write_imputed(out: Path, rows: Rows, filled: ImputedTable) -> int:
    """Write a table with categories: levels as text, NAME_std their probability of being wrong; returns the count.

    Raises:
        DataError: The file is to hold arrays, or NAME_std is the name of a column.
    """
    from marquis.cli.outputs import TABLES, check_std_names, write_columns

    if out.suffix.lower() not in TABLES:
        raise DataError(f"--out {out}: a table with categories is written as {' or '.join(TABLES)}")
    columns = {name: filled.mean[name].to_numpy() for name in filled.mean.columns}
    columns |= {name: values.numpy() for name, values in rows.aside.items()}
    incomplete = filled.mean.columns[filled.missing.any(0)]
    check_std_names(incomplete, columns, rows.source)
    write_columns(out, columns | {f"{name}_std": filled.std[name].to_numpy() for name in incomplete})
    return int(filled.missing.sum())


def write_explanation(out: Path, run: Run, rows: Rows) -> None:
    """Write what every entry adds to the outlier score of its row: a line per row and column."""
    from marquis.cli.outputs import column_names, write_columns

    table = _table(run, rows.original, rows.new_levels)
    explanation = fitted(run).explain(table)
    count, width = explanation.values.shape
    names = np.array(list(table.columns) if run.categories else column_names(rows.names, width))
    columns = {"row": np.repeat(np.arange(count), width), "column": np.tile(names, count)}
    parts = {"value": "values", "expected": "expected", "low": "low", "high": "high", "contribution": "contributions"}
    write_columns(out, columns | {name: getattr(explanation, part).ravel() for name, part in parts.items()})


def _table(run: Run, x: Tensor, new_levels: Mapping[str, Mapping[int, str]] | None = None) -> Any:
    """Return rows as the estimator takes them: an array, or a pandas table with the levels of text columns."""
    values = x.double().numpy()
    if not run.categories:
        return values
    import pandas as pd

    assert run.columns is not None
    columns, kinds = collapsed(values, run.columns, run.categories), {}
    for name, levels in run.categories.items():
        new = (new_levels or {}).get(name, {})
        for row, text in new.items():
            columns[name][row] = text
        kinds[name] = pd.CategoricalDtype([*levels, *sorted(set(new.values()))])
    return pd.DataFrame(columns).astype(kinds)

"""Columns of a table with holes: standardised for a network, and tables given back in the form they came in."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from marquis.errors import DataError


def column_scaler(X: np.ndarray, names: np.ndarray | None = None) -> StandardScaler:
    """What brings each column to mean 0 and deviation 1 by its observed entries; a constant column keeps its unit.

    Args:
        X: `[N, d]`; NaN marks missing entries.
        names: Of the columns, for the error.

    Raises:
        DataError: A column has no values at all.
    """
    empty = np.flatnonzero(np.isnan(X).all(0))
    if len(empty):
        called = ", ".join(repr(str(names[i])) if names is not None else f"number {i}" for i in empty[:5])
        raise DataError(
            f"{len(empty)} of {X.shape[1]} columns have no values in the training rows ({called}"
            f"{', ...' if len(empty) > 5 else ''}): nothing can be learnt about them; remove them."
        )
    return StandardScaler().fit(X)


def like_table(X: Any, values: np.ndarray) -> Any:
    """`values` as a pandas table with the index and columns of `X`, if `X` is one; else as they are."""
    pandas = sys.modules.get("pandas")  # nobody has a table of it who has not imported it
    if pandas is not None and isinstance(X, pandas.DataFrame):
        return pandas.DataFrame(values, index=X.index, columns=X.columns)
    return values

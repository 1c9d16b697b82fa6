"""Check tables that users pass, before scikit-learn converts them to numbers."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np

from marquis.errors import DataError

EXACT = 2**53
"""Integers up to this one are numbers of double precision; beyond, neighbours become the same."""


def without_gradient(values: Any) -> Any:
    """Return the values of a tensor that requires a gradient, which NumPy does not take; anything else as it is."""
    return values.detach() if getattr(values, "requires_grad", False) is True else values


def plain_table(X: Any, *, exact: bool = False) -> Any:
    """Return `X` as it is, but with NaN at the masked entries of a `numpy.ma` array.

    Args:
        X: Whatever an estimator is given; what is no table of two dimensions is left to scikit-learn.
        exact: Whether integers that double precision would change are refused: for values that are given back.

    Raises:
        DataError: A column holds dates or durations, whose NaT scikit-learn would take for the number -9.2e18; or
            integers that would be changed. There are no columns, or two of one name.
    """
    X = without_gradient(X)
    if isinstance(X, np.ma.MaskedArray):
        _refuse_columns(X, exact)
        floating: Any = X if X.dtype.kind in "fc" else X.astype(object)
        return floating.filled(np.nan)
    if hasattr(X, "iloc"):
        _refuse_names(X)
    _refuse_columns(X if hasattr(X, "iloc") else np.asarray(X), exact)
    return X


def plain_labels(y: Any) -> Any:
    """Return `y` as it is, a `numpy.ma` array without masked entries as a plain one.

    Raises:
        DataError: Labels are masked.
    """
    y = without_gradient(y)
    if isinstance(y, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(y).sum())
        if masked:
            raise DataError(f"y has {masked} masked entries of {y.size}: leave these rows out; a label must be known.")
        return np.asarray(y)
    return y


def plain_targets(y: Any) -> Any:
    """Return targets, which are numbers, as they are; a `numpy.ma` array as a plain one.

    Raises:
        DataError: They are masked, or dates or durations.
    """
    y = plain_labels(y)
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind and kind in "mM":
        raise DataError(f"y holds dates or durations ({y.dtype}): give numbers, for instance days since a date.")
    return y


def require_finite(values: np.ndarray, what: str) -> np.ndarray:
    """Return results of `X`, after refusing those that overflowed.

    Raises:
        DataError: One overflows, because its row lies too far from those of `fit`.
    """
    rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
    if len(rows):
        raise DataError(
            f"the {what} of {len(rows)} rows of X (first: row {rows[0]}) overflow: the entries lie too far from the "
            "rows of fit. Check their units, or clip them."
        )
    return values


def _refuse_names(X: Any) -> None:
    """Refuse a pandas table without columns, or with two of one name, for which scikit-learn's errors are no help."""
    names = list(getattr(X, "columns", ["of a series"]))
    if not names:
        raise DataError(f"X has {len(X)} rows and no columns; at least one column of numbers is needed.")
    twice = sorted({str(name) for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(f"several columns of X have the name {', '.join(map(repr, twice[:5]))}: rename or remove them.")


def _refuse_columns(X: Any, exact: bool) -> None:
    """Refuse columns of dates, and of integers that would be changed."""
    for name, column in _columns(X):
        kind = getattr(column.dtype, "kind", "O")
        if kind in "mM" or type(column.dtype).__name__ in ("PeriodDtype", "IntervalDtype"):
            what = "intervals" if type(column.dtype).__name__ == "IntervalDtype" else "dates or durations"
            raise DataError(
                f"column {name} holds {what} ({column.dtype}): give numbers, for instance days since a "
                "date, with NaN where they are missing."
            )
        if exact and kind in "iuO":
            large = _largest(column)
            if large > EXACT:
                raise DataError(
                    f"column {name} holds integers beyond 2**53 (up to {large}), which double precision would change: "
                    "leave it out if they are names of something, or give a difference."
                )


def _columns(X: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and values of each column; of an array of numbers that need no look at each, of all of it at once."""
    if getattr(X, "ndim", 0) != 2:
        return
    if hasattr(X, "iloc"):
        for place, name in enumerate(X.columns):
            yield repr(str(name)), X.iloc[:, place]
    elif X.dtype.kind in "mMiuO":
        for place in range(X.shape[1]):
            yield f"number {place}", X[:, place]


def _largest(column: Any) -> int:
    """Return the largest absolute value of the integers of a column that are not missing; 0 if there are none."""
    # pandas makes floats of integers with missing values, so these go first
    known: Any = column.compressed() if isinstance(column, np.ma.MaskedArray) else column
    values = np.asarray(known.dropna() if hasattr(column, "dropna") else known)
    if values.dtype.kind in "iu":
        return max(int(values.max()), -int(values.min())) if values.size else 0
    if values.dtype.kind != "O":
        return 0
    return max((abs(int(value)) for value in values.ravel() if isinstance(value, Integral)), default=0)

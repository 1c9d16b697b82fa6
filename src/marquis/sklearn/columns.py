"""Standardise columns with missing values for a network, and return tables in the form they came in."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from marquis.errors import DataError

ROUNDING = 64 * np.finfo(np.float64).eps
"""Values that differ by this share of themselves at most are one value: a sum, added up in another order."""

SAME = float(np.finfo(np.float32).eps)
"""A new value that differs from a constant by this share of it at most is the constant, by way of single precision."""

OUTLIER = -50.0
"""Log-likelihood of an entry that differs from its column's constant: that of one ten standard deviations away."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Convert columns of numbers between their own units and standardised ones; a network gets those that vary.

    A constant column has no unit: nothing tells by how much it might differ. So its missing entries are the constant,
    for certain, and one that differs has the same log-likelihood whatever the difference (`OUTLIER`).

    Attributes:
        scaler: Mean and deviation of every column; the constant itself and 1 where a column is constant.
        varies: `[d]`, False for constant columns.
    """

    scaler: StandardScaler
    varies: np.ndarray

    @property
    def _mean(self) -> np.ndarray:
        """Return the mean of every column."""
        mean: Any = self.scaler.mean_
        return mean

    @property
    def _scale(self) -> np.ndarray:
        """Return the standard deviation of every column."""
        scale: Any = self.scaler.scale_
        return scale

    def standardised(self, X: np.ndarray) -> np.ndarray:
        """Return the columns that vary, `[N, varying]`, standardised."""
        scaled: Any = self.scaler.transform(X)
        return np.ascontiguousarray(scaled[:, self.varies])

    def rows(self, z: np.ndarray) -> np.ndarray:
        """Return `z [..., varying]` as rows `[..., d]` in their own units, with the constants."""
        rows = np.broadcast_to(self._mean, (*z.shape[:-1], self.varies.size)).copy()
        rows[..., self.varies] = z * self._scale[self.varies] + self._mean[self.varies]
        return rows

    def deviations(self, std: np.ndarray) -> np.ndarray:
        """Return standard deviations `[..., varying]` as `[..., d]` in the columns' units: 0 for constants."""
        deviations = np.zeros((*std.shape[:-1], self.varies.size))
        deviations[..., self.varies] = std * self._scale[self.varies]
        return deviations

    def without_units(self, std: np.ndarray) -> np.ndarray:
        """Return standard deviations `[..., d]` of all columns as standardised ones `[..., varying]`."""
        return (std / self._scale)[..., self.varies]

    def constant_penalty(self, X: np.ndarray) -> np.ndarray:
        """Return what constant columns add to the log-likelihood, `[N, d]`: `OUTLIER` where a row differs from one."""
        differs = np.abs(X - self._mean) > SAME * np.abs(self._mean)  # False for NaN, which may be the constant
        return np.where(differs & ~self.varies, OUTLIER, 0.0)


def without_copies(X: np.ndarray) -> np.ndarray:
    """Return the rows without copies, where every value of every column that varies tells its row.

    An entry hidden from such a table stands in the copies of its row, so that errors of new rows would be judged by
    none. Where levels repeat in other combinations, rows repeat by chance and each counts.
    """
    varying = X[:, (X[:1] != X).any(0)]
    distinct, first = np.unique(varying, axis=0, return_index=True)
    copied = len(distinct) < len(X) and all(len(np.unique(column)) == len(distinct) for column in varying.T)
    return X[np.sort(first)] if copied and varying.shape[1] > 1 and not np.isnan(X).any() else X


def labels_of(estimator: Any) -> np.ndarray:
    """Return the names of columns for error messages: 'name', or number 3."""
    names = getattr(estimator, "feature_names_in_", None)
    called = map("number {}".format, range(estimator.n_features_in_)) if names is None else map(repr, map(str, names))
    return np.array(list(called), dtype=object)


def columns_of(X: np.ndarray, labels: np.ndarray) -> Columns:
    """Return what standardises each column by its observed entries.

    Raises:
        DataError: A column has no values at all, a single one, or a deviation that double precision cannot hold; or
            none varies.
    """
    empty = np.flatnonzero(np.isnan(X).all(0))
    if len(empty):
        raise DataError(
            f"{len(empty)} of {X.shape[1]} columns have no values in the training rows ({', '.join(labels[empty[:5]])}"
            f"{', ...' if len(empty) > 5 else ''}): nothing can be learnt about them; remove them."
        )
    single = np.flatnonzero((~np.isnan(X)).sum(0) == 1) if len(X) > 1 else empty
    if len(single):
        raise DataError(
            f"column {labels[single[0]]} has a single value in the {len(X)} training rows, which tells nothing about "
            "others: remove it."
        )
    columns = Columns(*fitted_scaler(X, labels))
    if not columns.varies.any():
        raise DataError(
            f"all {X.shape[1]} columns are constant in the training rows: there is nothing to learn; "
            "sklearn.impute.SimpleImputer fills in constants."
        )
    return columns


def fitted_scaler(X: np.ndarray, labels: np.ndarray) -> tuple[StandardScaler, np.ndarray]:
    """Return a scaler with mean and standard deviation of every column, and which columns vary.

    Raises:
        DataError: The variance of a column that varies is not a normal number.
    """
    low, high = np.nanmin(X, 0), np.nanmax(X, 0)
    with np.errstate(over="ignore", invalid="ignore"):  # what becomes of it is looked at below
        varies = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
        scaler: Any = StandardScaler().fit(X)
        # What varies little, compared with its mean, is a constant to scikit-learn, which then has a scale of 1.
        unsure = varies & (scaler.scale_ == 1) & (scaler.var_ != 1)
        difference = X[:, unsure] - low[unsure]
        scaler.mean_[unsure], scaler.var_[unsure] = low[unsure] + np.nanmean(difference, 0), np.nanvar(difference, 0)
        scaler.scale_[unsure] = np.sqrt(scaler.var_[unsure])
    normal = np.isfinite(scaler.mean_) & np.isfinite(scaler.var_) & (scaler.var_ >= np.finfo(np.float64).tiny)
    wild = np.flatnonzero(varies & ~normal)
    if len(wild):
        first = wild[0]
        raise DataError(
            f"column {labels[first]} has values from {low[first]:.3g} to {high[first]:.3g}, whose variance is not a "
            "normal number of double precision: give it in another unit."
        )
    scaler.mean_[~varies], scaler.var_[~varies], scaler.scale_[~varies] = low[~varies], 0.0, 1.0
    return scaler, varies


def like_table(X: Any, values: np.ndarray) -> Any:
    """Return `values` as a pandas table with the index and columns of `X`, if `X` is one; else as they are."""
    pandas = sys.modules.get("pandas")  # without an import of it there is no table of it
    if pandas is not None and isinstance(X, pandas.DataFrame):
        return pandas.DataFrame(values, index=X.index, columns=X.columns)
    return values

"""Calibrate intervals of imputed entries and p-values of outliers by split conformal prediction."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from marquis.conformal import ConformalIntervals, p_values
from marquis.errors import DataError, UnsupportedOperationError
from marquis.sklearn.columns import Columns, like_table
from marquis.sklearn.parameter_checks import fraction

Model = TypeVar("Model", bound="Guarantees")


class Guarantees:
    """Add `conformalize`, `impute_interval` and `outlier_p_values` to the table autoencoder (`mq.conformal`)."""

    _columns: Any
    _conformal: tuple[ConformalIntervals | None, np.ndarray] | None
    _validated: Any
    impute: Any
    score_samples: Any

    def conformalize(self: Model, X: Any, mask_fraction: float = 0.2, random_state: int = 0) -> Model:
        """Calibrate `impute_interval` and `outlier_p_values` on rows that were not trained on; returns itself.

        A share of the observed entries is hidden at random and imputed from the others. The guarantee is for entries
        that are missing like these: completely at random, about as many of them.

        Args:
            X: Calibration rows, exchangeable with new ones.
            mask_fraction: Share of the entries that is hidden.
            random_state: Seed of the hidden entries.
        """
        if not fraction("mask_fraction", mask_fraction):
            raise DataError(f"mask_fraction={mask_fraction}: a share between 0 and 1.")
        intervals = None
        if isinstance(self._columns, Columns):
            table = self._validated(X)
            hidden = np.random.default_rng(random_state).random(table.shape) < mask_fraction
            hidden &= ~np.isnan(table)
            imputed = self.impute(like_table(X, np.where(hidden, np.nan, table)), 1)
            intervals = ConformalIntervals.calibrate(imputed.mean, imputed.std, np.where(hidden, table, np.nan))
        self._conformal = intervals, -self.score_samples(X)
        return self

    def impute_interval(self, X: Any, alpha: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper limits `[N, columns]` of every entry; both are the entry itself where it is observed.

        On average over calibration sets a missing entry of a column lies within them with probability at least
        `1 - alpha`, and at most `1 - alpha + 1/(n + 1)` with n hidden entries of that column.

        Raises:
            DataError: `conformalize` was not called.
            UnsupportedOperationError: The table has categorical columns.
        """
        intervals, _ = self._calibrated()
        if intervals is None:
            raise UnsupportedOperationError("impute_interval is for tables of numbers, this one has categories.")
        table = self._validated(X)
        imputed, missing = self.impute(X, 1), np.isnan(table)
        lower, upper = intervals.interval(imputed.mean, np.where(missing, imputed.std, 1.0), alpha)
        return np.where(missing, lower, table), np.where(missing, upper, table)

    def outlier_p_values(self, X: Any) -> np.ndarray:
        """Return a p-value per row: of ordinary rows at most a share alpha has `p <= alpha`, over calibration sets."""
        return p_values(self._calibrated()[1], -self.score_samples(X))

    def _calibrated(self) -> tuple[ConformalIntervals | None, np.ndarray]:
        """Return the calibration; raise before `conformalize`."""
        if getattr(self, "_conformal", None) is None:
            raise DataError("call conformalize(X) with rows that were not trained on first.")
        assert self._conformal is not None
        return self._conformal

"""Calibrate intervals and sets of imputed entries and p-values of outliers by split conformal prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from marquis.arguments import checked_methods
from marquis.conformal import ConformalIntervals, ConformalSets, p_values
from marquis.errors import DataError, UnsupportedOperationError
from marquis.sklearn.categories import Category, EncodedColumns
from marquis.sklearn.parameter_checks import fraction

if TYPE_CHECKING:
    from marquis.sklearn.imputed_table import ImputedTable

Model = TypeVar("Model", bound="Guarantees")


@checked_methods
class Guarantees:
    """Add guarantees for imputed entries and outliers to the table autoencoder (`mq.conformal`)."""

    _columns: EncodedColumns
    _conformal: tuple[ConformalIntervals, dict[int, ConformalSets], np.ndarray] | None
    _draws: Any
    _imputed: Any
    _validated: Any
    score_samples: Any

    def conformalize(self: Model, X: Any, mask_fraction: float = 0.2, random_state: int = 0) -> Model:
        """Calibrate `impute_interval`, `impute_set` and `outlier_p_values` on rows not trained on; returns itself.

        A share of the observed entries is hidden at random and imputed from the others. The guarantee is for entries
        that are missing like these: completely at random, about as many of them.

        Args:
            X: Calibration rows, exchangeable with new ones.
            mask_fraction: Share of the entries that is hidden.
            random_state: Seed of the hidden entries.
        """
        if not fraction("mask_fraction", mask_fraction):
            raise DataError(f"mask_fraction={mask_fraction}: a share between 0 and 1.")
        table, numbers = self._validated(X), self._columns.numbers
        hidden = (np.random.default_rng(random_state).random(table.shape) < mask_fraction) & ~np.isnan(table)
        imputed = self._imputed(np.where(hidden, np.nan, table), 1, self._draws())
        truth = np.where(hidden, table, np.nan)[:, numbers]
        intervals = ConformalIntervals.calibrate(imputed.mean[:, numbers], imputed.std[:, numbers], truth)
        sets = {}
        for category in self._columns.categories:
            rows = np.flatnonzero(hidden[:, category.column])
            levels = table[rows, category.column].astype(int)
            known = ConformalSets.calibrate(_chances(imputed, category)[rows[levels >= 0]], levels[levels >= 0])
            # No set of levels holds one that is new.
            sets[category.column] = ConformalSets(np.append(known.scores, np.full((levels < 0).sum(), np.inf)))
        self._conformal = intervals, sets, -self.score_samples(X)
        return self

    def impute_interval(self, X: Any, alpha: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper limits `[N, columns]` of every number; both are the entry itself where it is observed.

        On average over calibration sets a missing entry of a column lies within them with probability at least
        `1 - alpha`, and at most `1 - alpha + 1/(n + 1)` with n hidden entries of that column. Limits of categories are
        NaN: `impute_set` has their levels.

        Raises:
            DataError: `conformalize` was not called.
        """
        intervals, _, _ = self._calibrated()
        table, numbers = self._validated(X), self._columns.numbers
        imputed = self._imputed(table, 1, self._draws())
        lower, upper = imputed.mean.copy(), imputed.mean.copy()
        missing = np.isnan(table)[:, numbers]
        limits = intervals.interval(imputed.mean[:, numbers], np.where(missing, imputed.std[:, numbers], 1.0), alpha)
        for whole, limit in zip((lower, upper), limits, strict=True):
            whole[:, numbers] = np.where(missing, limit, table[:, numbers])
            whole[:, [category.column for category in (*self._columns.categories, *self._columns.constant)]] = np.nan
        return lower, upper

    def impute_set(self, X: Any, alpha: float = 0.1, random_state: int = 1) -> dict[Any, Any]:
        """Return which levels belong to a set that holds a missing category with probability at least `1 - alpha`.

        Of every categorical column with several levels a pandas table of booleans `[N, levels]`. An entry that is
        observed is a set of its own level, one of a new level an empty set. Some sets of missing entries can be empty
        (`mq.conformal.ConformalSets`).

        Args:
            X: Pandas table `[N, columns]`.
            alpha: One minus the probability.
            random_state: Seed of the uniform numbers that keep sets from being too large.

        Raises:
            DataError: `conformalize` was not called.
            UnsupportedOperationError: No column holds categories.
        """
        import pandas as pd

        _, sets, _ = self._calibrated()
        if not sets:
            raise UnsupportedOperationError("impute_set is for tables with categories; impute_interval is for numbers.")
        table = self._validated(X)
        imputed, sets_of_levels = self._imputed(table, 1, self._draws()), {}
        for category in self._columns.categories:
            codes = table[:, category.column]
            missing = np.isnan(codes)
            in_set = codes[:, None] == np.arange(len(category.levels))
            chances = _chances(imputed, category)[missing]
            in_set[missing] = sets[category.column].sets(chances, alpha, random_state)
            sets_of_levels[X.columns[category.column]] = pd.DataFrame(
                in_set, index=X.index, columns=list(category.levels)
            )
        return sets_of_levels

    def outlier_p_values(self, X: Any) -> np.ndarray:
        """Return a p-value per row: of ordinary rows at most a share alpha has `p <= alpha`, over calibration sets."""
        return p_values(self._calibrated()[2], -self.score_samples(X))

    def _calibrated(self) -> tuple[ConformalIntervals, dict[int, ConformalSets], np.ndarray]:
        """Return the calibration; raise before `conformalize`."""
        if getattr(self, "_conformal", None) is None:
            raise DataError("call conformalize(X) with rows that were not trained on first.")
        assert self._conformal is not None
        return self._conformal


def _chances(imputed: ImputedTable, category: Category) -> np.ndarray:
    """Return probabilities of the levels of a category, `[N, levels]`; of rows without missing entries zeros."""
    nothing = np.zeros((len(imputed.missing), len(category.levels)))
    return imputed.probabilities.get(category.column, nothing)

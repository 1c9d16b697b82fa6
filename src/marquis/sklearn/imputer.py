"""Impute missing values with the conventions of scikit-learn: `LaplacianImputer`."""

from __future__ import annotations

import sys
import warnings
from numbers import Real
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.impute import MissingIndicator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from marquis.arguments import checked_methods, describe_value
from marquis.errors import DataError
from marquis.sklearn.autoencoder import LaplacianAutoencoder, Random
from marquis.sklearn.categories import category_columns
from marquis.sklearn.columns import columns_of, labels_of
from marquis.sklearn.input_tables import plain_table
from marquis.sklearn.parameter_checks import truth, whole

DTYPES = (np.float64, np.float32)
"""Types of tables that come back as they went in, as scikit-learn's imputers do it; others become the first."""


@checked_methods
class LaplacianImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Impute missing values by their mean; `sample` returns several complete tables (multiple imputation).

    A `LaplacianAutoencoder` is trained on the observed entries (Miani et al. 2022, A.3; docs/method/tasks.md). Observed
    entries stay exactly as they are, and a row's answer does not depend on the other rows. Cost: see there.

    Args:
        estimator: The `LaplacianAutoencoder` to use, which is cloned; None: one of default
            settings.
        missing_values: What marks a missing entry: NaN (or pandas' NA, of nullable columns), or a number.
        samples: Number of samples of which the mean is filled in.
        rounds: Deprecated, without effect; see `LaplacianAutoencoder.impute`.
        add_indicator: Whether to append a column of 0 and 1 for each column that had missing entries in `fit`.
        keep_empty_features: Whether columns without any value in `fit` are filled with 0, or dropped.
        random_state: Of training and samples; None: that of the `estimator`.
        verbose: 1 prints the training.

    Attributes:
        estimator_: the trained autoencoder, of the columns that have values; its `impute` has standard deviations.
        indicator_: the `MissingIndicator` of `add_indicator`, or None.
        n_features_in_: number of columns.
        feature_names_in_: their names, if `fit` was given a table with names.
    """

    def __init__(
        self,
        estimator: LaplacianAutoencoder | None = None,
        *,
        missing_values: float = np.nan,
        samples: int = 25,
        rounds: int = 0,
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        random_state: Random = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.missing_values = missing_values
        self.samples = samples
        self.rounds = rounds
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> LaplacianImputer:
        """Learn from the observed entries of `X [N, columns]`; returns itself. `y` is ignored."""
        if not (self._marked_by_nan or isinstance(self.missing_values, Real)):
            raise DataError(f"missing_values={self.missing_values!r}: NaN or a number.")
        whole("samples", self.samples)
        whole("rounds", self.rounds, 0)
        for name in ("add_indicator", "keep_empty_features"):
            truth(name, getattr(self, name))
        self.indicator_: Any = None
        self._mixed = bool(category_columns(X))
        if self._mixed:
            return self._fit_mixed(X)
        table, missing = self._with_nan(X, reset=True)
        self._known = ~missing.all(0)
        if not self._known.any():
            raise DataError("no column has any value: there is nothing to learn from.")
        if self.add_indicator:
            self.indicator_ = MissingIndicator(error_on_new=False).fit(table)
        observed = table[:, self._known]
        columns_of(observed.astype(np.float64), labels_of(self)[self._known])  # refused by the names they have here
        self.estimator_ = self._autoencoder().fit(observed)
        return self

    def _fit_mixed(self, X: Any) -> LaplacianImputer:
        """Learn from a pandas table with categorical columns."""
        if self.add_indicator or self.keep_empty_features or not self._marked_by_nan:
            raise DataError(
                "add_indicator, keep_empty_features and missing_values are for tables of numbers; this one has "
                "categories."
            )
        validate_data(self, X, skip_check_array=True)
        self._known = X.notna().any().to_numpy()
        self.estimator_ = self._autoencoder().fit(X.loc[:, self._known])
        return self

    def _autoencoder(self) -> LaplacianAutoencoder:
        """Return a new autoencoder, not trained yet."""
        if self.estimator is None:
            made = LaplacianAutoencoder()
        elif isinstance(self.estimator, LaplacianAutoencoder):
            made = cast(LaplacianAutoencoder, clone(self.estimator))
        else:
            raise DataError(f"estimator= is a {type(self.estimator).__name__}; give a LaplacianAutoencoder, or None.")
        if self.random_state is not None or self.estimator is None:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            made.set_params(random_state=int(seed))
        return made.set_params(verbose=max(self.verbose, made.verbose))

    @property
    def _marked_by_nan(self) -> bool:
        """Return whether NaN or NA marks missing values."""
        pandas, marker = sys.modules.get("pandas"), self.missing_values
        return (isinstance(marker, Real) and bool(np.isnan(marker))) or (pandas is not None and marker is pandas.NA)

    def _with_nan(self, X: Any, *, reset: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the table with NaN where entries are missing, and where that is."""
        table: Any = validate_data(
            self,
            plain_table(X, exact=True),
            reset=reset,
            dtype=DTYPES,
            copy=True,
            ensure_all_finite="allow-nan" if self._marked_by_nan else True,
            ensure_min_samples=2 if reset else 1,
        )
        missing = np.isnan(table) if self._marked_by_nan else table == self.missing_values  # in the table's own type
        table[missing] = np.nan
        return table, missing

    def transform(self, X: Any) -> Any:
        """Return `X` with its missing entries filled by their means, `[N, columns that are kept (+ indicators)]`."""
        check_is_fitted(self, "estimator_")
        if getattr(self, "_mixed", False):
            validate_data(self, X, reset=False, skip_check_array=True)
            self._warn_of_empty_columns()
            return self.estimator_.impute(X.loc[:, self._known], self.samples).mean
        table, missing = self._with_nan(X)
        filled = self._impute(table).mean
        return self._assembled(table, missing, filled[None])[0]

    def sample(self, X: Any, n_samples: int = 5, random_state: Random = None) -> Any:
        """Impute several times: `n_samples` complete tables `[n_samples, N, ...]`, each as `transform` returns one.

        Of tables with categories a list of pandas tables.

        Run an analysis on each of them: how its results differ is what the missing values leave open.

        Args:
            X: `[N, columns]` with missing entries.
            n_samples: Number of tables.
            random_state: Of the samples; None: the same every time.
        """
        check_is_fitted(self, "estimator_")
        count = whole("n_samples", n_samples)
        if getattr(self, "_mixed", False):
            self._warn_of_empty_columns()
            known = X.loc[:, self._known]
            imputed = self.estimator_.impute(known, count, random_state=random_state)
            return [self.estimator_.completed(known, sample) for sample in imputed.samples]
        table, missing = self._with_nan(X)
        return self._assembled(table, missing, self._impute(table, count, random_state).samples)

    def _impute(self, table: np.ndarray, samples: int | None = None, random_state: Random = None) -> Any:
        """Impute the columns that had values in training."""
        count = self.samples if samples is None else samples
        observed = table[:, self._known].astype(np.float64)
        return self.estimator_.impute(observed, count, rounds=self.rounds, random_state=random_state)

    def _assembled(self, table: np.ndarray, missing: np.ndarray, filled: np.ndarray) -> np.ndarray:
        """Return filled versions `[S, N, known columns]` with empty columns and indicators as the parameters say."""
        parts = filled
        if self.keep_empty_features:
            parts = np.repeat(np.where(missing, 0.0, table)[None], len(filled), 0)
            parts[:, :, self._known] = filled
        else:
            self._warn_of_empty_columns("; keep_empty_features=True fills them with 0")
        if self.indicator_ is not None:
            flags = self.indicator_.transform(table).astype(np.float64)
            parts = np.concatenate([parts, np.repeat(flags[None], len(parts), 0)], 2)
        return parts.astype(table.dtype, copy=False)

    def _warn_of_empty_columns(self, remedy: str = "") -> None:
        """Warn of columns that get lost, as `SimpleImputer` does."""
        empty = np.flatnonzero(~self._known)
        if len(empty):
            names = getattr(self, "feature_names_in_", np.arange(self._known.size))[empty].tolist()
            warnings.warn(f"Columns {names} had no value in fit and are left out{remedy}.", stacklevel=4)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that `transform` gives."""
        check_is_fitted(self, "estimator_")
        if hasattr(input_features, "detach"):
            raise DataError(f"input_features is {describe_value(input_features)}; names are needed.")
        names: Any = super().get_feature_names_out(input_features)
        kept = names if self.keep_empty_features else names[self._known]
        return kept if self.indicator_ is None else np.append(kept, self.indicator_.get_feature_names_out(names))

    def __sklearn_tags__(self) -> Tags:
        """Declare that missing values are accepted, if they are NaN."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._marked_by_nan
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = [np.dtype(kept).name for kept in DTYPES]
        return tags

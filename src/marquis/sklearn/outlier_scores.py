"""Score rows as outliers, explain the scores, and test for drift: what `LaplacianAutoencoder` says about whole rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.errors import DataError
from marquis.sklearn.base import ROWS
from marquis.sklearn.categories import EncodedColumns
from marquis.sklearn.drift import Drift, compare_samples
from marquis.sklearn.entry_predictions import EntryModel
from marquis.sklearn.explanation import Explanation
from marquis.sklearn.gaussian_fit import FittedGaussian
from marquis.sklearn.input_tables import require_finite
from marquis.sklearn.parameter_checks import fraction

DRIFT_ROWS = 2000
"""Largest number of held-out rows whose statistics are kept for `is_drift`."""


@checked_methods
class OutlierScores:
    """Add outlier scores, explanations and the test for drift to the table autoencoder."""

    _columns: EncodedColumns
    _entries: EntryModel
    _entry_log_prob: float
    _inputs: Callable[[np.ndarray], Tensor]
    _draws: Callable[[], torch.Generator]
    _reference: dict[str, np.ndarray]
    _unseen: EntryModel
    _validated: Callable[[Any], np.ndarray]
    offset_: float

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log pseudo-likelihood of each row, `[N]`; smaller for outliers.

        `sum_j log p(x_j | the other entries)` of the standardised row (Besag 1975; docs/method/tasks.md#tables): every
        entry is predicted without having been seen. `explain` has the terms. A missing entry counts as an average entry
        of the training rows, so that rows with more or fewer missing values can be compared. A column that was constant
        in training adds nothing, but -50 where a row differs from the constant, by however much, as an entry ten
        standard deviations away would: a constant has no scale.
        """
        table = self._validated(X)
        scores = self._terms(self._inputs(table))[0].sum(1).numpy() + self._columns.constant_penalty(table).sum(1)
        return require_finite(scores, "scores")

    def _terms(self, x: Tensor, entries: EntryModel | None = None) -> tuple[Tensor, Tensor]:
        """Return the terms of the score of everything that varies, `[N, units]`, and which of it is missing.

        Args:
            x: Standardised rows.
            entries: Other predictions than those of the estimator.
        """
        entries = self._entries if entries is None else entries
        predicted = entries.alone(x)
        log_prob = self._columns.log_prob(x, entries.log_prob(x, predicted), predicted.mean)
        missing = self._columns.missing(x)
        return torch.where(missing, self._entry_log_prob, log_prob), missing

    def decision_function(self, X: Any) -> np.ndarray:
        """Return `score_samples - offset_`, `[N]`: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Return 1 for inliers and -1 for outliers, `[N]`."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def explain(self, X: Any, level: float = 0.9) -> Explanation:
        """Return what every entry adds to the outlier score of its row, and what was expected of it.

        The contributions of a row add up to its score, `-score_samples(X)`. An entry is expected from the other entries
        of its row; its interval contains it with probability `level`, if the row is none of the outliers. Missing
        entries add what an average entry does. Cost: that of `score_samples`.

        Args:
            X: `[N, columns]`.
            level: Probability of the intervals.
        """
        if not fraction("level", level):
            raise DataError(f"level={level!r}: a probability between 0 and 1.")
        table = self._validated(X)
        x, columns = self._inputs(table), self._columns
        predicted = self._entries.alone(x)
        terms = -columns.constant_penalty(table)
        terms[:, columns.units] -= self._terms(x)[0].numpy()
        require_finite(terms, "contributions")
        expected = columns.rows(predicted.mean.numpy())
        half = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2, dtype=torch.float64)))
        wide = half * columns.deviations(predicted.variance.sqrt().numpy())
        names = [str(name) for name in getattr(self, "feature_names_in_", range(table.shape[1]))]
        if not columns.has_categories:
            return Explanation(terms, table, expected, expected - wide, expected + wide, names, level)
        levels = columns.table(expected, names).to_numpy(object)
        return Explanation(terms, X.to_numpy(object), levels, expected - wide, expected + wide, names, level)

    def is_drift(self, X: Any, alpha: float = 0.05) -> Drift:
        """Test whether new rows come from another distribution than the training rows.

        The outlier scores and the epistemic standard deviations of the codes' reconstructions of `X` are compared with
        those of rows that were held out in `fit` by two-sample Kolmogorov-Smirnov tests; the smaller p-value, times
        two, is that of both (Bonferroni). Both samples are scored by models that have seen neither (above 5,000 rows
        the Gaussian has, which hardly matters there). With fewer than 50 rows in `fit` the network has seen all of
        them: the scores by the Gaussian of one half of the rows are compared, with those of the other half. Rows of
        `fit` are no new rows, and can be called drift because they were learnt.

        Args:
            X: `[N, columns]`, rows that were not in `fit`; at least 5.
            alpha: Level of the test: how often rows of the same distribution are called drift.
        """
        table = self._validated(X)
        statistics = self._statistics(self._inputs(table), self._unseen)
        statistics["score"] -= self._columns.constant_penalty(table).sum(1)
        return compare_samples(self._reference, statistics, alpha)

    def _statistics(self, x: Tensor, entries: EntryModel) -> dict[str, np.ndarray]:
        """Return what the test for drift compares: the outlier score and the epistemic uncertainty of rows."""
        variance = [
            entries.network.reconstruct(part, entries.samples, generator=self._draws()).variance.sum(1)
            for part in x.split(ROWS)
        ]
        return {"score": -self._terms(x, entries)[0].sum(1).numpy(), "epistemic": torch.cat(variance).sqrt().numpy()}

    def _keep_reference(self, x: Tensor, held_out: Tensor, apart: EntryModel, fitted: FittedGaussian) -> None:
        """Keep the statistics of rows for `is_drift`, and the models that have not seen these rows.

        Args:
            x: All rows of `fit`.
            held_out: Rows that neither `apart` nor its network was fitted to; there may be none.
            apart: Predictions of single entries.
            fitted: The Gaussian of all rows, whose rank and shrinkage that of half of them gets.
        """
        if len(held_out):
            self._unseen, self._reference = apart, self._statistics(held_out[:DRIFT_ROWS], apart)
            return
        half, other = x[torch.randperm(len(x), generator=self._draws())].tensor_split(2)
        linear, alone = fitted.models_of(half, fitted.gaussian_of(half))
        self._unseen = replace(apart, linear=linear, linear_alone=alone)
        self._reference = {"score": self._statistics(other, self._unseen)["score"]}

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean of the log pseudo-likelihood of rows, missing entries left out; `y` is ignored.

        For choosing `n_components` and the rest on held-out rows: every entry is predicted without having been seen, so
        that, unlike the likelihood of a reconstruction, it does not always prefer the longer code.
        """
        table = self._validated(X)
        terms, missing = self._terms(self._inputs(table))
        return float(terms[~missing].sum() + self._columns.constant_penalty(table).sum()) / len(table)

"""Imputers and outlier detectors of the study `tabular`, all with their default settings.

All methods see standardised columns, which scikit-learn's distances and ridges need; errors and widths are in that
unit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # pyright: ignore[reportUnusedImport]
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor

from marquis.sklearn import LaplacianAutoencoder, LaplacianImputer
from marquis_experiments.tables.data import HiddenTable, OutlierTable

NORMAL_QUANTILE = 1.6448536269514722
"""The 95 % quantile of the normal distribution: half the width of a 90 % interval in standard deviations."""
CALIBRATED = 0.2
"""Share of the observed entries that is hidden to calibrate the intervals of `KNNImputer`."""
DRAWS = 50
"""Imputations of `IterativeImputer` for its intervals."""
OURS = "Laplacian autoencoder"
IMPUTER, ITERATIVE, MEAN = "LaplacianImputer", "IterativeImputer", "column mean"
EXPLAINED = 0.9
"""Share of the variance that the principal components have to explain."""

Filled = tuple[np.ndarray, ...]
"""Centres of all entries, half widths of their intervals for methods that have them, and centres by our linear part."""


def imputation_scores(method: str, table: HiddenTable, seed: int) -> dict[str, float]:
    """Compute the RMSE over the missing entries, and coverage, width and score of the 90 % intervals, if any."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\\[IterativeImputer\\] Early stopping")
        middle, *rest = IMPUTERS[method](table.holes, seed)
    hidden = np.isnan(table.holes)
    errors = (table.truth - middle)[hidden]
    scores = {"rmse": float(np.sqrt((errors**2).mean()))}
    if rest:
        scores |= interval_scores(errors, rest[0][hidden])
    if len(rest) > 1:
        scores["rmse_linear"] = float(np.sqrt(((table.truth - rest[1])[hidden] ** 2).mean()))
    return scores


def interval_scores(errors: np.ndarray, half: np.ndarray) -> dict[str, float]:
    """Compute coverage, mean width and interval score (Gneiting and Raftery 2007, 6.2).

    The score is the width plus `2 / 0.1` times the distance by which the interval misses: least, in expectation, for
    the interval between the true 5 % and 95 % quantiles.

    Args:
        errors: Truth minus the interval's centre.
        half: Half the interval's width.
    """
    missed = np.maximum(np.abs(errors) - half, 0)
    return {
        "coverage": float((missed == 0).mean()),
        "width": float(2 * half.mean()),
        "interval_score": float((2 * half + 20 * missed).mean()),
    }


def mean_of_column(table: np.ndarray, seed: int) -> Filled:
    """Impute by `SimpleImputer`, with the column's standard deviation as that of a missing value."""
    filled: Any = SimpleImputer().fit_transform(table)
    return filled, np.broadcast_to(NORMAL_QUANTILE * np.nanstd(table, 0), table.shape)


def neighbours(table: np.ndarray, seed: int) -> Filled:
    """Impute by `KNNImputer`; a half width is the 90 % quantile of its errors of hidden entries, by column.

    A fifth of the observed entries is hidden for that, at least one of every column.
    """
    filled: Any = KNNImputer().fit_transform(table)
    source = np.random.default_rng(seed)
    hidden = (source.random(table.shape) < CALIBRATED) & ~np.isnan(table)
    for column in range(table.shape[1]):
        if not hidden[:, column].any():
            hidden[source.choice(np.flatnonzero(~np.isnan(table[:, column]))), column] = True
    # An entry that no neighbour has is filled with the column's mean, so columns are never left out.
    again: Any = KNNImputer(keep_empty_features=True).fit_transform(np.where(hidden, np.nan, table))
    errors = np.where(hidden, np.abs(again - table), np.nan)
    return filled, np.broadcast_to(np.nanquantile(errors, 0.9, axis=0), table.shape)


def in_turns(table: np.ndarray, seed: int) -> Filled:
    """Impute by `IterativeImputer`; standard deviations are over `DRAWS` imputations with `sample_posterior`.

    Rows are sampled independently, so all imputations are made at once, of a table with copies of each row.
    """
    filled: Any = IterativeImputer(random_state=seed).fit_transform(table)
    drawing: Any = IterativeImputer(sample_posterior=True, random_state=seed).fit(table)
    imputations = drawing.transform(np.tile(table, (DRAWS, 1))).reshape(DRAWS, *table.shape)
    return filled, NORMAL_QUANTILE * imputations.std(0, ddof=1)


def autoencoder(table: np.ndarray, seed: int) -> Filled:
    """Impute by `LaplacianImputer`."""
    model = LaplacianImputer(random_state=seed).fit(table)
    fitted = model.estimator_
    imputed = fitted.impute(table, model.samples)
    linear = fitted._columns.rows(fitted.model_.linear.filled(fitted._inputs(table)).numpy())
    return imputed.mean, NORMAL_QUANTILE * imputed.std, np.where(imputed.missing, linear, table)


IMPUTERS: dict[str, Callable[[np.ndarray, int], Filled]] = {
    IMPUTER: autoencoder,
    ITERATIVE: in_turns,
    "KNNImputer": neighbours,
    MEAN: mean_of_column,
}


def outlier_scores(method: str, table: OutlierTable, seed: int) -> dict[str, float]:
    """Compute the AUROC of a detector's outlier scores."""
    scores = DETECTORS[method](table.train, np.concatenate([table.inside, table.outside]), seed)
    labels = np.repeat([0, 1], [len(table.inside), len(table.outside)])
    return {"auroc": float(roc_auc_score(labels, scores))}


def outlyingness(estimator: Any, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit an estimator and return minus its scores."""
    return -estimator.fit(train).score_samples(test)


def by_components(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Score by the squared distance to the principal components that explain `EXPLAINED` of the variance."""
    model = PCA(EXPLAINED, svd_solver="full").fit(train)
    return ((test - model.inverse_transform(model.transform(test))) ** 2).sum(1)


DETECTORS: dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    OURS: lambda train, test, seed: outlyingness(LaplacianAutoencoder(random_state=seed), train, test),
    "IsolationForest": lambda train, test, seed: outlyingness(IsolationForest(random_state=seed), train, test),
    "LocalOutlierFactor": lambda train, test, seed: outlyingness(LocalOutlierFactor(novelty=True), train, test),
    "PCA": by_components,
}

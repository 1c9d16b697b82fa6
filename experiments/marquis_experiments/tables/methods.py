"""Imputers and outlier detectors of the study `tabular`, all with their default settings.

All methods see standardised columns, which scikit-learn's distances and ridges need; errors and widths are in that
unit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from marquis_experiments.tables.data import HiddenTable, OutlierTable

NORMAL_QUANTILE = 1.6448536269514722
"""The 95 % quantile of the normal distribution: half the width of a 90 % interval in standard deviations."""
DRAWS = 50
"""Imputations of `IterativeImputer` for its intervals."""
OURS, OURS_HALF = "Laplacian autoencoder", "the same, longer code"
IMPUTER, ITERATIVE, MEAN = "LaplacianImputer", "IterativeImputer", "column mean"
EXPLAINED = 0.9
"""Share of the variance that the principal components have to explain."""

Filled = tuple[np.ndarray, np.ndarray | None]
"""Centres and half widths of the intervals of all entries; None for methods without intervals."""


def imputation_scores(method: str, table: HiddenTable, seed: int) -> dict[str, float]:
    """Compute the RMSE over the missing entries, and coverage, width and score of the 90 % intervals, if any."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\\[IterativeImputer\\] Early stopping")
        middle, half = IMPUTERS[method](table.holes, seed)
    hidden = np.isnan(table.holes)
    away = (table.truth - middle)[hidden]
    scores = {"rmse": float(np.sqrt((away**2).mean()))}
    return scores if half is None else scores | interval_scores(away, half[hidden])


def interval_scores(away: np.ndarray, half: np.ndarray) -> dict[str, float]:
    """Compute coverage, mean width and interval score (Gneiting and Raftery 2007, 6.2).

    The score is the width plus `2 / 0.1` times the distance by which the interval misses: least, in expectation, for
    the interval between the true 5 % and 95 % quantiles.

    Args:
        away: Truth minus the interval's centre.
        half: Half the interval's width.
    """
    missed = np.maximum(np.abs(away) - half, 0)
    return {
        "coverage": float((missed == 0).mean()),
        "width": float(2 * half.mean()),
        "interval_score": float((2 * half + 20 * missed).mean()),
    }


def mean_of_column(holes: np.ndarray, seed: int) -> Filled:
    """Impute by `SimpleImputer`, with the column's standard deviation as that of a missing value."""
    from sklearn.impute import SimpleImputer

    filled: Any = SimpleImputer().fit_transform(holes)
    return filled, np.broadcast_to(NORMAL_QUANTILE * np.nanstd(holes, 0), holes.shape)


def neighbours(holes: np.ndarray, seed: int) -> Filled:
    """Impute by `KNNImputer`, which has no intervals."""
    from sklearn.impute import KNNImputer

    filled: Any = KNNImputer().fit_transform(holes)
    return filled, None


def in_turns(holes: np.ndarray, seed: int) -> Filled:
    """Impute by `IterativeImputer`; standard deviations are over `DRAWS` imputations with `sample_posterior`.

    Rows are sampled independently, so all imputations are made at once, of a table with copies of each row.
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from sklearn.impute import IterativeImputer

    filled: Any = IterativeImputer(random_state=seed).fit_transform(holes)
    drawing: Any = IterativeImputer(sample_posterior=True, random_state=seed).fit(holes)
    drawn = drawing.transform(np.tile(holes, (DRAWS, 1))).reshape(DRAWS, *holes.shape)
    return filled, NORMAL_QUANTILE * drawn.std(0, ddof=1)


def autoencoder(holes: np.ndarray, seed: int) -> Filled:
    """Impute by `LaplacianImputer`."""
    from marquis.sklearn import LaplacianImputer

    model = LaplacianImputer(random_state=seed).fit(holes)
    return model.transform(holes), NORMAL_QUANTILE * model.estimator_.impute(holes, model.samples).std


IMPUTERS: dict[str, Callable[[np.ndarray, int], Filled]] = {
    IMPUTER: autoencoder,
    ITERATIVE: in_turns,
    "KNNImputer": neighbours,
    MEAN: mean_of_column,
}


def outlier_scores(method: str, table: OutlierTable, seed: int) -> dict[str, float]:
    """Compute the AUROC of a detector's outlier scores."""
    from sklearn.metrics import roc_auc_score

    scores = DETECTORS[method](table.train, np.concatenate([table.inside, table.outside]), seed)
    labels = np.repeat([0, 1], [len(table.inside), len(table.outside)])
    return {"auroc": float(roc_auc_score(labels, scores))}


def by_autoencoder(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Score by `LaplacianAutoencoder`: minus the log-likelihood."""
    from marquis.sklearn import LaplacianAutoencoder

    return -LaplacianAutoencoder(random_state=seed).fit(train).score_samples(test)


def by_longer_code(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Score by `LaplacianAutoencoder` with a code as long as that of `LaplacianImputer`."""
    from marquis.sklearn import LaplacianAutoencoder

    code = min(max(2, train.shape[1] // 2), 10)
    return -LaplacianAutoencoder(code, random_state=seed).fit(train).score_samples(test)


def by_isolation(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Score by `IsolationForest`."""
    from sklearn.ensemble import IsolationForest

    return -IsolationForest(random_state=seed).fit(train).score_samples(test)


def by_local_density(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Score by `LocalOutlierFactor`."""
    from sklearn.neighbors import LocalOutlierFactor

    return -LocalOutlierFactor(novelty=True).fit(train).score_samples(test)


def by_components(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Score by the squared distance to the principal components that explain `EXPLAINED` of the variance."""
    from sklearn.decomposition import PCA

    model = PCA(EXPLAINED, svd_solver="full").fit(train)
    return ((test - model.inverse_transform(model.transform(test))) ** 2).sum(1)


DETECTORS: dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    OURS: by_autoencoder,
    OURS_HALF: by_longer_code,
    "IsolationForest": by_isolation,
    "LocalOutlierFactor": by_local_density,
    "PCA": by_components,
}

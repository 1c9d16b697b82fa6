"""Calibrate intervals, sets and p-values by split conformal prediction, valid for any model on exchangeable data.

Calibration data must be exchangeable with new data and unseen by the model. Then an interval or set holds the label of
a new example with probability at least `1 - alpha`, and, where scores are continuous, at most `1 - alpha + 1/(n + 1)`;
both are averages over calibration sets and new examples (Vovk et al. 2005; docs/method/predictive.md#conformal).
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from marquis.arguments import FromZero, Share, as_numbers, checked, checked_methods, require_probabilities
from marquis.errors import DataError, UnsupportedOperationError
from marquis.predictive import Prediction


@checked
def quantile(scores: ArrayLike, alpha: Share) -> np.ndarray:
    """Return the `ceil((n + 1)(1 - alpha))`-th smallest score of every column, `[*rest]` for scores `[n, *rest]`.

    NaN scores (labels that were not observed) are left out, column by column.

    Warns:
        UserWarning: the scores are too few for this alpha (fewer than `1/alpha - 1`): the quantile is infinite.
    """
    values = as_numbers("scores", scores)
    if values.ndim == 0:
        raise DataError("scores need one row per calibration example.")
    counts = (~np.isnan(values)).sum(0)
    # A little below the exact product: 0.9 * 10 must not become the rank 10 by rounding.
    rank = np.ceil((counts + 1) * (1 - alpha) - 1e-9).astype(int)
    ordered = np.concatenate([np.sort(values, 0), np.full((1, *values.shape[1:]), np.inf)])  # NaN is sorted to the end
    if np.any(rank > counts):
        warnings.warn(
            f"{int(np.min(counts))} calibration examples are too few for alpha={alpha}, which needs at least "
            f"{math.ceil(1 / alpha - 1 - 1e-9)}: intervals are infinite and sets hold every class.",
            stacklevel=3,
        )
    index = np.where(rank > counts, len(values), np.maximum(rank, 1) - 1)
    return np.take_along_axis(ordered, index[None], 0)[0]


@checked_methods
@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """Compute intervals `mean ± q scale`, q the quantile of `|y - mean| / scale` of calibration data, per output.

    Attributes:
        scores: of the calibration data, `[n, *rest]`; NaN where there was no label.
    """

    scores: np.ndarray

    @classmethod
    def calibrate(cls, mean: ArrayLike, scale: ArrayLike, y: ArrayLike) -> ConformalIntervals:
        """Return intervals calibrated on predictions `mean`, `scale` of labels `y`, all `[n, *rest]`.

        Raises:
            DataError: shapes differ, or a scale is not positive.
        """
        mean, scale, y = as_numbers("mean", mean), as_numbers("scale", scale), as_numbers("y", y)
        if not mean.shape == scale.shape == y.shape or not np.all(scale[~np.isnan(y)] > 0):
            raise DataError(
                f"mean {mean.shape}, scale {scale.shape} and labels {y.shape} need one shape, and scales be positive."
            )
        return cls(np.abs(y - mean) / scale)

    def interval(self, mean: ArrayLike, scale: ArrayLike, alpha: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper limits, shaped like the mean."""
        mean, spread = as_numbers("mean", mean), as_numbers("scale", scale)
        width = quantile(self.scores, alpha)
        if mean.shape != spread.shape or mean.shape[mean.ndim - width.ndim :] != width.shape or not np.all(spread > 0):
            raise DataError(
                f"mean {mean.shape} and scale {spread.shape} need one shape, scales > 0, columns {width.shape}."
            )
        spread = spread * width
        return mean - spread, mean + spread


@checked_methods
@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Compute adaptive prediction sets: classes by decreasing probability up to a calibrated share (Romano 2020).

    A class's score is the probability of all classes before it plus a uniform share of its own, so that scores are
    continuous and coverage is not too large. A row's uniform number depends on a seed and on its probabilities alone:
    its set is the same by itself and among others.

    Attributes:
        scores: of the labels of the calibration data, `[n]`.
    """

    scores: np.ndarray

    @classmethod
    def calibrate(cls, probs: ArrayLike, y: ArrayLike, random_state: FromZero = 0) -> ConformalSets:
        """Return sets calibrated on probabilities `[n, classes]` and class numbers `y [n]`."""
        probs, y = as_numbers("probs", probs), np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
        require_probabilities(probs)
        fits = y.shape == probs.shape[:1] and np.issubdtype(y.dtype, np.integer)
        if not fits or (len(y) and not 0 <= y.min() <= y.max() < probs.shape[1]):
            raise DataError(f"probabilities {probs.shape} need [n, classes], labels {y.shape} [n] class numbers.")
        return cls(_adaptive_scores(probs, random_state)[np.arange(len(y)), y])

    def sets(self, probs: ArrayLike, alpha: float = 0.1, random_state: FromZero = 1) -> np.ndarray:
        """Return which classes belong to the set of every row, booleans `[N, classes]`; some sets can be empty."""
        limit, table = quantile(self.scores, alpha), as_numbers("probs", probs)
        require_probabilities(table)
        if limit.ndim:
            raise DataError(f"calibration scores {self.scores.shape} need [n].")
        return _adaptive_scores(table, random_state) <= limit


def _adaptive_scores(probs: np.ndarray, random_state: int) -> np.ndarray:
    """Return the score of every class `[N, classes]`."""
    order = np.argsort(-probs, 1, kind="stable")
    ranked = np.take_along_axis(probs, order, 1)
    scores, share = np.empty_like(probs), _uniform_numbers(probs, random_state)
    np.put_along_axis(scores, order, np.cumsum(ranked, 1) - ranked + share[:, None] * ranked, 1)
    return scores


def _uniform_numbers(rows: np.ndarray, random_state: int) -> np.ndarray:
    """Return a pseudo-random number below 1 per row, from the row and the seed; equal rows are told apart by a count.

    By their places, rows that are predicted one at a time would all have the first number of the seed, and no coverage.
    """
    seed, counts = str(random_state).encode(), Counter[bytes]()
    numbers = np.empty(len(rows))
    for i, row in enumerate(rows):
        text = row.tobytes()
        digest = blake2b(text + counts[text].to_bytes(8, "little"), key=seed[:64], digest_size=8).digest()
        numbers[i] = (int.from_bytes(digest, "little") >> 11) / 2**53
        counts[text] += 1
    return numbers


@checked
def p_values(calibration: ArrayLike, scores: ArrayLike) -> np.ndarray:
    """Return `(1 + #{calibration >= score}) / (n + 1)`: outlier p-values for scores that are larger for outliers.

    Of new data like the calibration data at most a share alpha has `p <= alpha`, on average over calibration sets.

    Args:
        calibration: outlier scores of ordinary data that the model has not seen, `[n]`.
        scores: of new data.
    """
    ordered, scores = np.sort(as_numbers("calibration", calibration).ravel()), as_numbers("scores", scores)
    if len(ordered) == 0 or not np.all(np.isfinite(ordered)) or np.any(np.isnan(scores)):
        raise DataError("p-values need finite outlier scores of calibration data, and new scores without NaN.")
    return (1 + len(ordered) - np.searchsorted(ordered, scores, side="left")) / (len(ordered) + 1)


@checked_methods
@dataclass(frozen=True, eq=False)
class Conformal:
    """Calibrate `Prediction` objects; made by `calibrate`.

    Attributes:
        inner: the intervals or sets.
    """

    inner: ConformalIntervals | ConformalSets

    def interval(self, prediction: Prediction, alpha: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return lower and upper limits of new observations, shaped like the mean."""
        if not isinstance(self.inner, ConformalIntervals):
            raise UnsupportedOperationError("these are classes: use .sets(prediction, alpha).")
        limits = self.inner.interval(_array(prediction.mean), _array(prediction.std), alpha)
        return torch.from_numpy(limits[0]), torch.from_numpy(limits[1])

    def sets(self, prediction: Prediction, alpha: float = 0.1, random_state: FromZero = 1) -> torch.Tensor:
        """Return which classes belong to the set of every input, booleans `[B, classes]`."""
        if not isinstance(self.inner, ConformalSets):
            raise UnsupportedOperationError("this is a regression: use .interval(prediction, alpha).")
        return torch.from_numpy(self.inner.sets(_class_probs(prediction), alpha, random_state))


@checked
def calibrate(prediction: Prediction, y: torch.Tensor, random_state: FromZero = 0) -> Conformal:
    """Calibrate on predictions of unseen examples with labels: intervals for regression, sets for classes.

    Args:
        prediction: of calibration inputs, for instance `la.predict(x)`.
        y: their labels.
        random_state: seed of the sets' uniform numbers.
    """
    if prediction.probs is None:
        return Conformal(ConformalIntervals.calibrate(_array(prediction.mean), _array(prediction.std), _array(y)))
    labels = _array(y).astype(np.int64).reshape(len(prediction.probs), -1)
    probs = _class_probs(prediction)
    if labels.shape[1] != 1 or probs.ndim != 2:
        raise UnsupportedOperationError("sets are for one label per input, not for several labels or pixels.")
    return Conformal(ConformalSets.calibrate(probs, labels[:, 0], random_state))


def _class_probs(prediction: Prediction) -> np.ndarray:
    """Return probabilities `[B, classes]`; a single probability becomes two."""
    probs: Any = _array(prediction.probs)
    return np.concatenate([1 - probs, probs], 1) if probs.ndim == 2 and probs.shape[1] == 1 else probs


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor as an array in double precision."""
    return tensor.detach().double().cpu().numpy()

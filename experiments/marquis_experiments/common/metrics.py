"""Scores and statistics that several studies report."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev

import torch
from torch import Tensor

from marquis.likelihoods.base import Predictive
from marquis.predictive.prediction import Prediction
from marquis.tasks.calibration import expected_calibration_error


def classification_scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute negative log-likelihood, accuracy and expected calibration error of probabilities `[n, C]`."""
    chosen = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return {
        "nll": float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()),
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "ece": expected_calibration_error(probs, labels),
    }


def with_error_of_nll(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute `classification_scores` with the standard error of the negative log-likelihood over rows."""
    chosen = probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    losses = -chosen.clamp_min(torch.finfo(probs.dtype).tiny).log()
    return {**classification_scores(probs, labels), "nll_error": float(losses.std() / len(losses) ** 0.5)}


def probabilities(prediction: Predictive | Prediction) -> Tensor:
    """Return the class probabilities of a prediction that has them."""
    assert prediction.probs is not None
    return prediction.probs


def standard_error(values: Sequence[float]) -> float:
    """Compute the standard error of the mean; 0 for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def p_value(errors: float, count: int) -> float:
    """Compute the two-sided p-value of a mean of paired differences, that many standard errors from zero."""
    from scipy.stats import t

    return float(2 * t.sf(errors, count - 1))


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Compute Spearman's rank correlation, without ties."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def standard_error_of_auroc(area: float, count: int) -> float:
    """Compute the standard error of an AUROC over test images, `count` on each side (Hanley and McNeil, 1982)."""
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (count - 1) * (first + second - 2 * area**2)
    return (variance / count**2) ** 0.5

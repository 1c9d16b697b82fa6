"""Scores of class probabilities (methods.md 8.1, 8.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.tasks.calibration import expected_calibration_error


def classification_scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Negative log-likelihood, accuracy and expected calibration error of probabilities `[n, C]`."""
    chosen = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return {
        "nll": float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()),
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "ece": expected_calibration_error(probs, labels),
    }


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Area under the ROC curve of a score that should be larger outside (methods.md 8.1).

    The probability that an outside score exceeds an inside one, ties counting one half: Mann-Whitney with mid-ranks.
    Below 0.5 where the score points the wrong way; nothing is flipped. Cost O(n log n).

    Args:
        inside: scores of in-distribution data `[n]`.
        outside: scores of out-of-distribution data `[m]`.
    """
    both = torch.cat([inside.flatten(), outside.flatten()]).double()
    if bool(both.isnan().any()) or inside.numel() == 0 or outside.numel() == 0:
        raise DataError("AUROC needs scores of both kinds, and none of them NaN.")
    _, place, counts = torch.unique(both, return_inverse=True, return_counts=True)
    middle = counts.cumsum(0) - (counts - 1) / 2  # mean of the ranks, from 1, that equal scores share
    n, m = inside.numel(), outside.numel()
    ranks = middle[place[n:]].double().sum()
    return float((ranks - m * (m + 1) / 2) / (n * m))

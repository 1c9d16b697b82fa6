"""Scores of class probabilities (methods.md 8.3)."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15


def classification_scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Negative log-likelihood, accuracy and expected calibration error of probabilities `[n, C]`."""
    chosen = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return {
        "nll": float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()),
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "ece": expected_calibration_error(probs, labels),
    }


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """`Σ_m w_m |accuracy_m - confidence_m|` over equal-width bins of the confidence, closed on the right."""
    confidence, chosen = probs.double().max(1)
    correct = (chosen == labels).double()
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, correct - confidence)
    return float(gap.abs().sum() / len(labels))

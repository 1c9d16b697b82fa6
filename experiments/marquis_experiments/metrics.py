"""Scores of class probabilities (methods.md 8.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.tasks.calibration import expected_calibration_error


def classification_scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Negative log-likelihood, accuracy and expected calibration error of probabilities `[n, C]`."""
    chosen = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return {
        "nll": float(-chosen.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()),
        "accuracy": float((probs.argmax(1) == labels).double().mean()),
        "ece": expected_calibration_error(probs, labels),
    }

"""Decide which epoch of a training is the best, and when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class StoppingRule:
    """Keep track of the best epoch by its validation loss, and decide when training stops.

    Training stops after `patience` epochs in a row without improvement, or at a loss that is not finite. Without
    validation data there is no loss: every epoch then counts as an improvement, so that the last one is the best.

    Attributes:
        patience: Number of epochs without improvement after which training stops.
        tolerance: A loss is an improvement if it is smaller than the best one by more than this.
        best_epoch: Number of the best epoch, from 0; -1 before the first.
        best_loss: Its validation loss; infinite where there is none.
        waited: Number of epochs since the last improvement.
        diverged: Whether the last loss was not finite.
    """

    patience: int
    tolerance: float = 0.0
    best_epoch: int = -1
    best_loss: float = math.inf
    waited: int = 0
    diverged: bool = False

    def update(self, epoch: int, loss: float | None) -> bool:
        """Take an epoch's validation loss (None without validation data); return whether it is an improvement."""
        self.diverged = loss is not None and not math.isfinite(loss)
        if loss is None or loss < self.best_loss - self.tolerance:
            self.best_epoch, self.best_loss, self.waited = epoch, math.inf if loss is None else loss, 0
            return True
        self.waited += 1
        return False

    @property
    def exhausted(self) -> bool:
        """Return whether the loss has not improved for `patience` epochs."""
        return self.waited >= self.patience

    @property
    def should_stop(self) -> bool:
        """Return whether training is over."""
        return self.exhausted or self.diverged

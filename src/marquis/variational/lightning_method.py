"""Train any of the methods under a Lightning `Trainer`. Imported on first use: Lightning is heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from marquis.arguments import checked
from marquis.functional.call import run
from marquis.functional.checks import batch_size
from marquis.likelihoods import Predictive
from marquis.variational.base import Method, evaluation_mode, inputs_and_labels


class LightningMethod(LightningModule):
    """Train any of the methods as a `LightningModule`, with the paper's schedule by default.

    Batches are `(x, y)`; without labels (`x` alone, or `(x,)`) the inputs are the labels: an autoencoder. Logged:
    `train_loss` and the terms of the objective; `validation_nll` and `test_nll` of the mean network.

    Args:
        method: `VariationalLaplace`, `MeanFieldVI` or `MAP`.
        lr: Learning rate of the means; log σ has its multiple (VL: 1e-4).
        milestones: Epochs after which the learning rates are divided by ten (VL: 100 and 150 of 200).
    """

    @checked
    def __init__(self, method: Method, lr: float = 1e-4, milestones: Sequence[int] = (100, 150)) -> None:
        super().__init__()
        self.method, self.lr, self.milestones = method, lr, tuple(milestones)

    def forward(self, x: Any) -> Tensor:
        """Return outputs of the mean network."""
        return self.method(x)

    @checked
    def predict(self, x: Any, samples: int = 0) -> Predictive:
        """Call the method's `predict`."""
        return self.method.predict(x, samples)

    def configure_optimizers(self) -> Any:
        """Return Adam with the method's parameter groups; learning rates are divided by ten at the milestones."""
        optimiser = torch.optim.Adam(self.method.parameter_groups(self.lr))
        return [optimiser], [torch.optim.lr_scheduler.MultiStepLR(optimiser, list(self.milestones), 0.1)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of one minibatch and log its terms."""
        x, y = inputs_and_labels(batch)
        loss = self.method.step(x, y)
        terms, size = self.method.last_terms, batch_size(x)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=size)
        if terms is not None:
            for name in ("log_likelihood", "regulariser", "penalty"):
                self.log(f"train_{name}", getattr(terms, name), batch_size=size)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the negative log-likelihood of the mean network."""
        self._evaluate(batch, "validation_nll")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the negative log-likelihood of the mean network."""
        self._evaluate(batch, "test_nll")

    def _evaluate(self, batch: Any, name: str) -> None:
        """Log the negative log-likelihood of a batch at the mean."""
        x, y = inputs_and_labels(batch)
        with torch.no_grad(), evaluation_mode(self.method.network):
            nll = -self.method.likelihood.log_prob(run(self.method.network, x), x if y is None else y).mean()
        self.log(name, nll, prog_bar=True, batch_size=batch_size(x))

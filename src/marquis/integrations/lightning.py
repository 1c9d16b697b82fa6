"""A Lightning callback that gives a trained module its posterior at the end of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from marquis.errors import DataError
from marquis.functional.replica import replicate
from marquis.laplace import Laplace
from marquis.likelihoods import Likelihood
from marquis.loaders import read_batches
from marquis.tasks.calibration import expected_calibration_error


class LaplaceCallback(Callback):
    """Fit and tune a `Laplace` on the training data when training ends, log evidence and calibration, and save it.

    Logged once: `laplace/log_evidence`; with one validation loader `laplace/val_nll`, and for classes
    `laplace/val_ece`. In a group of processes each fits its share, and all get the posterior of all data.

    Args:
        likelihood: p(y|f).
        module: Which part of the LightningModule is the network; the module itself by default.
        path: Where the posterior is saved; beside the best checkpoint by default, nowhere if there is none.
        options: Passed to `Laplace`.

    Attributes:
        laplace: The posterior after `trainer.fit`, of the network in evaluation mode (its own flags are left alone).
    """

    def __init__(
        self,
        likelihood: str | Likelihood | Any,
        module: Callable[[LightningModule], nn.Module] | None = None,
        path: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._likelihood, self._module, self._path, self._options = likelihood, module, path, options
        self.laplace: Laplace | None = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, tune, log and save."""
        network = pl_module if self._module is None else self._module(pl_module)
        loader = trainer.train_dataloader
        if loader is None:
            raise DataError("the trainer has no training data to fit a posterior on.")
        laplace = Laplace(replicate(network, {})[0].eval(), self._likelihood, **self._options)
        laplace.fit(loader, progress=False)
        laplace.tune()
        self.laplace = laplace
        metrics = {"laplace/log_evidence": float(laplace.log_evidence())}
        metrics |= self._validation(trainer, laplace)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)
        trainer.callback_metrics.update({name: laplace.posterior.vector.new_tensor(v) for name, v in metrics.items()})
        path = self._where(trainer)
        if path is not None and trainer.is_global_zero:
            laplace.save(path)

    def _where(self, trainer: Trainer) -> Path | None:
        if self._path is not None:
            return Path(self._path)
        checkpoint = trainer.checkpoint_callback
        best = getattr(checkpoint, "best_model_path", "")
        return Path(best).with_suffix(".laplace.mq") if best else None

    @staticmethod
    def _validation(trainer: Trainer, laplace: Laplace) -> dict[str, float]:
        loaders = trainer.val_dataloaders
        if loaders is None or isinstance(loaders, (list, dict)):
            return {}
        labels = torch.cat([batch.y for batch in read_batches(loaders, labels_for="calibration")])
        prediction = laplace.predict_loader(loaders, progress=False)
        metrics = {"laplace/val_nll": -float(prediction.log_prob(labels).mean())}
        if prediction.probs is not None and prediction.probs.dim() == 2 and labels.dim() == 1:
            metrics["laplace/val_ece"] = expected_calibration_error(prediction.probs, labels)
        return metrics

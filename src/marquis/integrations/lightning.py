"""Give a trained Lightning module its posterior at the end of `fit`, by a callback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from marquis.arguments import checked_methods
from marquis.errors import DataError
from marquis.functional.replica import replicate
from marquis.laplace import Laplace
from marquis.likelihoods import Likelihood
from marquis.loaders import read_batches
from marquis.online import OnlineLaplace
from marquis.tasks.calibration import expected_calibration_error


@checked_methods
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
        """Fit and tune the posterior, log its evidence and calibration, and save it."""
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
        """Return the file for the posterior: the user's, or beside the best checkpoint."""
        if self._path is not None:
            return Path(self._path)
        checkpoint = trainer.checkpoint_callback
        best = getattr(checkpoint, "best_model_path", "")
        return Path(best).with_suffix(".laplace.mq") if best else None

    @staticmethod
    def _validation(trainer: Trainer, laplace: Laplace) -> dict[str, float]:
        """Return the metrics of the validation data."""
        loaders = trainer.val_dataloaders
        if loaders is None or isinstance(loaders, (list, dict)):
            return {}
        labels = torch.cat([batch.y for batch in read_batches(loaders, labels_for="calibration")])
        prediction = laplace.predict_loader(loaders, progress=False)
        metrics = {"laplace/val_nll": -float(prediction.log_prob(labels).mean())}
        if prediction.probs is not None and prediction.probs.dim() == 2 and labels.dim() == 1:
            metrics["laplace/val_ece"] = expected_calibration_error(prediction.probs, labels)
        return metrics


class OnlineLaplaceCheckpoint(Callback):
    """Save and restore every `OnlineLaplace` that is an attribute of the LightningModule.

    The network's weights are in a checkpoint anyway; curvature, noise, prior and random states are not.
    """

    KEY = "marquis_online_laplace"

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the state of every learner to the checkpoint, by the name of its attribute."""
        checkpoint[self.KEY] = {name: learner.state_dict() for name, learner in self._learners(pl_module).items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the state of every learner.

        Raises:
            DataError: The checkpoint lacks one.
        """
        states = checkpoint.get(self.KEY, {})
        for name, learner in self._learners(pl_module).items():
            if name not in states:
                raise DataError(
                    f"the checkpoint has no curvature of {name}: it was written without OnlineLaplaceCheckpoint, and "
                    "training would go on with none; train anew with this callback."
                )
            learner.load_state_dict(states[name])

    @staticmethod
    def _learners(module: LightningModule) -> dict[str, OnlineLaplace]:
        learners = {name: value for name, value in vars(module).items() if isinstance(value, OnlineLaplace)}
        if not learners:
            raise DataError(f"{type(module).__name__} has no attribute that is an OnlineLaplace to save.")
        return learners

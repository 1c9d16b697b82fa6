"""What makes an interrupted training go on as if nothing had happened: checkpoints at the end of every epoch."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.plugins.io import TorchCheckpointIO

from marquis.errors import DataError
from marquis.io.atomic import replacing

MONITOR = "validation_loss"


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """A checkpoint as numbers, strings and tensors; nothing in the file is executed.

    Raises:
        DataError: There is no such file, it is truncated, or it holds more than data.
    """
    if not Path(path).is_file():
        raise DataError(f"there is no checkpoint {path}.")
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is no checkpoint of ours, or a damaged one ({reason}).") from error


def restore(module: LightningModule, path: str | os.PathLike[str]) -> None:
    """Weights, buffers and whatever else the module puts into checkpoints; the optimiser is left out."""
    checkpoint = read_checkpoint(path)
    module.load_state_dict(checkpoint["state_dict"])
    module.on_load_checkpoint(checkpoint)


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically and never runs code when it reads them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Next to the destination, then renamed."""
        with replacing(path) as temporary:
            torch.save(checkpoint, temporary)

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Tensors and plain values only, whatever the caller says about `weights_only`."""
        return read_checkpoint(path, "cpu" if map_location is None else map_location)


class EpochCheckpoints(Checkpoint):
    """`last.ckpt` after every epoch, and before it `best.ckpt` if the validation loss was never smaller.

    Lightning's own callback makes up new names for the best file, deletes the old one before `last` is written, and
    forgets the best when a folder is moved. Here a process may die between any two steps: going on from `last`
    repeats the epoch and writes the same `best` again.

    Attributes:
        best_epoch: Number of the epoch in `best.ckpt`, from 0.
        best_loss: Its validation loss; infinite where there are no validation data, and the last epoch is the best.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.last, self.best = folder / "last.ckpt", folder / "best.ckpt"
        self.best_epoch, self.best_loss = -1, math.inf

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what this epoch has come to."""
        loss = trainer.callback_metrics.get(MONITOR)
        if loss is None or float(loss) < self.best_loss:
            self.best_epoch = trainer.current_epoch
            self.best_loss = math.inf if loss is None else float(loss)
            trainer.save_checkpoint(self.best, weights_only=True)
        trainer.save_checkpoint(self.last, weights_only=False)

    def state_dict(self) -> dict[str, Any]:
        """Which epoch was the best so far."""
        return {"best_epoch": self.best_epoch, "best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Likewise."""
        self.best_epoch, self.best_loss = int(state_dict["best_epoch"]), float(state_dict["best_loss"])


class Patience(EarlyStopping):
    """Early stopping on the validation loss that also stops a run which is resumed after it had stopped."""

    def __init__(self, epochs: int) -> None:
        # not strict: without validation data there is nothing to stop for
        super().__init__(MONITOR, patience=epochs, strict=False)

    @property
    def exhausted(self) -> bool:
        """Whether the loss has not improved for so many epochs."""
        return self.wait_count >= self.patience

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning does not remember the decision, only the count."""
        if self.exhausted:
            trainer.should_stop = True


class PlateauSteps(Callback):
    """Steps `ReduceLROnPlateau` before the checkpoint of an epoch is written.

    Lightning steps it afterwards, so that a resumed run would have missed one step.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over: Lightning steps only schedules of the intervals it knows."""
        self._ours = [c for c in trainer.lr_scheduler_configs if c.reduce_on_plateau and c.interval == "epoch"]
        for config in self._ours:
            config.interval = "marquis"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One step, if there is something to judge by."""
        for config in self._ours:
            value = trainer.callback_metrics.get(config.monitor or MONITOR)
            if value is not None and (trainer.current_epoch + 1) % config.frequency == 0:
                config.scheduler.step(float(value))  # pyright: ignore[reportCallIssue,reportArgumentType]


class RandomStream(Callback):
    """Torch's global random stream in an epoch as a function of seed, epoch and process: there is nothing to keep.

    The models draw from streams of their own; this is for what else may draw: data loaders, layers of the user's.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the epoch's stream."""
        sequence = np.random.SeedSequence([self.seed, trainer.current_epoch, trainer.global_rank])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))

"""Write checkpoints at the end of every epoch, so that an interrupted training resumes to the same result."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from marquis.autoencoders.stopping import StoppingRule
from marquis.errors import DataError, StorageError
from marquis.io.checksum import check_archive, seal_archive
from marquis.io.previous import read_newest, replacing_twice

MONITOR = "validation_loss"


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """Return a checkpoint as numbers, strings and tensors; nothing in the file is executed.

    Its checksum is verified before anything is unpacked. Checkpoints of 0.1.0 have none, and are read without.

    Raises:
        DataError: There is no such file, it is damaged, or it holds more than data.
    """
    if not Path(path).is_file():
        raise DataError(f"there is no checkpoint {path}.")
    try:
        check_archive(path)
        return torch.load(path, map_location=map_location, weights_only=True)
    except DataError:
        raise
    except pickle.UnpicklingError as error:  # torch's text advises to load the file unsafely, so it is not repeated
        name = re.search(r"(?:GLOBAL|global|class|function) ([\w.]+\.[\w.]+)", str(error))
        what = f" ({name[1]})" if name else ""
        raise DataError(
            f"{path} is no checkpoint of ours, or a damaged one: it holds more than tensors and plain values{what}, "
            "which is never executed. Do not load it by other means unless you trust whoever wrote it."
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is no checkpoint of ours, or a damaged one ({reason}).") from error


def restore(module: LightningModule, path: str | os.PathLike[str]) -> int:
    """Restore weights, buffers and whatever else the module puts into checkpoints; the optimiser is left out.

    Returns:
        The epoch of the checkpoint: a damaged file falls back to the one before it, with a warning.
    """
    checkpoint = read_newest(path, read_checkpoint)
    restore_state(module, checkpoint)
    return int(checkpoint.get("epoch", -1))


def state_of(module: LightningModule) -> dict[str, Any]:
    """Return a checkpoint of a module in memory: weights, buffers and whatever else it puts into checkpoints."""
    checkpoint: dict[str, Any] = {}
    checkpoint["state_dict"] = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    module.on_save_checkpoint(checkpoint)
    return checkpoint


def restore_state(module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Restore what `state_of` returned."""
    module.load_state_dict(checkpoint["state_dict"])
    module.on_load_checkpoint(checkpoint)


class SafeCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically, with a checksum, two generations of each; never run code when reading them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write next to the destination, then rename; the file that was there becomes the previous generation."""
        with replacing_twice(path) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # how torch's writer says that the disk is full
                raise StorageError(f"{path} cannot be written: {_system_reason(temporary, error)}.") from error
            seal_archive(temporary)

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read tensors and plain values only, whatever the caller says about `weights_only`."""
        return read_newest(path, lambda file: read_checkpoint(file, "cpu" if map_location is None else map_location))


def _system_reason(path: Path, error: RuntimeError) -> str:
    """Return why torch could not write a file: its own message names a line of C++ code."""
    free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize if hasattr(os, "statvfs") else None
    if free is not None and free < 2**20:
        return "No space left on device"
    return str(error).splitlines()[0]


class EpochCheckpoints(Checkpoint):
    """Write `last.ckpt` after every epoch, and before it `best.ckpt` if the epoch was the best so far; stop training.

    Lightning's own callbacks make up new names for the best file, delete the old one before `last` is written, forget
    the best when a folder is moved, and do not stop a run that is resumed after it had stopped. Here a process may die
    between any two steps: resuming from `last` repeats the epoch and writes the same `best` again.

    Args:
        folder: Folder of the two files.
        rule: Decides which epoch is the best, and when to stop; its state is part of the checkpoints.
    """

    def __init__(self, folder: Path, rule: StoppingRule) -> None:
        super().__init__()
        self.last, self.best, self.rule = folder / "last.ckpt", folder / "best.ckpt", rule
        self._without_count = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop a run that had stopped before it was resumed."""
        if self._without_count:
            self.rule.waited = max(trainer.current_epoch - 1 - self.rule.best_epoch, 0)
        trainer.should_stop = trainer.should_stop or self.rule.exhausted

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the checkpoints of this epoch, and stop if the rule is met."""
        loss = trainer.callback_metrics.get(MONITOR)
        if self.rule.update(trainer.current_epoch, None if loss is None else float(loss)):
            trainer.save_checkpoint(self.best, weights_only=True)
        trainer.save_checkpoint(self.last, weights_only=False)
        trainer.should_stop = trainer.should_stop or self.rule.should_stop

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rule."""
        return {name: getattr(self.rule, name) for name in ("best_epoch", "best_loss", "waited")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the rule; earlier versions counted epochs elsewhere."""
        self.rule.best_epoch, self.rule.best_loss = int(state_dict["best_epoch"]), float(state_dict["best_loss"])
        self._without_count = "waited" not in state_dict
        self.rule.waited = int(state_dict.get("waited", 0))


class RemovalWatch(Callback):
    """Stop training at the end of an epoch in which a file or folder was removed; this epoch is still written.

    Args:
        check: Returns whether it is there; if not, makes it again.

    Attributes:
        removed: Whether it was removed.
    """

    def __init__(self, check: Callable[[], bool]) -> None:
        self.check, self.removed = check, False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for it before the files of the epoch are written."""
        if trainer.is_global_zero and not self.check():
            self.removed = trainer.should_stop = True


class PlateauSteps(Callback):
    """Step `ReduceLROnPlateau` before the checkpoint of an epoch is written.

    Lightning steps it afterwards, so that a resumed run would have missed one step.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mark the schedule as this callback's: Lightning steps only schedules of the intervals it knows."""
        self._ours = [c for c in trainer.lr_scheduler_configs if c.reduce_on_plateau and c.interval == "epoch"]
        for config in self._ours:
            config.interval = "marquis"

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step the schedule once if there is a validation loss."""
        for config in self._ours:
            value = trainer.callback_metrics.get(config.monitor or MONITOR)
            if value is not None and (trainer.current_epoch + 1) % config.frequency == 0:
                config.scheduler.step(float(value))  # pyright: ignore[reportCallIssue,reportArgumentType]


class RandomStream(Callback):
    """Seed torch's global random stream in every epoch from seed, epoch and process, so that nothing has to be kept.

    The models draw from streams of their own; this is for what else may draw: data loaders, layers of the user's.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the random stream of the epoch."""
        sequence = np.random.SeedSequence([self.seed, trainer.current_epoch, trainer.global_rank])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))

"""Train an autoencoder with Lightning, so that it can be stopped at any moment and resumes to the same result."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.utilities import rank_zero_only

from marquis.arguments import AtLeastOne, FromZero, checked
from marquis.autoencoders.checkpoints import (
    MONITOR,
    EpochCheckpoints,
    PlateauSteps,
    RandomStream,
    RemovalWatch,
    SafeCheckpointIO,
    read_checkpoint,
    restore,
)
from marquis.autoencoders.epoch_table import EpochTable
from marquis.autoencoders.interruption import Interruption
from marquis.autoencoders.loop import TrainingResult
from marquis.autoencoders.sharding import SharedData
from marquis.autoencoders.stopping import StoppingRule
from marquis.errors import DataError, StorageError
from marquis.io.atomic import make_folder, remove_leftovers
from marquis.io.lock import exclusive, is_first_process
from marquis.io.previous import any_generation, read_newest

CHECKPOINTS, METRICS, TENSORBOARD = "checkpoints", "metrics.csv", "tensorboard"


@checked
def fit(
    model: LightningModule,
    data_module: LightningDataModule,
    out: str | os.PathLike[str],
    *,
    max_epochs: AtLeastOne = 100,
    patience: AtLeastOne = 8,
    seed: FromZero = 0,
    resume: bool = False,
    progress: bool = True,
    precision: Any = "32-true",
    accelerator: str = "auto",
    devices: Any = 1,
    strategy: Any = "auto",
    tensorboard: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **trainer_options: Any,
) -> TrainingResult:
    """Train an autoencoder; its best weights are restored at the end (docs/method/autoencoders.md#baselines).

    Early stopping on `validation_loss` (ten samples of fixed seed), `metrics.csv`, TensorBoard logs, a checkpoint at
    the end of every epoch. A run that was stopped, by Ctrl-C or `kill -9` at any moment, goes on with `resume=True`
    from the last complete epoch to the same weights, curvature, noise, prior and random numbers, bit for bit on one
    CPU, as a run that was not: build the model with the same seed and pass the same data. Checkpoints carry a checksum,
    and two generations of each are kept: a damaged one falls back to the one before it, with a warning. One training at
    a time writes to a folder, which the first of several processes locks.

    Args:
        model: Any model of `marquis.autoencoders`. Trained in place.
        data_module: Training and validation loaders, whose order must be a function of the epoch: `mq.data.DataModule`.
        out: Folder for checkpoints and logs; made if it is not there.
        max_epochs: Maximum number of epochs.
        patience: Number of epochs without a smaller validation loss after which training stops.
        seed: Seed of torch's global random stream in training; the models have their own streams.
        resume: Go on where an earlier call with this folder was stopped; from the start if it did not get far enough.
        progress: A progress bar on a terminal, one line per epoch elsewhere.
        precision: Lightning's: "32-true", "bf16-mixed", ... Curvature is always computed in full precision.
        accelerator: Lightning's.
        devices: Lightning's. Several processes with batches of B see what one with larger batches would see.
        strategy: Lightning's, for instance "ddp".
        tensorboard: Whether to write TensorBoard logs; None: if it is installed.
        callbacks: Further callbacks of Lightning's.
        **trainer_options: Other options of Lightning's `Trainer`.

    Raises:
        DataError: The folder holds a training already, there is nothing to resume from, or training diverged.
        StorageError: The system cannot write there, another training does, or the folder was removed meanwhile.
        KeyboardInterrupt: Ctrl-C, which stops after the batch; the run can be resumed.
    """
    out, checkpoints = Path(out), Path(out) / CHECKPOINTS
    rule = StoppingRule(patience)
    epoch_checkpoints = EpochCheckpoints(checkpoints, rule)
    if any_generation(epoch_checkpoints.last) and not resume:
        raise DataError(
            f"{checkpoints} holds checkpoints of a training already: pass resume=True to go on with it, or choose "
            "another folder."
        )
    make_folder(checkpoints)
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: a process without a console
    table = EpochTable(out / METRICS, print if progress and not on_terminal else None)
    interruption, watch = Interruption(), RemovalWatch(lambda: _folder_exists(checkpoints))
    ours: list[Callback] = [watch, RandomStream(seed), PlateauSteps(), table, epoch_checkpoints, interruption]
    if progress and on_terminal:
        ours.append(_Bar(leave=False))
    lightning_deals = trainer_options.pop("use_distributed_sampler", False)
    with _only_writer(out), _quiet(), torch.random.fork_rng():
        start = epoch_checkpoints.last if any_generation(epoch_checkpoints.last) else None
        trainer = Trainer(
            max_epochs=max_epochs,
            callbacks=[*ours, *callbacks],
            logger=_tensorboard(out, tensorboard, start),
            plugins=[SafeCheckpointIO()],
            precision=precision,
            accelerator=accelerator,
            devices=devices,
            strategy=strategy,
            num_sanity_val_steps=0,
            use_distributed_sampler=lightning_deals,
            enable_model_summary=False,
            enable_progress_bar=progress and on_terminal,
            **trainer_options,
        )
        if trainer.world_size > 1 and not lightning_deals:
            data_module = SharedData(data_module)
        with interruption.listening():
            try:
                trainer.fit(model, datamodule=data_module, ckpt_path=start)
            except SystemExit:  # what newer versions of Lightning make of Ctrl-C
                if not trainer.interrupted:
                    raise
        if trainer.interrupted or interruption.requested:
            raise KeyboardInterrupt(
                f"training was stopped after {len(table.rows)} complete epochs; what they came to is in {checkpoints}"
            )
        trainer.strategy.barrier("best")
    if watch.removed:
        raise StorageError(
            f"{out} was removed during training. It was made again and holds the checkpoint of epoch "
            f"{len(table.rows) - 1}, with which training goes on (resume=True)."
        )
    if not any_generation(epoch_checkpoints.best):
        raise DataError("the validation loss was never finite: training diverged. Lower the learning rate.")
    epoch = restore(model, epoch_checkpoints.best)  # that of the rule, unless its file is damaged
    best = table.rows[epoch].get(MONITOR) if 0 <= epoch < len(table.rows) else None
    return TrainingResult(len(table.rows), epoch, best, rule.exhausted, table.rows, out)


def _folder_exists(folder: Path) -> bool:
    """Return whether a folder is there; one that was removed is made again."""
    if folder.is_dir():
        return True
    make_folder(folder)
    return False


@contextlib.contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """Let the first process hold the folder's lock, and remove what killed processes left there."""
    if getattr(rank_zero_only, "rank", 0) != 0 or not is_first_process():
        yield
        return
    with exclusive(out, "a training", again=True):
        for folder in (out, out / CHECKPOINTS):
            remove_leftovers(folder)
        yield


def _tensorboard(out: Path, wanted: bool | None, start: Path | None) -> Any:
    """Return TensorBoard's logger, which drops what came after the checkpoint."""
    installed = importlib.util.find_spec("tensorboard") is not None
    if wanted and not installed:
        raise DataError("tensorboard=True, but TensorBoard is not installed: `pip install tensorboard`.")
    if not (installed if wanted is None else wanted):
        return False
    from lightning.pytorch.loggers import TensorBoardLogger

    step = None if start is None else int(read_newest(start, read_checkpoint)["global_step"])
    return TensorBoardLogger(out, name=None, version=TENSORBOARD, purge_step=step)


class _Bar(RichProgressBar):
    """Show Lightning's bar without the number of the logger's folder."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's tips, advertisements and advice about small data sets; other warnings stay."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            tips = ("many workers", "smaller than the logging interval", "exists and is not empty", "LeafSpec")
            # no validation data, which are optional; a callback of earlier versions in an old checkpoint
            tips += ("Total length of `list` across ranks is zero", "callbacks used to create the checkpoint.*Patience")
            for text in tips:
                warnings.filterwarnings("ignore", f".*{text}.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

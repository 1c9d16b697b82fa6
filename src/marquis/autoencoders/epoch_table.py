"""Write the metrics of a training as a table with one row per epoch."""

from __future__ import annotations

import csv
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from marquis.errors import DataError
from marquis.io.atomic import replacing, storage_errors

FIRST = ("epoch", "step", "learning_rate", "train_loss", "validation_loss", "validation_error")
"""Columns that come first, in this order; `train_loss` is the mean over the batches of the epoch."""

CHECKSUM = "checksum"
"""Last column: what `_checksum` returns for the row. So a damaged table is noticed, and others can still read it."""

Row = dict[str, float]
NEW_NAMES = {"temperature": "effective_temperature"}
"""Present names of columns that earlier versions called otherwise."""


class EpochTable(Callback):
    """Collect what was logged and write `metrics.csv` anew after every epoch.

    The rows are part of the checkpoints, so that a resumed run neither repeats nor loses any; Lightning's own logger
    deletes the file when it resumes.

    Args:
        path: The file.
        say: Called with one line per epoch; None for silence.
    """

    def __init__(self, path: Path, say: Any = None) -> None:
        self.path, self.say = path, say
        self.rows: list[Row] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the rows of a resumed run again, in case the file was damaged or removed."""
        if self.rows and trainer.is_global_zero:
            write_rows(self.path, self.rows)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a row."""
        self._started, self._losses = time.monotonic(), []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss; no synchronisation with the device before the epoch is over."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._losses.append(loss.detach())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the row and write the table."""
        mean = torch.stack(self._losses).double().mean()
        row: Row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "learning_rate": float(trainer.optimizers[0].param_groups[0]["lr"]),
            **{name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
            "train_loss": float(trainer.strategy.reduce(mean, reduce_op="mean")),
            "seconds": round(time.monotonic() - self._started, 3),
        }
        self.rows.append(row)
        if trainer.is_global_zero:
            write_rows(self.path, self.rows)
            if self.say is not None:
                self.say(_line(row))

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows."""
        self.rows = [_with_new_names(row) for row in state_dict["rows"]]


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write rows as csv, atomically and each with a checksum; numbers are read back exactly."""
    names = [name for name in FIRST if any(name in row for row in rows)]
    names += [*sorted({name for row in rows for name in row} - set(names) - {"seconds"}), "seconds"]
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, CHECKSUM])
        for row in rows:
            values = [str(row.get(name, "")) for name in names]
            writer.writerow([*values, _checksum(names, values)])


def read_rows(path: Path) -> list[Row]:
    """Return what `write_rows` wrote; tables of 0.1.0 carry no checksums.

    Raises:
        DataError: A row does not match its checksum, or the file is no such table.
        StorageError: The system cannot read it.
    """
    try:
        with storage_errors(path, "read"), open(path, newline="", encoding="utf-8") as file:
            names, *lines = csv.reader(file)
        if CHECKSUM in names:
            if any(len(line) != len(names) or line[-1] != _checksum(names[:-1], line[:-1]) for line in lines):
                raise ValueError("a row does not match its checksum")
            names, lines = names[:-1], [line[:-1] for line in lines]
        rows = [{name: float(value) for name, value in zip(names, line, strict=True) if value} for line in lines]
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged ({error}); `marquis train ... --resume` writes it again.") from error
    return [_with_new_names(row) for row in rows]


def _checksum(names: list[str], values: list[str]) -> str:
    """Return the CRC-32 of a row and its columns' names, in a form that no flipped bit turns into a number."""
    return f"crc32:{zlib.crc32(repr((names, values)).encode()):08x}"


def _with_new_names(row: Row) -> Row:
    """Return a row with the present names of its columns."""
    return {NEW_NAMES.get(name, name): value for name, value in row.items()}


def _line(row: Row) -> str:
    """Return one line of text about an epoch."""
    shown = [f"{name} {row[name]:.5g}" for name in ("train_loss", "validation_loss") if name in row]
    return f"epoch {int(row['epoch'])}: {', '.join(shown)} ({row['seconds']:.1f} s)"

"""The metrics of a training as a table with one row per epoch."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from marquis.io.atomic import replacing

FIRST = ("epoch", "step", "learning_rate", "train_loss", "validation_loss", "validation_error")
"""Columns that come first, in this order; `train_loss` is the mean over the batches of the epoch."""

Row = dict[str, float]
NEW_NAMES = {"temperature": "effective_temperature"}
"""Present names of columns that earlier versions called otherwise."""


class EpochTable(Callback):
    """Collects what was logged and writes `metrics.csv` anew after every epoch.

    The rows are part of the checkpoints, so that a resumed run neither repeats nor loses any; Lightning's own logger
    deletes the file when it resumes.

    Args:
        path: The file.
        say: Called with one line per epoch; None for silence.
    """

    def __init__(self, path: Path, say: Any = None) -> None:
        self.path, self.say = path, say
        self.rows: list[Row] = []

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
    """Write rows as csv, atomically; numbers are read back exactly."""
    names = [name for name in FIRST if any(name in row for row in rows)]
    names += [*sorted({name for row in rows for name in row} - set(names) - {"seconds"}), "seconds"]
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """Return what `write_rows` wrote."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return [_with_new_names({name: float(value) for name, value in row.items() if value}) for row in rows]


def _with_new_names(row: Row) -> Row:
    return {NEW_NAMES.get(name, name): value for name, value in row.items()}


def _line(row: Row) -> str:
    shown = [f"{name} {row[name]:.5g}" for name in ("train_loss", "validation_loss") if name in row]
    return f"epoch {int(row['epoch'])}: {', '.join(shown)} ({row['seconds']:.1f} s)"

"""Train an autoencoder on rows in memory with a plain loop, without a folder and without Lightning's trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked
from marquis.autoencoders.base import PLATEAU, BaseAutoencoder
from marquis.autoencoders.checkpoints import restore_state, state_of
from marquis.autoencoders.epoch_table import Row
from marquis.autoencoders.stopping import StoppingRule

VALIDATION_BATCH = 4096
"""Number of validation rows that are evaluated at once."""


@dataclass(frozen=True)
class TrainingResult:
    """Hold the outcome of a training.

    Attributes:
        epochs: Number of epochs, over all sessions.
        best_epoch: The epoch whose weights the model has now, from 0.
        best_loss: Its validation loss; None where there were no validation data (then the last epoch is the best).
        stopped_early: Whether the validation loss had stopped improving.
        rows: One dictionary per epoch, as in `metrics.csv`.
        out: The folder; None for a training in memory.
    """

    epochs: int
    best_epoch: int
    best_loss: float | None
    stopped_early: bool
    rows: list[Row]
    out: Path | None = None


@checked
def fit_in_memory(
    model: BaseAutoencoder,
    x: Tensor,
    validation: Tensor | None = None,
    *,
    max_epochs: AtLeastOne = 100,
    batch_size: AtLeastOne = 128,
    patience: AtLeastOne = 8,
    tolerance: float = 0.0,
    plateau: int = PLATEAU,
    mask_fraction: float = 0.0,
    generator: torch.Generator | None = None,
    report: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Train an autoencoder in place on rows that fit into memory; its best weights are restored at the end.

    Loss, optimiser, learning rate schedule, validation loss and stopping rule are those of `fit`, which adds
    checkpoints, logs and several devices.

    Args:
        model: Any model of `marquis.autoencoders`.
        x: Training rows `[N, ...]`, with NaN where entries are missing (if the model takes them).
        validation: Validation rows; None trains for all epochs.
        max_epochs: Maximum number of epochs.
        batch_size: Number of rows per step.
        patience: Number of epochs without improvement after which training stops.
        tolerance: Improvement of the validation loss that does not count as one.
        plateau: Number of epochs without improvement after which the next one halves the learning rate.
        mask_fraction: Mean fraction of the observed entries that is hidden from the encoder, in training and in
            validation, but still has to be reconstructed; each row has a fraction between 0 and twice as much. Teaches
            a model to fill in missing values.
        generator: Source of the order of the rows and of hidden entries; by default torch's global random stream.
        report: Called with one line per epoch; None is silent.

    Raises:
        DataError: The rows are not what the model takes.
        NumericalError: Training diverged.
    """
    model.begin(len(x))
    optimiser, schedule = model.optimiser_and_schedule(plateau)
    rule, rows = StoppingRule(patience, tolerance), []
    held_out = None if validation is None else (validation, _visible_entries(validation, mask_fraction, generator))
    best = None
    for epoch in range(max_epochs):
        model.train()
        losses = []
        for chosen in torch.randperm(len(x), generator=generator).split(batch_size):
            batch = x[chosen]
            optimiser.zero_grad()
            loss = model.training_loss(batch, _visible_entries(batch, mask_fraction, generator))
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        row: Row = {"epoch": epoch, "train_loss": float(torch.stack(losses).mean())}
        if held_out is not None:
            row["validation_loss"] = _validation_loss(model, *held_out)
            schedule.step(row["validation_loss"])
        rows.append(row)
        if report is not None:
            report(", ".join(f"{name} {value:.5g}" for name, value in row.items()))
        if rule.update(epoch, row.get("validation_loss")) and held_out is not None:
            best = state_of(model)
        if rule.should_stop:
            break
    if best is not None:
        restore_state(model, best)
    loss = None if held_out is None else rule.best_loss
    return TrainingResult(len(rows), rule.best_epoch, loss, rule.exhausted, rows)


def hidden_entries(x: Tensor, fraction: float, generator: torch.Generator | None) -> Tensor:
    """Return which entries of rows `[B, ...]` to hide: for each row a share between 0 and `2 fraction` (at most 1)."""
    shares = torch.rand(len(x), *[1] * (x.ndim - 1), dtype=x.dtype, generator=generator)
    return torch.rand(x.shape, dtype=x.dtype, generator=generator) < 2 * fraction * shares


def _visible_entries(x: Tensor, fraction: float, generator: torch.Generator | None) -> Tensor | None:
    """Return which entries the encoder sees; None for all that were observed."""
    return None if fraction == 0 else ~x.isnan() & ~hidden_entries(x, fraction, generator).to(x.device)


def _validation_loss(model: BaseAutoencoder, x: Tensor, seen: Tensor | None) -> float:
    """Return the mean validation loss over rows, some at a time."""
    model.eval()
    total = 0.0
    for start in range(0, len(x), VALIDATION_BATCH):
        part = slice(start, start + VALIDATION_BATCH)
        total += float(model.validation_loss(x[part], None if seen is None else seen[part])[0]) * len(x[part])
    return total / len(x)

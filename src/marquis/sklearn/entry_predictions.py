"""Predictions of masked entries of a table, and their standard deviation by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.sklearn.base import ROWS

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder

NOISE_ROWS = 1000
"""Maximum number of rows from which the columns' standard deviations are computed."""
COMMON_ENTRIES = 10
"""Number of entries with the common variance that count for every column besides its own, which may be few."""


def masked_predictions(
    model: UncertainAutoencoder, x: Tensor, samples: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield entries `[columns, rows]` and their predictions `[columns, S, rows]` with the entry masked.

    Cost: `samples` passes over `columns` copies of `x`.

    Args:
        model: Of standardised rows with NaN where entries are missing.
        x: `[N, columns]`, yielded in parts; NaN where entries are missing.
        samples: Number of networks S, the same for all entries.
        seed: Seed of the networks.
    """
    columns = torch.arange(x.shape[1])
    for part in x.split(max(1, 8 * ROWS // x.shape[1])):
        copies = part.repeat(x.shape[1], 1, 1)
        copies[columns, :, columns] = torch.nan
        drawn, flat = torch.Generator().manual_seed(seed), copies.flatten(0, 1)
        predictions = model.reconstruct(flat, samples, generator=drawn, keep=True).samples
        assert predictions is not None
        yield part.T, predictions.unflatten(1, copies.shape[:2])[:, columns, :, columns]


def missing_std(
    model: UncertainAutoencoder, x: Tensor, held_out: Tensor, samples: int, seed: int, noise: float
) -> Tensor:
    """Return the standard deviation `[columns]` of masked entries around their predictions, beyond the networks' own.

    The noise that is learnt in training is that of entries most of which the encoder sees; what is missing is further
    away, and some columns follow from the others while some do not. How the columns compare is computed from all rows
    (at most `NOISE_ROWS`, at random). By what factor variances are larger for new rows is computed from the held-out
    rows: one number for all columns, as they are few.

    Args:
        model: As in `masked_predictions`.
        x: All rows `[N, columns]`.
        held_out: Rows that were not trained on; there may be none.
        samples: Number of networks.
        seed: Seed of networks and rows.
        noise: The standard deviation learnt in training, a lower bound for all columns in common.
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    squares, counts = _squares(model, x[order[:NOISE_ROWS]], samples, seed)
    common = max(float(squares.sum() / counts.sum()), noise**2)
    variance = (squares + COMMON_ENTRIES * common) / (counts + COMMON_ENTRIES)
    if len(held_out):
        apart, apart_counts = _squares(model, held_out, samples, seed)
        # Every entry in its own unit, or the column that follows least would decide, by a few rows. Rows that were
        # learnt from are no farther away than others: less than 1 would be chance.
        variance = variance * max(1.0, float((apart / variance).sum() / apart_counts.sum().clamp_min(1)))
    return variance.sqrt()


def _squares(model: UncertainAutoencoder, x: Tensor, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return squared errors summed over rows, less the networks' own variance, and how many; both `[columns]`."""
    squares, counts = torch.zeros(x.shape[1], dtype=x.dtype), torch.zeros(x.shape[1], dtype=x.dtype)
    for truth, predictions in masked_predictions(model, x, samples, seed):
        known = ~truth.isnan()
        spread = predictions.var(1) if predictions.shape[1] > 1 else torch.zeros_like(truth)
        errors = (truth.nan_to_num(0.0) - predictions.mean(1)).square() - spread
        squares += torch.where(known, errors, 0).sum(1)
        counts += known.sum(1)
    return squares.clamp_min(0), counts

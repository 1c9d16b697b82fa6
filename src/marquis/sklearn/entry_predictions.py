"""Entries of a table as networks predict them that have not seen them: how far away they are, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.sklearn.base import ROWS

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder

NOISE_ROWS = 1000
"""Rows at most from which the columns' deviations are found."""
COMMON_ENTRIES = 10
"""So many entries of the common deviation count for every column besides its own, which may be few or constant."""


def masked_predictions(
    model: UncertainAutoencoder, x: Tensor, samples: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Entries `[columns, rows]` and what each network says `[columns, S, rows]` who has not seen the entry.

    Cost: `samples` passes over `columns` copies of `x`.

    Args:
        model: Of standardised rows with NaN where entries are missing.
        x: `[N, columns]`, given out in parts; NaN where entries are missing.
        samples: S networks, the same for all entries.
        seed: Of the networks.
    """
    columns = torch.arange(x.shape[1])
    for part in x.split(max(1, 8 * ROWS // x.shape[1])):
        copies = part.repeat(x.shape[1], 1, 1)
        copies[columns, :, columns] = torch.nan
        drawn, flat = torch.Generator().manual_seed(seed), copies.flatten(0, 1)
        said = model.reconstruct(flat, samples, generator=drawn, keep=True).samples
        assert said is not None
        yield part.T, said.unflatten(1, copies.shape[:2])[:, columns, :, columns]


def missing_std(
    model: UncertainAutoencoder, x: Tensor, held_out: Tensor, samples: int, seed: int, noise: float
) -> Tensor:
    """Deviation `[columns]` of entries around what networks say who have not seen them, beyond the networks' spread.

    The noise that is learnt in training is that of entries most of which the encoder sees; what is missing is further
    away, and some columns follow from the others while some do not. How the columns compare is found from all rows (at
    most `NOISE_ROWS`, drawn at random). By what factor variances are larger where rows were not learnt from is found
    from those that were held out: one number for all columns, as they are few.

    Args:
        model: As in `masked_predictions`.
        x: All rows `[N, columns]`.
        held_out: Those that were not trained on; there may be none.
        samples: Networks.
        seed: Of the networks and of the rows.
        noise: The deviation that was learnt in training: all columns together have no less.
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
    """Squares of the deviations, summed over rows, less the networks' own variance; and how many. Both `[columns]`."""
    squares, counts = torch.zeros(x.shape[1], dtype=x.dtype), torch.zeros(x.shape[1], dtype=x.dtype)
    for truth, said in masked_predictions(model, x, samples, seed):
        known = ~truth.isnan()
        spread = said.var(1) if said.shape[1] > 1 else torch.zeros_like(truth)
        away = (truth.nan_to_num(0.0) - said.mean(1)).square() - spread
        squares += torch.where(known, away, 0).sum(1)
        counts += known.sum(1)
    return squares.clamp_min(0), counts

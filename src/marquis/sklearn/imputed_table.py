"""What may have stood at the missing entries of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder
    from marquis.sklearn.columns import Columns


@dataclass(frozen=True, eq=False)
class ImputedTable:
    """A table with its holes filled, and how sure that is; observed entries are exactly as they were.

    Attributes:
        mean: `[rows, columns]`; a pandas table if `X` was one.
        std: Standard deviation of the missing value, from not knowing the network and from the noise; 0 where an entry
            was observed. In the form of `mean`.
        samples: `[samples, rows, columns]`: complete tables, each a draw of the missing values with its noise.
        missing: `[rows, columns]`, True where an entry was missing.
    """

    mean: Any
    std: Any
    samples: np.ndarray
    missing: np.ndarray


def empty_answers(given: np.ndarray, samples: int) -> ImputedTable:
    """A table with its holes still there, to be written into."""
    return ImputedTable(given.copy(), np.zeros_like(given), np.repeat(given[None], samples, 0), np.isnan(given))


def answers(model: UncertainAutoencoder, x: Tensor, samples: int, rounds: int, generator: torch.Generator) -> Tensor:
    """What networks say about rows with holes, `[samples, rows, columns]`; each corrected `rounds` times by another.

    Args:
        model: Of standardised rows.
        x: `[rows, columns]`, standardised; NaN where entries are missing.
        samples: How many networks.
        rounds: How often the observed entries are put back.
        generator: Of the networks.
    """
    from marquis.tasks.imputation import impute

    return impute(
        model,
        x,
        samples=samples,
        averaged=1,
        rounds=rounds,
        fill="missing",
        generator=generator,
        batch_size=len(x),
        progress=False,
    ).samples


def write_answers(
    into: ImputedTable,
    rows: np.ndarray,
    drawn: Tensor,
    deviation: Tensor,
    columns: Columns,
    generator: torch.Generator,
) -> None:
    """Put what networks said at the holes of some rows: its mean, its deviation with the noise, and noisy draws.

    Args:
        into: The whole table, in its own units.
        rows: Numbers of the rows.
        drawn: What the networks say of the columns that vary, `[samples, rows, varying]`, standardised.
        deviation: Of a missing entry around that, `[varying]`, standardised.
        columns: What standardised them.
        generator: Of the noise.
    """
    missing = into.missing[rows]
    noise = torch.randn(drawn.shape, dtype=drawn.dtype, generator=generator) * deviation
    between = drawn.var(0) if len(drawn) > 1 else torch.zeros_like(drawn[0])
    total = columns.deviations((between + deviation.square()).sqrt().numpy())
    into.mean[rows] = np.where(missing, columns.rows(drawn.mean(0).numpy()), into.mean[rows])
    into.std[rows] = np.where(missing, total, 0.0)
    into.samples[:, rows] = np.where(missing, columns.rows((drawn + noise).numpy()), into.samples[:, rows])


def code_deviation(model: UncertainAutoencoder, x: Tensor, deviation: Tensor, samples: int, seed: int) -> Tensor:
    """Standard deviation `[rows, K]` of the codes of incomplete rows (docs/method/likelihoods.md#missing-entries).

    Each network draws the missing entries from its own imputation, then encodes the completed row. The noise of a draw
    is the same for all rows, so that a row's answer does not depend on its neighbours. Cost: two passes per network.

    Args:
        model: Of standardised rows.
        x: `[rows, columns]`, standardised; NaN where entries are missing.
        deviation: Of a missing entry around what a network says, `[columns]`, standardised.
        samples: How many networks.
        seed: Of the networks and the noise.
    """
    first, again = (torch.Generator().manual_seed(seed) for _ in range(2))
    drawn = model.reconstruct(x, samples, generator=first, keep=True).samples
    assert drawn is not None
    noise = torch.randn(len(drawn), 1, x.shape[1], dtype=x.dtype, generator=first) * deviation
    completed = torch.where(x.isnan(), drawn + noise, x)
    codes = torch.stack([model.encode(row, 1, generator=again).mean for row in completed])
    return codes.std(0) if len(codes) > 1 else torch.zeros_like(codes[0])

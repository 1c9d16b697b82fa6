"""Tables with imputed values."""

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
    """A table with imputed values and their uncertainty; observed entries are exactly as they were.

    Attributes:
        mean: `[rows, columns]`; a pandas table if `X` was one.
        std: Standard deviation of the missing value, from not knowing the network and from the noise; 0 where an entry
            was observed. In the form of `mean`.
        samples: `[samples, rows, columns]`: complete tables, each a sample of the missing values with its noise.
        missing: `[rows, columns]`, True where an entry was missing.
    """

    mean: Any
    std: Any
    samples: np.ndarray
    missing: np.ndarray


def unfilled(X: np.ndarray, samples: int) -> ImputedTable:
    """Return a table whose missing values are still missing, to be written into."""
    return ImputedTable(X.copy(), np.zeros_like(X), np.repeat(X[None], samples, 0), np.isnan(X))


def impute_rows(
    model: UncertainAutoencoder, x: Tensor, samples: int, rounds: int, generator: torch.Generator
) -> Tensor:
    """Return imputations of rows by sampled networks, `[samples, rows, columns]`; each repeated `rounds` times.

    Args:
        model: Of standardised rows.
        x: `[rows, columns]`, standardised; NaN where entries are missing.
        samples: Number of networks.
        rounds: Number of times the observed entries are put back.
        generator: Source of the networks.
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


def write_imputations(
    into: ImputedTable,
    rows: np.ndarray,
    drawn: Tensor,
    deviation: Tensor,
    columns: Columns,
    generator: torch.Generator,
) -> None:
    """Write imputations of some rows: mean, standard deviation with the noise, and samples with noise.

    Args:
        into: The whole table, in its own units.
        rows: Numbers of the rows.
        drawn: Imputations of the columns that vary, `[samples, rows, varying]`, standardised.
        deviation: Standard deviation of a missing entry around that, `[varying]`, standardised.
        columns: Standardised them.
        generator: Source of the noise.
    """
    missing = into.missing[rows]
    noise = torch.randn(drawn.shape, dtype=drawn.dtype, generator=generator) * deviation
    between = drawn.var(0) if len(drawn) > 1 else torch.zeros_like(drawn[0])
    total = columns.deviations((between + deviation.square()).sqrt().numpy())
    into.mean[rows] = np.where(missing, columns.rows(drawn.mean(0).numpy()), into.mean[rows])
    into.std[rows] = np.where(missing, total, 0.0)
    into.samples[:, rows] = np.where(missing, columns.rows((drawn + noise).numpy()), into.samples[:, rows])


def code_std(model: UncertainAutoencoder, x: Tensor, deviation: Tensor, samples: int, seed: int) -> Tensor:
    """Return the standard deviation `[rows, K]` of the codes of rows with missing values.

    Each network samples the missing entries from its own imputation, then encodes the completed row. The noise of a
    sample is the same for all rows, so that a row's result does not depend on other rows. Cost: two passes per network.

    Args:
        model: Of standardised rows.
        x: `[rows, columns]`, standardised; NaN where entries are missing.
        deviation: Standard deviation of a missing entry around a network's prediction, `[columns]`, standardised.
        samples: Number of networks.
        seed: Seed of networks and noise.
    """
    first, again = (torch.Generator().manual_seed(seed) for _ in range(2))
    drawn = model.reconstruct(x, samples, generator=first, keep=True).samples
    assert drawn is not None
    noise = torch.randn(len(drawn), 1, x.shape[1], dtype=x.dtype, generator=first) * deviation
    completed = torch.where(x.isnan(), drawn + noise, x)
    codes = torch.stack([model.encode(row, 1, generator=again).mean for row in completed])
    return codes.std(0) if len(codes) > 1 else torch.zeros_like(codes[0])

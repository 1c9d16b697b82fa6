"""Hold tables with imputed values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marquis import notebook
from marquis.sklearn.categories import Category, EncodedColumns

if TYPE_CHECKING:
    from marquis.sklearn.entry_predictions import EntryModel


@dataclass(frozen=True, eq=False)
class ImputedTable:
    """Hold a table with imputed values and their uncertainty; observed entries are exactly as they were.

    Attributes:
        mean: `[rows, columns]`; a pandas table if `X` was one.
        std: Standard deviation of the missing value, from not knowing the network and from the noise, calibrated so
            that `mean ± 1.645 std` holds 90 % of the entries that were hidden in `fit`; of a category
            the probability that it is another level; 0 where an entry was observed. In the form of `mean`.
        samples: `[samples, rows, columns]`: complete tables, each a sample of the missing values with its noise.
            Of categories, the numbers of levels as in `probabilities`.
        missing: `[rows, columns]`, True where an entry was missing.
        probabilities: Of every categorical column the probabilities of its levels, `[rows, levels]`, a pandas table;
            1 for the level that was observed.
    """

    mean: Any
    std: Any
    samples: np.ndarray
    missing: np.ndarray
    probabilities: dict[Any, Any] = field(default_factory=dict)

    def as_table(self, X: Any, columns: EncodedColumns) -> ImputedTable:
        """Return the table with levels instead of their numbers, in the types of `X`; observed ones as they were."""
        import pandas as pd

        mean, chances = columns.table(self.mean, X.columns, X.index), {}
        for category in (*columns.categories, *columns.constant):
            place, name = category.column, str(X.columns[category.column])
            given, imputed = (part.iloc[:, place].astype(object) for part in (X, mean))
            mean.isetitem(place, category.in_own_type(given.where(~self.missing[:, place], imputed)))
            codes = self.mean[:, place]
            certain = np.where(
                (codes >= 0)[:, None], np.eye(len(category.levels))[np.maximum(codes, 0).astype(int)], 0.0
            )
            values = np.where(self.missing[:, [place]], self.probabilities.get(place, certain), certain)
            chances[name] = pd.DataFrame(values, index=X.index, columns=list(category.levels))
        std = pd.DataFrame(self.std, index=X.index, columns=X.columns)
        return ImputedTable(mean, std, self.samples, self.missing, chances)

    def _repr_html_(self) -> str:
        """Show the first rows that had missing entries, these with their standard deviations."""
        mean, std = (np.asarray(part, dtype=object) for part in (self.mean, self.std))
        names = getattr(self.mean, "columns", range(mean.shape[1]))
        incomplete = np.flatnonzero(self.missing.any(1))
        rows = [
            [
                i,
                *(
                    f"{_cell(mean[i, j])} ± {std[i, j]:.2g}" if self.missing[i, j] else mean[i, j]
                    for j in range(len(names))
                ),
            ]
            for i in incomplete[: notebook.ROWS]
        ]
        title = f"{int(self.missing.sum())} of {self.missing.size} entries were imputed; rows with imputed entries:"
        return notebook.html_table(title, ["row", *names], rows, len(incomplete))

    def chances(self, category: Category, probabilities: np.ndarray, rows: np.ndarray) -> None:
        """Write probabilities of the levels of a category, by its number, for some rows."""
        whole = self.probabilities.setdefault(category.column, np.zeros((len(self.missing), len(category.levels))))
        whole[rows] = probabilities


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def unfilled(X: np.ndarray, samples: int) -> ImputedTable:
    """Return a table whose missing values are still missing, to be written into."""
    return ImputedTable(X.copy(), np.zeros_like(X), np.repeat(X[None], samples, 0), np.isnan(X))


def write_imputations(
    into: ImputedTable,
    rows: np.ndarray,
    entries: EntryModel,
    x: Tensor,
    columns: EncodedColumns,
    generator: torch.Generator,
) -> None:
    """Write imputations of some rows: mean, standard deviation and samples."""
    missing, samples = into.missing[rows], len(into.samples)
    imputations = _samples(entries, x, samples, generator)
    predicted = entries.missing(x)
    into.mean[rows] = np.where(missing, columns.rows(predicted.mean.numpy()), into.mean[rows])
    into.std[rows] = np.where(missing, columns.deviations(predicted.variance.sqrt().numpy()), 0.0)
    into.samples[:, rows] = np.where(missing, columns.rows(imputations.numpy()), into.samples[:, rows])
    for category in columns.constant:
        into.std[rows, category.column] = 0.0  # there is no other level
    for category, group in zip(columns.categories, columns.groups, strict=True):
        place, chances = category.column, category.probabilities(predicted.mean[:, group])
        into.chances(category, chances.numpy(), rows)
        into.std[rows, place] = np.where(missing[:, place], 1 - chances.amax(1).numpy(), 0.0)
        levels = torch.multinomial(chances, samples, replacement=True, generator=generator).T.numpy()
        into.samples[:, rows, place] = np.where(missing[:, place], levels, into.samples[:, rows, place])


def _samples(entries: EntryModel, x: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Return complete rows `[S, rows, varying]`: a network's means, and joint noise around them."""
    sampled = entries.missing(x, samples=samples, keep=True).samples
    assert sampled is not None
    spread = entries.linear.spread(x, samples, generator) * entries.for_missing.scale.sqrt()
    return torch.where(x.isnan(), sampled + spread, x)


def code_std(entries: EntryModel, x: Tensor) -> Tensor:
    """Return the standard deviation `[rows, K]` of the codes of rows with missing values.

    Each network encodes a sample of the completed row. The noise of a sample is the same for all rows with the same
    missing entries, so that a row's result does not depend on other rows. Cost: two passes per network.
    """
    again = torch.Generator().manual_seed(entries.seed)
    completed = torch.cat(
        [_samples(entries, row[None], entries.samples, torch.Generator().manual_seed(entries.seed)) for row in x], 1
    )
    codes = torch.stack([entries.network.encode(row, 1, generator=again).mean for row in completed])
    return codes.std(0) if len(codes) > 1 else torch.zeros_like(codes[0])

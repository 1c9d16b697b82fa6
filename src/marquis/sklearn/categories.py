"""Encode categorical columns of a pandas table as indicators for the models, and decode them to levels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.sklearn.columns import OUTLIER, Columns, columns_of

MOST_LEVELS = 100
"""Largest number of levels of a column; more are names of something."""
POWERS, FLOORS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0), (0.003, 0.01, 0.03, 0.1, 0.3)
"""What is compared on hidden entries to make probabilities of predicted indicators."""
NEW_LEVEL = -1.0
"""Code of a level that was not there in training."""


@dataclass(frozen=True, eq=False)
class Category:
    """Describe a categorical column.

    Attributes:
        column: Its number in the table.
        levels: Its values in training, in order.
        dtype: Type of the pandas column, in which levels are returned.
        share: Frequencies of the levels, `[L]`.
        count: Number of observed entries in training.
        power: Exponent of the predicted indicators.
        floor: Added to them before.
    """

    column: int
    levels: tuple[Any, ...]
    dtype: Any
    share: Tensor
    count: int
    power: float = 1.0
    floor: float = 0.03

    @property
    def scale(self) -> float:
        """Return the standard deviation of the indicators together; one category weighs as much as one number."""
        return float((self.share * (1 - self.share)).sum().sqrt())

    def indicators(self, codes: np.ndarray) -> np.ndarray:
        """Return standardised indicators `[N, L]` of codes; NaN where a level is missing or was not seen."""
        codes_or_zero = np.where(np.isnan(codes) | (codes < 0), 0, codes).astype(int)
        columns = (np.eye(len(self.levels))[codes_or_zero] - self.share.numpy()) / self.scale
        columns[np.isnan(codes) | (codes < 0)] = np.nan
        return columns

    def probabilities(self, predicted: Tensor) -> Tensor:
        """Return probabilities `[..., L]` of predicted standardised indicators.

        `p_k` is proportional to `(max(indicator_k, 0) + floor) ** power` (docs/method/tasks.md#tables).
        """
        weight = ((predicted * self.scale + self.share).clamp_min(0) + self.floor) ** self.power
        return weight / weight.sum(-1, keepdim=True)

    def calibrated(self, predicted: Tensor, codes: Tensor) -> Category:
        """Return the category with the power and floor under which hidden levels are most probable."""
        if not len(codes):
            return self

        def loss(candidate: Category) -> float:
            return -float(candidate.probabilities(predicted).log().gather(1, codes[:, None]).sum())

        return min((replace(self, power=power, floor=floor) for power in POWERS for floor in FLOORS), key=loss)

    def decoded(self, codes: np.ndarray, index: Any) -> Any:
        """Return the levels of codes as a pandas column of the type it had."""
        import pandas as pd

        return pd.Series([self.levels[int(code)] for code in codes], index=index, dtype=self.dtype)

    def in_own_type(self, values: Any) -> Any:
        """Return a pandas column of objects in the type it had, or one that also holds levels which were not there."""
        import pandas as pd

        new = [level for level in dict.fromkeys(values) if level not in self.levels]
        if not new:
            return values.astype(self.dtype)
        if isinstance(self.dtype, pd.CategoricalDtype):
            there = self.dtype.categories.tolist()
            added = [level for level in new if level not in there]
            return values.astype(pd.CategoricalDtype([*there, *added], self.dtype.ordered))
        return values if pd.api.types.is_bool_dtype(self.dtype) else values.astype(self.dtype)


def category_columns(X: Any) -> list[int]:
    """Return which columns of a pandas table hold categories: category, bool, text, or objects with text."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return []
    return [number for number in range(X.shape[1]) if _is_category(X.iloc[:, number], pandas)]


def _is_category(values: Any, pandas: Any) -> bool:
    """Return whether a column of a table holds categories instead of numbers."""
    kind = values.dtype
    if isinstance(kind, pandas.CategoricalDtype) or pandas.api.types.is_bool_dtype(kind):
        return True
    if isinstance(kind, pandas.StringDtype):
        return True
    if not pandas.api.types.is_object_dtype(kind):
        return False
    present = [value for value in values if not pandas.isna(value)] if len(values) else []
    return bool(present) and any(
        isinstance(value, (str, bool, np.bool_)) or not isinstance(value, Real) for value in present
    )


def categories_of(X: Any) -> tuple[Category, ...]:
    """Return the categorical columns of a pandas table; none of anything else.

    Raises:
        DataError: A column has no levels, or more than `MOST_LEVELS`.
    """
    categories = []
    for number in category_columns(X):
        values = X.iloc[:, number]
        present = values.dropna()
        name = str(X.columns[number])
        try:
            distinct = list(dict.fromkeys(present.tolist()))
        except TypeError as error:
            raise DataError(f"column {name!r} holds values that cannot be levels ({error}): leave it out.") from error
        try:
            levels = sorted(distinct)
        except TypeError:
            levels = distinct  # of several types, in the order of the rows
        if not levels:
            raise DataError(f"column {name!r} has no values in the training rows: nothing can be learnt; remove it.")
        if len(levels) > MOST_LEVELS:
            raise DataError(
                f"column {name!r} has {len(levels)} different levels, more than {MOST_LEVELS}: leave it out if they "
                "are names of something, or give numbers."
            )
        counts = torch.tensor([int((present == level).sum()) for level in levels], dtype=torch.float64)
        categories.append(Category(number, tuple(levels), values.dtype, counts / counts.sum(), len(present)))
    return tuple(categories)


def coded_table(X: Any, categories: Sequence[Category]) -> Any:
    """Return a pandas table whose categorical columns are numbers of levels; NaN where missing, `NEW_LEVEL` where new.

    Raises:
        DataError: It is no table, or another column holds text.
    """
    expected = {category.column for category in categories}
    if not expected:
        return X
    if not hasattr(X, "iloc"):
        raise DataError("this estimator was fitted to a table with categorical columns: give a pandas table.")
    coded = X.copy()
    for category in categories:
        if category.column >= X.shape[1]:
            break  # scikit-learn refuses the shape
        places = {level: float(number) for number, level in enumerate(category.levels)}
        values = X.iloc[:, category.column]
        missing = values.isna().to_numpy()
        codes = [np.nan if gone else places.get(value, NEW_LEVEL) for value, gone in zip(values, missing, strict=True)]
        coded.isetitem(category.column, np.array(codes, dtype=np.float64))
    return coded


@dataclass(frozen=True, eq=False)
class EncodedColumns:
    """Convert the columns of a table, numbers and categories, to standardised ones and back.

    Attributes:
        numeric: Of the numeric columns; None if there are none that vary.
        at: Numbers of the numeric columns.
        categories: Those with at least two levels.
        constant: Those with one.
        width: Number of columns of the table.
    """

    numeric: Columns | None
    at: np.ndarray
    categories: tuple[Category, ...]
    constant: tuple[Category, ...]
    width: int

    @classmethod
    def of(cls, X: np.ndarray, labels: np.ndarray, categories: Sequence[Category]) -> EncodedColumns:
        """Return what standardises a coded table `[N, d]`."""
        several = tuple(category for category in categories if len(category.levels) > 1)
        single = tuple(category for category in categories if len(category.levels) == 1)
        at = np.setdiff1d(np.arange(X.shape[1]), [category.column for category in categories])
        numbers = X if len(at) == X.shape[1] else X[:, at]
        numeric = columns_of(numbers, labels[at]) if len(at) else None
        if numeric is None and not several:
            raise DataError("all columns have a single level in the training rows: there is nothing to learn.")
        return cls(numeric, at, several, single, X.shape[1])

    @classmethod
    def of_numbers(cls, numeric: Columns) -> EncodedColumns:
        """Return what standardises a table without categories."""
        width = numeric.varies.size
        return cls(numeric, np.arange(width), (), (), width)

    @property
    def has_categories(self) -> bool:
        """Return whether the table has categorical columns."""
        return bool(self.categories or self.constant)

    @property
    def scaler(self) -> Any:
        """Return the scaler of the numeric columns."""
        return None if self.numeric is None else self.numeric.scaler

    @property
    def numbers(self) -> np.ndarray:
        """Return the numbers in the table of the numeric columns that vary."""
        return self.at[:0] if self.numeric is None else self.at[self.numeric.varies]

    @property
    def units(self) -> np.ndarray:
        """Return the number in the table of everything that varies: numbers first, then categories."""
        return np.append(self.numbers, [category.column for category in self.categories]).astype(int)

    @property
    def groups(self) -> list[Tensor]:
        """Return the standardised columns of each category."""
        start, groups = len(self.numbers), []
        for category in self.categories:
            groups.append(torch.arange(start, start + len(category.levels)))
            start += len(category.levels)
        return groups

    def standardised(self, X: np.ndarray) -> np.ndarray:
        """Return standardised numbers and indicators, `[N, D]`."""
        parts = [] if self.numeric is None else [self.numeric.standardised(X[:, self.at])]
        return np.concatenate([*parts, *(c.indicators(X[:, c.column]) for c in self.categories)], 1)

    def rows(self, z: np.ndarray) -> np.ndarray:
        """Return `z [..., D]` as rows `[..., d]`: numbers in their units, categories as the most probable level."""
        rows = np.zeros((*z.shape[:-1], self.width))
        if self.numeric is not None:
            rows[..., self.at] = self.numeric.rows(z[..., : len(self.numbers)])
        for category, group in zip(self.categories, self.groups, strict=True):
            rows[..., category.column] = category.probabilities(torch.as_tensor(z[..., group])).argmax(-1).numpy()
        return rows

    def deviations(self, std: np.ndarray) -> np.ndarray:
        """Return standard deviations `[..., d]` of numbers in their units; NaN for categories, which have none."""
        deviations = np.full((*std.shape[:-1], self.width), np.nan)
        if self.numeric is not None:
            deviations[..., self.at] = self.numeric.deviations(std[..., : len(self.numbers)])
        return deviations

    def constant_penalty(self, X: np.ndarray) -> np.ndarray:
        """Return what constant columns and levels that were never seen add to the log-likelihood of rows, `[N, d]`.

        A new level has the probability `1 / (n + 1)`, with `n` the number of training entries.
        """
        penalty = np.zeros(X.shape)
        if self.numeric is not None:
            penalty[:, self.at] = self.numeric.constant_penalty(X[:, self.at])
        for category in (*self.categories, *self.constant):
            penalty[:, category.column] = np.where(X[:, category.column] < 0, -np.log(category.count + 1), 0.0)
        return penalty

    def log_prob(self, x: Tensor, density: Tensor, mean: Tensor) -> Tensor:
        """Return the log-probability of what varies, `[N, units]`: densities of numbers, probabilities of levels."""
        parts = [density[:, : len(self.numbers)]]
        for category, group in zip(self.categories, self.groups, strict=True):
            level = x[:, group].nan_to_num(0.0).argmax(1)
            chance = category.probabilities(mean[:, group]).gather(1, level[:, None]).log()
            parts.append(torch.where(x[:, group[:1]].isnan(), 0.0, chance))
        return torch.cat(parts, 1)

    def missing(self, x: Tensor) -> Tensor:
        """Return which of what varies is missing, `[N, units]`."""
        return torch.cat([x[:, : len(self.numbers)].isnan(), *(x[:, group[:1]].isnan() for group in self.groups)], 1)

    def calibrated(self, tries: Sequence[tuple[Tensor, Tensor, Tensor]]) -> EncodedColumns:
        """Return the columns with probabilities calibrated on hidden entries.

        Args:
            tries: Rows `[N, D]`, their predictions, and which entries were hidden.
        """
        calibrated = []
        for category, group in zip(self.categories, self.groups, strict=True):
            chosen = [hidden[:, group[0]] for _, _, hidden in tries]
            predicted = torch.cat([mean[rows][:, group] for rows, (_, mean, _) in zip(chosen, tries, strict=True)])
            truth = torch.cat([x[rows][:, group] for rows, (x, _, _) in zip(chosen, tries, strict=True)])
            calibrated.append(category.calibrated(predicted, truth.argmax(1)))
        return replace(self, categories=tuple(calibrated))

    def table(self, values: np.ndarray, names: Any, index: Any = None) -> Any:
        """Return rows `[N, d]` of numbers and codes as a pandas table with the columns' own types."""
        import pandas as pd

        table = pd.DataFrame(values, columns=names, index=index)
        for category in (*self.categories, *self.constant):
            table.isetitem(category.column, category.decoded(np.maximum(values[:, category.column], 0), table.index))
        return table


__all__ = ["OUTLIER", "Category", "EncodedColumns", "categories_of", "category_columns", "coded_table"]

"""Convert text columns of a table to indicators of their levels, and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marquis.data.header import MISSING, is_number
from marquis.errors import DataError

Levels = Mapping[str, tuple[str, ...]]
"""Levels of every categorical column by its name."""
MOST_LEVELS = 100
"""Largest number of levels of a column; more are names of something."""


def find_levels(rows: Iterable[Sequence[str]], names: Sequence[str], path: Path) -> Levels:
    """Return the levels of the columns in which every field that is not missing is text, sorted.

    A column with a single number in it is no category: text there is refused as a damaged number.

    Raises:
        DataError: A column has more than `MOST_LEVELS` levels.
    """
    values: list[set[str]] = [set() for _ in names]
    numeric: set[int] = set()
    for fields in rows:
        for column, field in enumerate(fields[: len(names)]):
            if column in numeric or field.lower() in MISSING:
                continue
            if is_number(field) or not any(letter.isalpha() for letter in field):  # 14,23 is a number in disguise
                numeric.add(column)
            else:
                values[column].add(field)
    levels = {name: tuple(sorted(values[i])) for i, name in enumerate(names) if i not in numeric and values[i]}
    for name, texts in levels.items():
        if len(texts) > MOST_LEVELS:
            raise DataError(
                f"{path}: column {name!r} has {len(texts)} different texts, more than {MOST_LEVELS}: remove the column "
                "if they are names of something"
            )
    return levels


def codes_of(
    column: Sequence[str | None], name: str, levels: Sequence[str], path: Path
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the number of each value's level, NaN where it is missing, and the levels.

    With a warning, values that are not among the levels are appended to them.
    """
    texts = [None if value is None or str(value).lower() in MISSING else str(value) for value in column]
    unknown = sorted({text for text in texts if text is not None} - set(levels))
    if unknown:
        warnings.warn(
            f"{path}: column {name!r} has levels that were not there in training ({', '.join(unknown[:5])}); they "
            "count as missing, except that they are kept, and that explanations know them",
            stacklevel=2,
        )
    every = (*levels, *unknown)
    places = {level: float(number) for number, level in enumerate(every)}
    return np.array([np.nan if text is None else places[text] for text in texts]), every


def new_levels(x: np.ndarray, names: Sequence[str], levels: Levels, every: Levels) -> dict[str, dict[int, str]]:
    """Return the text of values that are not among the levels, by column and row.

    Args:
        x: Numbers of levels, `[N, d]`.
        names: Of the columns.
        levels: Those of training.
        every: These, and after them the others.
    """
    new = {}
    for name, known in levels.items():
        codes = x[:, names.index(name)]
        rows = np.flatnonzero(codes >= len(known))  # False for NaN
        if len(rows):
            new[name] = {int(row): every[name][int(codes[row])] for row in rows}
    return new


def expanded(x: np.ndarray, names: tuple[str, ...], levels: Levels) -> tuple[np.ndarray, tuple[str, ...]]:
    """Replace each column of level numbers by an indicator per level, called `NAME=LEVEL`.

    Indicators are NaN where the level is missing or another.
    """
    columns, labels = [], []
    for number, name in enumerate(names):
        known = levels.get(name)
        if known is None:
            columns.append(x[:, [number]])
            labels.append(name)
            continue
        codes = x[:, [number]]
        columns.append(np.where(codes < len(known), codes == np.arange(len(known)), np.nan))  # NaN is not less
        labels += [f"{name}={level}" for level in known]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise DataError(f"two columns would be named {twice!r}: rename the column that has this name")
    return np.concatenate(columns, 1), tuple(labels)


def columns_of_indicators(levels: Levels) -> dict[str, str]:
    """Return the name of the column that every indicator `NAME=LEVEL` belongs to."""
    return {f"{name}={level}": name for name, texts in levels.items() for level in texts}


def collapsed(x: np.ndarray, names: Sequence[str], levels: Levels) -> dict[str, Any]:
    """Return columns by name, with the most probable level in place of indicators; None where these are missing."""
    places, columns = {name: number for number, name in enumerate(names)}, {}
    owner = columns_of_indicators(levels)
    for number, label in enumerate(names):
        name = owner.get(label)
        if name is None:
            columns[label] = x[:, number]
        elif name not in columns:
            part = x[:, [places[f"{name}={level}"] for level in levels[name]]]
            best = np.nan_to_num(part, nan=-np.inf).argmax(1)
            texts = np.array(levels[name], dtype=object)[best]
            texts[np.isnan(part).any(1)] = None
            columns[name] = texts
    return columns

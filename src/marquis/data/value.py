"""Define the value that `load` returns: rows, targets, and where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from marquis.arguments import AtLeastOne, checked_methods
from marquis.errors import DataError


@checked_methods
@dataclass(frozen=True, repr=False, eq=False)
class Data:
    """Hold the rows of a data set, their targets, and where they came from; never changed after it is made.

    Images are kept as bytes (a quarter of the memory); `x` is computed from them on first use.
    `data[:100]`, `data[[3, 5]]` and `data[mask]` are again `Data`, and `data[:100].x` converts only those.

    Attributes:
        stored: The rows as kept: uint8 images `[N, C, H, W]`, or a float table `[N, ...]` (NaN = missing).
        y: Targets, or None. Class labels are int64 `[N]`; regression targets are floats `[N, K]`, so that
            they have the shape of a network's output and never broadcast against it by accident.
        name: The name or path: `"mnist"`, `"uci/boston"`, a path.
        split: `"train"`, `"validation"`, `"test"` or `"all"`.
        feature_names: Names of a table's columns, where it has them.
        target_names: Names of the classes, or of the columns of `y`.
        source: The file or folder that was read.
        dtype: The floating type of `x`.
        files: For a folder of images: the file of each row, as a path from the folder (`"cats/1.png"`).
        categories: Levels of a table's text columns, whose columns of `x` are the indicators `NAME=LEVEL`.
        new_levels: Text of values that are not among the `categories` that `load` was called with, by column and row;
            their indicators are missing.
    """

    stored: Tensor
    y: Tensor | None
    name: str
    split: str
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    source: str = ""
    dtype: torch.dtype = field(default=torch.float32)
    files: tuple[str, ...] | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    new_levels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse rows and targets of different numbers."""
        if self.stored.ndim < 2 or len(self.stored) == 0:
            raise DataError(
                f"{self.name} (split {self.split!r}): no rows in an array of shape {tuple(self.stored.shape)}; "
                "at least one row and one column are needed"
            )
        if self.y is not None and self.y.ndim == 0:
            raise DataError(
                f"{self.name} (split {self.split!r}): y is a single number; one target for each row is needed"
            )
        for values, what in ((self.y, f"targets in {self.source}"), (self.files, "names of files")):
            if values is not None and len(values) != len(self.stored):
                rows = f"{len(self.stored)} rows but {len(values)} {what}"
                raise DataError(f"{self.name} (split {self.split!r}): {rows}")

    @cached_property
    def x(self) -> Tensor:
        """Return all rows as floats, images in [0, 1]; computed once, 4 bytes per pixel (float32)."""
        return as_floats(self.stored, self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of `x` without computing it."""
        return tuple(self.stored.shape)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.stored)

    def __getitem__(self, rows: int | slice | Sequence[int] | Sequence[bool] | Tensor | np.ndarray) -> Data:
        """Return a subset as `Data`; an integer gives one row and keeps the row axis."""
        picked = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        if isinstance(picked, Tensor) and picked.ndim == 0:
            row = int(picked)
            if not -len(self) <= row < len(self):
                raise IndexError(f"row {row} of {self.name}, which has {len(self)} rows")
            picked = slice(row, row + 1 or None)
        files, new = self.files, self.new_levels
        if files is not None or new:
            places = torch.arange(len(self))[picked].tolist()
            files = None if files is None else tuple(files[row] for row in places)
            new = {
                name: {row: texts[old] for row, old in enumerate(places) if old in texts} for name, texts in new.items()
            }
        y = None if self.y is None else self.y[picked]
        return replace(self, stored=self.stored[picked], y=y, files=files, new_levels=new)

    def random_rows(self, most: AtLeastOne, seed: int) -> Data:
        """Return at most `most` random rows in their order: files and folders are often sorted by class."""
        return self if len(self) <= most else self[rows_at_random(len(self), most, seed)]

    def tensor_dataset(self) -> RowDataset:
        """Return a map-style dataset of `(x, y)`, or `(x,)` where there are no targets, for any `DataLoader`.

        Bytes become floats batch by batch, so that the whole set is never held as floats.
        """
        return RowDataset(self)

    def __repr__(self) -> str:
        """Show name, split, shapes and source in one line."""
        targets = "" if self.y is None else f", y {tuple(self.y.shape)}"
        return f"Data({self.name!r}, split={self.split!r}, x {self.shape}{targets}, from {self.source})"


@checked_methods
class RowDataset(Dataset[tuple[Tensor, ...]]):
    """Serve `Data` to PyTorch's `DataLoader`, as `TensorDataset` does."""

    def __init__(self, data: Data) -> None:
        """Wrap `data` without copying it."""
        self.data = data

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return one row and its target."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {self.data.name}, which has {len(self)} rows")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Return a batch of rows with one conversion from bytes instead of one per row."""
        rows = torch.as_tensor(indices)
        x = as_floats(self.data.stored[rows], self.data.dtype)
        if self.data.y is None:
            return [(row,) for row in x]
        return list(zip(x, self.data.y[rows], strict=True))


def as_floats(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert bytes to floats in [0, 1]; floats change type only."""
    return stored.to(dtype).div_(255) if stored.dtype == torch.uint8 else stored.to(dtype)


def rows_at_random(count: int, most: int, seed: int) -> np.ndarray:
    """Return the indices of at most `most` random rows, in order; all if there are no more."""
    if count <= most:
        return np.arange(count)
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most]
    return chosen.sort().values.numpy()


def held_out_rows(count: int, held_out: int, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Split `range(count)` into (kept, held out), each in ascending order.

    NumPy's legacy generator is frozen by promise, so that a split is the same in every version of
    everything; `torch.randperm` makes no such promise.
    """
    order = np.random.RandomState(seed).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def rows_of_split(count: int, split: str) -> np.ndarray:
    """Return the rows of a split of data without an official one: one row in five is the test set."""
    train, test = held_out_rows(count, count // 5)
    return {"train": train, "test": test, "all": np.arange(count)}[split]

"""Convert rows of the user's data for a trained model, and keep what is needed to write results about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marquis.data import Data
from marquis.data.categories import Levels, columns_of_indicators
from marquis.errors import DataError
from marquis.run.scaling import Scaling

LARGEST = 1e18
"""The square of more is infinite in float32; what is so far out was not measured, but marks missing values."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Hold data for a model.

    Attributes:
        x: `[n, ...]`, scaled; NaN where missing.
        original: As read, in the units of the data; tables in float64, so that they can be written again exactly.
        y: Targets, where the data have some.
        source: File, folder or name.
        names: Names of the columns, for a table that has names.
        file_names: Names of all columns in the order of the file, with those that training excluded.
        aside: These, as read.
        files: Of images in a folder, the file of each.
        new_levels: Text of values that were not there in training, by column and row; missing in `x`.
    """

    x: Tensor
    original: Tensor
    y: Tensor | None
    source: str
    names: tuple[str, ...] | None
    file_names: tuple[str, ...] | None = None
    aside: Mapping[str, Tensor] = field(default_factory=dict)
    files: tuple[str, ...] | None = None
    new_levels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def rows_of(
    data: Data,
    shape: Sequence[int],
    *,
    scaling: Scaling | None = None,
    columns: tuple[str, ...] | None = None,
    targets: Sequence[str] = (),
    categories: Levels | None = None,
) -> Rows:
    """Check that data are what a model was trained on, and scale them.

    Args:
        data: As read.
        shape: Shape of one training example.
        scaling: Of the columns.
        columns: Names of the columns in training; a file with names is put into their order.
        targets: Columns that were set apart in training, and are left out where a file has them.
        categories: Levels of text columns, which have indicators among `columns`.

    Raises:
        DataError: Another shape, other columns, or numbers too large for the model.
    """
    x, names = data.x, data.feature_names
    aside = {name: x[:, number] for number, name in enumerate(names or ()) if name in targets}
    if columns is not None and names is not None:
        x, names = _in_order(x, names, columns, targets, data.source, columns_of_indicators(categories or {}))
    if tuple(x.shape[1:]) != tuple(shape):
        raise DataError(f"{data.source}: {_in_words(x.shape[1:])}, but the model was trained on {_in_words(shape)}")
    scaled = (x if scaling is None else scaling.scaled(x)).to(torch.float32)  # what models are trained in
    too_large = (scaled.abs() > LARGEST).flatten(1).any(1)
    if bool(too_large.any()):
        row = int(too_large.nonzero()[0])
        raise DataError(f"{data.source}: row {row} has a number too large for the model; mark missing values as NaN")
    table = names or columns, data.feature_names or columns, aside
    return Rows(scaled, x, data.y, data.source, *table, data.files, data.new_levels)


def _in_order(
    x: Tensor,
    names: tuple[str, ...],
    columns: tuple[str, ...],
    targets: Sequence[str],
    source: str,
    indicators: Mapping[str, str],
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the columns in the order of training; refuse missing and unknown ones."""
    missing = [name for name in columns if name not in names]
    extra = [name for name in names if name not in columns and name not in targets]
    if missing or extra:
        missing = list(dict.fromkeys(indicators.get(name, name) for name in missing))
        lacks = f" lacks {', '.join(missing[:5])}" if missing else ""
        has = f" has {', '.join(extra[:5])}, which was not there in training" if extra else ""
        raise DataError(f"{source}{lacks}{' and' if lacks and has else ''}{has}; its columns must be those of training")
    return x[:, torch.tensor([names.index(name) for name in columns])], columns


def _in_words(shape: Sequence[int]) -> str:
    """Describe the shape of an example in words."""
    if len(shape) == 1:
        return f"{shape[0]} columns"
    if len(shape) == 3:
        return f"images of {shape[1]}x{shape[2]} pixels in {shape[0]} channel{'s' if shape[0] > 1 else ''}"
    return f"data of shape {list(shape)}"

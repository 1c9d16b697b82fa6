"""Describe what can be explored: a model, and how its inputs and outputs are converted to the units of the data."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marquis.data import Data, load
from marquis.data.value import rows_at_random
from marquis.errors import DataError, UnsupportedOperationError
from marquis.run.rows import Rows
from marquis.tasks.batches import as_tensor, dtype_of

UNNAMED = "data"
"""Where rows came from if they have no name."""
IMPUTATIONS, AVERAGED = 16, 3
"""Imputations of a row, and networks that each of them averages."""


@dataclass(frozen=True, eq=False)
class Points:
    """Hold rows that are shown on the map, in the units of the data.

    Attributes:
        rows: `[n, ...]`; NaN where an entry is missing.
        labels: One number or text per row, or None.
        source: Where the rows came from.
        columns: Names of the columns of a table.
        levels: Of categorical columns, whose values are numbers of levels: the names of the levels by column.
    """

    rows: np.ndarray
    labels: np.ndarray | None
    source: str
    columns: tuple[str, ...] | None = None
    levels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def random_subset(self, most: int | None) -> Points:
        """Return at most `most` rows, chosen at random and in their order."""
        if most is None or len(self.rows) <= most:
            return self
        chosen = rows_at_random(len(self.rows), most, 0)
        labels = None if self.labels is None else self.labels[chosen]
        return replace(self, rows=self.rows[chosen], labels=labels)


class ExploredModel:
    """Wrap a model that takes rows as they are; the base class of models with units of their own.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`; a module is copied, in evaluation mode, so that
            threads may share the copy and the caller may go on training.
        name: What to call it.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        missing = [part for part in ("encode", "decode", "reconstruct") if not callable(getattr(model, part, None))]
        if missing:
            raise UnsupportedOperationError(
                f"{type(model).__name__} has no method `{missing[0]}`; the explorer takes a run's folder, a model of "
                "marquis.autoencoders, a marquis.sklearn.LaplacianAutoencoder, or anything with encode, decode and "
                "reconstruct"
            )
        self.model: Any = copy.deepcopy(model).eval() if isinstance(model, nn.Module) else model
        self.name = name or type(model).__name__

    def inputs(self, rows: np.ndarray) -> Tensor:
        """Return rows `[n, ...]` as the model takes them."""
        return torch.from_numpy(np.ascontiguousarray(rows)).to(dtype_of(self.model))

    def rows(self, x: Tensor) -> np.ndarray:
        """Return the model's rows `[..., *shape]` in the units of the data."""
        return x.numpy()

    def stds(self, std: Tensor) -> np.ndarray:
        """Return standard deviations of the model's rows in the units of the data."""
        return std.numpy()

    def entries(self, values: Tensor) -> np.ndarray:
        """Return numbers without a unit, one per entry of the model's rows, in the shape of a row of the data."""
        return values.numpy()

    def points(self, data: Any, labels: Any = None) -> Points:
        """Return rows for the map from what the user has."""
        return points_of_data(data, labels)

    def read(self, path: Path) -> Points:
        """Return the rows of a file."""
        return self.points(load(path))

    def reference(self) -> Tensor | None:
        """Return training rows as the model takes them, to which scores are compared; None if there are none."""
        return None

    def impute(self, x: Tensor, fill: Tensor, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, standard deviation and samples of one row `x [1, ...]` with NaN, in the units of the data.

        Args:
            x: As the model takes it.
            fill: What missing entries start from: the mean of the data.
            generator: For noise and networks.
        """
        from marquis.tasks.imputation import impute

        start: Any = fill if x.dim() == 2 else "noise"
        if getattr(self.model, "missing", False) == "mask":  # its encoder would take a fill for an observation
            start = "missing"
        options: dict[str, Any] = {"samples": IMPUTATIONS, "averaged": AVERAGED, "progress": False}
        result = impute(self.model, x, fill=start, generator=generator, **options)
        return self.rows(result.mean[0]), self.stds(result.total_variance[0].sqrt()), self.rows(result.samples[:, 0])


class ExploredRun(ExploredModel):
    """Wrap a finished run of `marquis train`: images as they are, tables with the run's scaling.

    Args:
        path: Its folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from marquis.run import Run

        self.run = Run.open(path)
        super().__init__(self.run.model(), f"{Path(path).resolve().name} ({self.run.spec.kind})")

    def inputs(self, rows: np.ndarray) -> Tensor:  # noqa: D102
        if rows.shape[1:] != tuple(self.run.spec.shape):
            shapes = f"rows of shape {list(rows.shape[1:])}, but {list(self.run.spec.shape)} in training"
            raise DataError(f"{self.name}: {shapes}")
        x = torch.from_numpy(np.ascontiguousarray(rows))
        return (x if self.run.scaling is None else self.run.scaling.scaled(x)).to(torch.float32)

    def rows(self, x: Tensor) -> np.ndarray:  # noqa: D102
        return (x if self.run.scaling is None else self.run.scaling.unscaled(x)).numpy()

    def stds(self, std: Tensor) -> np.ndarray:  # noqa: D102
        return (std if self.run.scaling is None else self.run.scaling.deviations(std)).numpy()

    def read(self, path: Path) -> Points:  # noqa: D102
        return self.named(str(path))

    def named(self, name: str, split: str | None = None, most: int | None = None) -> Points:
        """Return rows of a data set, file or folder, checked against those of training."""
        options: dict[str, Any] = {"allow_missing": True}
        if name == str(self.run.settings.data):
            options["header"] = self.run.settings.header
        return replace(_points_of_rows(self.run.read(name, split=split, some=most, **options)), source=Path(name).name)

    def points_of_run(self, split: str, most: int | None) -> Points:
        """Return the run's own rows: those held out ("test"), those of training, or all."""
        return self.named(str(self.run.settings.data), split, most)

    def reference(self) -> Tensor | None:  # noqa: D102
        data_module = self.run.data_module
        data_module.setup()
        return data_module.train.random_rows(1000, 0).x


class ExploredEstimator(ExploredModel):
    """Wrap a fitted `marquis.sklearn.LaplacianAutoencoder`, whose network takes standardised columns that vary."""

    def __init__(self, estimator: Any) -> None:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "model_")
        super().__init__(estimator.model_, type(estimator).__name__)
        self.estimator = copy.deepcopy(estimator)

    def inputs(self, rows: np.ndarray) -> Tensor:  # noqa: D102
        return self.estimator._inputs(rows.astype(np.float64))

    def rows(self, x: Tensor) -> np.ndarray:  # noqa: D102
        return self.estimator._columns.rows(x.numpy())

    def stds(self, std: Tensor) -> np.ndarray:  # noqa: D102
        return self.estimator._columns.deviations(std.numpy())

    def points(self, data: Any, labels: Any = None) -> Points:  # noqa: D102
        import pandas as pd

        names = getattr(self.estimator, "feature_names_in_", None)
        columns, source = None if names is None else tuple(map(str, names)), UNNAMED
        if isinstance(data, Data):
            points = points_of_data(data, labels)
            labels, source = points.labels, points.source
            data = points.rows if points.columns is None else pd.DataFrame(points.rows, columns=list(points.columns))
        if columns is not None and isinstance(data, pd.DataFrame):  # in the order of training, without others
            absent = [name for name in columns if name not in data.columns]
            if absent:
                raise DataError(f"{source}: there is no column {absent[0]!r}, which the estimator was fitted to")
            data = data[list(columns)]
        try:
            rows = self.estimator._validated(data)  # categories become numbers of levels
        except ValueError as problem:
            raise DataError(f"{source}: {problem}") from problem
        levels = {category.column: tuple(map(str, category.levels)) for category in self._categories}
        return Points(rows, _labels(labels, len(rows)), source, columns, levels)

    def read(self, path: Path) -> Points:
        """Return the rows of a file; a .csv file may hold the names of categories."""
        if not self._categories or path.suffix.lower() != ".csv":
            return super().read(path)
        import pandas as pd

        try:
            table = pd.read_csv(path)
        except ValueError as problem:
            raise DataError(f"{path} cannot be read: {problem}") from problem
        return replace(self.points(table), source=path.name)

    @property
    def _categories(self) -> Sequence[Any]:
        return getattr(self.estimator, "_categories", ())

    def entries(self, values: Tensor) -> np.ndarray:
        """Return sums over the network's inputs of each column: several of a category, none of a constant one."""
        columns = self.estimator._columns
        levels = [np.full(len(category.levels), category.column) for category in columns.categories]
        owners = np.concatenate([columns.numbers, *levels])
        summed = torch.zeros(*values.shape[:-1], self.estimator.n_features_in_, dtype=torch.float64)
        return summed.index_add(-1, torch.from_numpy(owners.astype(np.int64)), values.double()).numpy()

    def impute(self, x: Tensor, fill: Tensor, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # noqa: D102
        if self._categories:
            return super().impute(x, fill, generator)
        row = np.where(self.entries(x.isnan().double()) > 0, np.nan, self.rows(x.nan_to_num(0.0)))
        result = self.estimator.impute(row, IMPUTATIONS, random_state=int(generator.initial_seed() % 2**31))
        return np.asarray(result.mean)[0], np.asarray(result.std)[0], result.samples[:, 0]


def explored_model(model: Any) -> ExploredModel:
    """Return the explored model for a run's folder, an estimator, or a model of the protocol."""
    if isinstance(model, ExploredModel):
        return model
    if isinstance(model, (str, os.PathLike)):
        return ExploredRun(model)
    if hasattr(model, "inverse_transform"):
        return ExploredEstimator(model)
    return ExploredModel(model)


def points_of_data(data: Any, labels: Any = None) -> Points:
    """Return rows for the map from `marquis.data.Data`, an array, a tensor or a pandas table.

    Raises:
        DataError: There are no rows, or not one label per row.
    """
    columns, source = None, UNNAMED
    if isinstance(data, Data):
        rows, source, columns = data.x.numpy(), data.source or data.name, data.feature_names
        labels = data.y if labels is None else labels
    else:
        if hasattr(data, "columns"):
            columns = tuple(str(name) for name in data.columns)
        rows = as_tensor(data, "data").detach().cpu().numpy()
    if rows.ndim < 2 or len(rows) == 0:
        raise DataError(f"data of shape {list(rows.shape)}: rows come first, [n, ...], and there is at least one")
    if not np.issubdtype(rows.dtype, np.floating):
        rows = rows.astype(np.float64)
    return Points(rows, _labels(labels, len(rows)), source, columns)


def _points_of_rows(rows: Rows) -> Points:
    """Return the rows of a run as points, with a label if there is one."""
    labels: Any = rows.y
    if labels is None and rows.aside:
        labels = next(iter(rows.aside.values()))
    return Points(rows.original.numpy(), _labels(labels, len(rows.original)), rows.source, rows.names)


def _labels(labels: Any, count: int) -> np.ndarray | None:
    """Return one label per row; None without labels."""
    if labels is None:
        return None
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] >= 1 else values
    if values.shape != (count,):
        raise DataError(f"labels of shape {list(values.shape)} for {count} rows: one label for each row")
    return values


def column_names(points: Points) -> Sequence[str]:
    """Return the names of a table's columns, column 1, column 2, ... where it has none."""
    return points.columns or [f"column {number + 1}" for number in range(points.rows.shape[1])]

"""Hold what a page shows: one or two models with the same data, and a second data set beside them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from marquis.arguments import checked_methods
from marquis.data.limits import allowing
from marquis.errors import DataError
from marquis.explorer.explored_models import UNNAMED, ExploredModel, ExploredRun, Points, column_names, explored_model
from marquis.explorer.session import BACKGROUNDS, Answer, Session
from marquis.explorer.thumbnails import SHEET, is_image, sheet_png
from marquis.tasks.contributions import EXPLAINED

UPLOADS = (".csv", ".npy", ".npz", ".parquet")
MOST_UNPACKED = 2**30
"""Bytes to which an uploaded file may unpack."""
SECOND = "second data set"
MOST_ROWS = 10_000
"""Rows that are shown unless another number is given."""


@checked_methods
class Workspace:
    """Hold sessions of one or two models over the same rows, and a second data set.

    Args:
        models: One or two run folders, estimators or models of the protocol.
        data: Rows; by default those that the first run held out.
        labels: Of the rows.
        second: A second data set: rows, or for a run the name or path of data.
        split: Which of a run's own rows: "test", "train" or "all".
        most: Maximum number of rows, chosen at random.
        progress: Show bars on a terminal.
    """

    def __init__(
        self,
        models: Sequence[Any],
        data: Any = None,
        labels: Any = None,
        second: Any = None,
        *,
        split: str = "test",
        most: int | None = MOST_ROWS,
        progress: bool = True,
    ) -> None:
        if not 1 <= len(models) <= 2:
            raise DataError(f"the explorer shows one model or two side by side, not {len(models)}")
        explored = [explored_model(model) for model in models]
        if len(explored) == 2 and explored[0].name == explored[1].name:
            explored[0].name, explored[1].name = f"{explored[0].name} 1", f"{explored[1].name} 2"
        self.points = _rows(explored[0], data, labels, split).random_subset(most)
        self.sessions = [Session(each, self.points, progress=progress) for each in explored]
        self.most, self._lock = most, threading.Lock()
        self.second: tuple[Points, list[Answer]] | None = None
        if second is not None:
            other = _rows(explored[0], second, None, None)
            self.set_second(replace(other, source=SECOND) if other.source == UNNAMED else other)

    def set_second(self, points: Points) -> None:
        """Compare with another data set, in the place of the one before."""
        if points.rows.shape[1:] != self.points.rows.shape[1:]:
            shapes = f"{list(points.rows.shape[1:])} instead of {list(self.points.rows.shape[1:])}"
            raise DataError(f"{points.source}: rows of shape {shapes}")
        points = points.random_subset(self.most)
        compared = [session.compare(points) for session in self.sessions]
        with self._lock:
            self.second = points, compared

    def read_second(self, name: str, content: bytes) -> None:
        """Read an uploaded file in a temporary folder and compare with it.

        Args:
            name: The file's name on the user's machine, of which only the ending is used.
            content: What is in it.

        Raises:
            DataError: The ending is none of `UPLOADS`, or the file cannot be read.
        """
        suffix = Path(name).suffix.lower()
        if suffix not in UPLOADS:
            raise DataError(f"{_short_name(name)}: files ending in {', '.join(UPLOADS)} are read")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"upload{suffix}"
            path.write_bytes(content)
            try:
                with allowing(MOST_UNPACKED):
                    points = self.sessions[0].explored.read(path)
            except DataError as problem:
                raise DataError(str(problem).replace(str(path), _short_name(name))) from problem
        self.set_second(replace(points, source=_short_name(name)))

    def session(self, number: int) -> Session:
        """Return the session of a model, from 0."""
        if not 0 <= number < len(self.sessions):
            raise DataError(f"model {number}: there are {len(self.sessions)}, numbered from 0")
        return self.sessions[number]

    def row(self, number: int, data: str = "main") -> Any:
        """Return a row for `Session.explain`: its number in the main data, or the row itself in the second."""
        if data == "main":
            return number
        if self.second is None:
            raise DataError("there is no second data set")
        rows = self.second[0].rows
        if not 0 <= number < len(rows):
            raise DataError(f"row {number}: rows of the second data set are numbered from 0 to {len(rows) - 1}")
        return rows[number]

    def sheet(self, data: str, number: int) -> bytes:
        """Return a PNG with the thumbnails of `SHEET` rows.

        Raises:
            DataError: The rows are no images, or there is no such sheet.
        """
        points = self.points if data == "main" else self.second[0] if self.second else None
        if points is None or not is_image(points.rows) or not 0 <= number * SHEET < len(points.rows):
            raise DataError(f"there is no sheet {number} of thumbnails")
        low, high = self.value_range
        return sheet_png(points.rows[number * SHEET : (number + 1) * SHEET], low, high)

    @property
    def value_range(self) -> tuple[float, float]:
        """Return what is shown as black and as white: 0 and 1, or the extremes of images that exceed them."""
        if not is_image(self.points.rows):
            return 0.0, 1.0
        return min(0.0, float(np.nanmin(self.points.rows))), max(1.0, float(np.nanmax(self.points.rows)))

    # --- what the page loads at its start ------------------------------------------------------------------

    def about(self) -> Answer:
        """Return what there is: the models, the data, and what can be asked."""
        rows, image = self.points.rows, is_image(self.points.rows)
        names, labels = _class_numbers(self.points.labels)
        return {
            "kind": "image" if image else "table",
            "shape": list(rows.shape[1:]),
            "rows": len(rows),
            "source": self.points.source,
            "columns": None if image else list(column_names(_flat_points(self.points))),
            "values": None if image else rows.reshape(len(rows), -1),
            "levels": {str(column): list(names) for column, names in self.points.levels.items()},
            "labels": labels,
            "label_names": names,
            "range": list(self.value_range),
            "sheet": SHEET,
            "backgrounds": list(BACKGROUNDS),
            "explained": list(EXPLAINED),
            "uploads": list(UPLOADS),
            "models": [self._model(session) for session in self.sessions],
        }

    @staticmethod
    def _model(session: Session) -> Answer:
        """Return what the page shows of one model."""
        center, directions = session.principal
        return {
            "name": session.explored.name,
            "latent": session.latent,
            "codes": session.codes,
            "code_std": session.code_std,
            "scores": session.scores,
            "networks": session.decoders.count,
            "std_scale": session.std_scale,
            "center": center,
            "directions": directions,
        }

    def about_second(self) -> Answer:
        """Return the second data set, or `rows` 0 if there is none."""
        second = self.second
        if second is None:
            return {"rows": 0, "models": []}
        names, labels = _class_numbers(second[0].labels)
        rows = second[0].rows
        values = None if is_image(rows) else rows.reshape(len(rows), -1)
        shared = {"rows": len(rows), "source": second[0].source, "labels": labels, "label_names": names}
        return {**shared, "values": values, "models": second[1]}


def _rows(explored: ExploredModel, data: Any, labels: Any, split: str | None) -> Points:
    """Return the points to show: those that were passed, or those of the run."""
    if isinstance(data, Points):
        return data
    if isinstance(explored, ExploredRun) and (data is None or isinstance(data, (str, Path))):
        return explored.points_of_run(split or "test", None) if data is None else explored.named(str(data))
    if data is None:
        raise DataError("data= is needed: only a run's folder knows its own data")
    return explored.read(Path(data)) if isinstance(data, (str, Path)) else explored.points(data, labels)


def _flat_points(points: Points) -> Points:
    """Return points with flat rows."""
    return points if points.rows.ndim == 2 else Points(points.rows.reshape(len(points.rows), -1), None, points.source)


def _short_name(name: str) -> str:
    """Return a file's own name, in one line of reasonable length."""
    return " ".join(name.replace("\\", "/").rsplit("/", 1)[-1].split())[:80] or "file"


MOST_CLASSES = 40
"""Different labels up to which they are classes with a colour each; more numbers are a scale."""


def _class_numbers(labels: np.ndarray | None) -> tuple[list[str] | None, np.ndarray | None]:
    """Return the names of classes and the number of each row's class; numbers that are no classes stay as they are."""
    if labels is None:
        return None, None
    values, codes = np.unique(labels, return_inverse=True)
    if len(values) > MOST_CLASSES and np.issubdtype(labels.dtype, np.number):
        return None, labels.astype(float)
    whole = np.issubdtype(labels.dtype, np.floating) and bool((values == np.floor(values)).all())
    return [str(int(value)) if whole else str(value) for value in values], codes.astype(float)

"""Write results in the format of the file's ending, atomically, and never over an existing file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marquis.data.header import FORMULA, is_number
from marquis.errors import DataError
from marquis.io.atomic import replacing, storage_errors

if TYPE_CHECKING:
    from marquis.run import Run

TABLES, ARRAYS, IMAGES = (".csv", ".parquet"), (".npz",), (".png",)
SMALLEST_EDGE = 56
"""Edge to which small images are enlarged, pixel by pixel, so that they can be seen."""


def require_free(
    path: Path, force: bool, suffixes: Sequence[str] = (), source: str | None = None, option: str = "--out"
) -> None:
    """Refuse a file that cannot or must not be written, before anything is computed.

    Args:
        path: The file.
        force: Whether it may exist.
        suffixes: Its possible endings.
        source: File that is read.
        option: What the user names the file by.

    Raises:
        DataError: It exists (without `force`), its folder does not or is read-only, its ending is not one of
            `suffixes`, or it is the `source` that is read, which may be the user's only copy.
    """
    with storage_errors(path):
        if suffixes and path.suffix.lower() not in suffixes:
            raise DataError(f"{option} {path}: the file must end in {' or '.join(suffixes)}")
        if not path.parent.is_dir():
            raise DataError(f"{option} {path}: the folder {path.parent} does not exist; make it first")
        if not os.access(path.parent, os.W_OK):
            raise DataError(f"{option} {path}: the folder {path.parent} is read-only; choose another")
        if path.is_dir():
            raise DataError(f"{option} {path} is a folder; give the name of a file")
        read = None if source is None else Path(source).expanduser()
        if read is not None and path.exists() and read.exists() and path.samefile(read):
            raise DataError(f"{option} {path} is the file that is read; choose another name")
        if path.exists() and not force:
            raise DataError(f"{path} exists already; --force overwrites it")


def suffixes_of(run: Run) -> tuple[str, ...]:
    """Return the endings of files that can hold rows of a run: a table or images, and in any case arrays."""
    return (*TABLES, *ARRAYS) if run.is_table else (*IMAGES, *ARRAYS)


def check_std_names(incomplete: Iterable[str], names: Container[str], source: str) -> None:
    """Refuse a table in which NAME_std, the error bars of an incomplete column, is the name of another column."""
    for name in incomplete:
        if f"{name}_std" in names:
            raise DataError(
                f"{source} has a column {name}_std, which is what the error bars of {name} would be called; "
                "rename it, or write an .npz file where the table has no categories"
            )


def beside_run(run: Path, what: str, data: str, linear: bool = False) -> Path:
    """Return the default file of results: `RUN/what-DATA.csv`, DATA the name of the data or of their file.

    Results of the linearised network go to `RUN/what-DATA-linearised.csv`.
    """
    source = Path(data).expanduser()
    name = source.resolve().stem if source.exists() else data.replace("/", "-")
    return run / f"{what}-{name}{'-linearised' if linear else ''}.csv"


def column_names(names: Sequence[str] | None, width: int) -> tuple[str, ...]:
    """Return the names of a table's columns, where there are none column_1, column_2, ..."""
    return tuple(names or (f"column_{number}" for number in range(1, width + 1)))


def as_text(name: str) -> str:
    """Return a column's name as text for a spreadsheet: one that begins like a formula gets an apostrophe.

    `data.csv_files` removes it again.
    """
    return f"'{name}" if name.startswith(FORMULA) and not is_number(name) else name


def path_column(files: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return a first column with the path of each row, where rows are images of a folder."""
    return {} if files is None else {"path": np.array(files)}


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write named columns as .csv or .parquet (missing values stay empty), or the arrays as .npz."""
    suffix = path.suffix.lower()
    with replacing(path) as temporary:
        if suffix in ARRAYS:
            with open(temporary, "wb") as file:
                np.savez_compressed(file, **columns)  # pyright: ignore[reportArgumentType]
            return
        import pandas as pd

        frame = pd.DataFrame(dict(columns))
        if suffix == ".csv":
            frame.columns = [as_text(str(name)) for name in frame.columns]
            frame.to_csv(temporary, index=False, lineterminator="\n")
            return
        try:
            frame.to_parquet(temporary, index=False)
        except ImportError as problem:
            raise DataError(f"{path}: writing parquet needs pyarrow; use .csv, or `pip install pyarrow`") from problem


def write_figure(path: Path, draw: Callable[[], Any]) -> None:
    """Write the matplotlib figure that `draw` returns as PNG."""
    figure = draw()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, bbox_inches="tight")


def write_images(path: Path, images: np.ndarray, group: int = 1) -> None:
    """Write images `[n, C, H, W]` in [0, 1] side by side as one PNG, nearly square; 1 or 3 channels.

    Args:
        path: The file.
        images: What to show.
        group: Number of neighbouring images that stay in one row.

    Raises:
        DataError: Not images.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(f"--out {path}: data of shape {list(images.shape[1:])} are no images; use .npz or .csv")
    from PIL import Image

    n, channels, height, width = images.shape
    times = max(1, math.ceil(SMALLEST_EDGE / min(height, width)))
    across = group * math.ceil(math.sqrt(n / group) / math.sqrt(group))
    down = math.ceil(n / across)
    cell_height, cell_width = height * times + 2, width * times + 2
    sheet = np.ones((channels, down * cell_height, across * cell_width), np.float32)
    for number, image in enumerate(images):
        top, left = (number // across) * cell_height + 1, (number % across) * cell_width + 1
        large = image.repeat(times, 1).repeat(times, 2)
        sheet[:, top : top + height * times, left : left + width * times] = large
    pixels = (sheet.clip(0, 1) * 255).round().astype(np.uint8)
    image_file = Image.fromarray(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0))
    with replacing(path) as temporary:
        image_file.save(temporary)

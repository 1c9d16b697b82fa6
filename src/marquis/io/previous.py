"""Two generations of a file: the newest, and the one before it in case the newest turns out to be damaged."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from marquis.errors import DataError
from marquis.io.atomic import destination, replacing, storage_errors

Contents = TypeVar("Contents")


def previous_of(path: str | os.PathLike[str]) -> Path:
    """Return the name of the older generation, `last.previous.ckpt` for `last.ckpt`."""
    path = Path(path)
    return path.with_name(f"{path.stem}.previous{path.suffix}")


@contextmanager
def replacing_twice(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file as `replacing` does; what stood there before becomes the previous generation.

    The old file gets its second name before the new one takes its place, so that at every moment at least one
    complete generation is there.
    """
    path = destination(path)
    with replacing(path) as temporary:
        yield temporary
        older = previous_of(path)
        with storage_errors(older):
            if path.exists():
                link = older.with_name(f".part-{older.name}")
                link.unlink(missing_ok=True)
                try:
                    os.link(path, link)
                    os.replace(link, older)
                except OSError:  # a file system without hard links: the rename leaves a moment with the older one only
                    os.replace(path, older)


def read_newest(path: str | os.PathLike[str], read: Callable[[Path], Contents]) -> Contents:
    """Read the newest generation, or the previous one with a warning where the newest is damaged.

    Args:
        path: The file.
        read: Reads and verifies one file; raises `DataError` where it is damaged.

    Raises:
        DataError: Both are damaged, or the only one is.
    """
    path, older = Path(path), previous_of(path)
    try:
        return read(path)
    except DataError as error:
        if not older.exists():
            raise
        with suppress(DataError):
            contents = read(older)
            warnings.warn(f"{error} Continuing from the one before it, {older}.", stacklevel=2)
            return contents
        raise


def remove_both(path: str | os.PathLike[str]) -> None:
    """Remove both generations."""
    for file in (Path(path), previous_of(path)):
        file.unlink(missing_ok=True)

"""Keep two generations of a file: the newest, and the one before it in case the newest is damaged."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from marquis.errors import DataError
from marquis.io.atomic import destination, leftover_of, remove_leftovers, replacing, storage_errors

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
                try:
                    _link(path, older)
                except OSError:  # a file system without hard links: the rename leaves a moment with the older one only
                    os.replace(path, older)


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, in place of whatever has that name."""
    remove_leftovers(name.parent, f"{leftover_of(name)}*{name.suffix}")
    link = name.with_name(f"{leftover_of(name)}{os.getpid()}{name.suffix}")
    link.unlink(missing_ok=True)
    os.link(path, link)
    os.replace(link, name)


def read_newest(path: str | os.PathLike[str], read: Callable[[Path], Contents]) -> Contents:
    """Read the newest generation, or the previous one with a warning where the newest is damaged or gone.

    The previous one then also gets the newest one's name, lest the next write keeps the damaged one as the previous.

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
            with suppress(OSError):  # a folder that may only be read
                _link(older, path)
            warnings.warn(f"{error} Continuing from the one before it, {older}.", stacklevel=2)
            return contents
        raise


def any_generation(path: str | os.PathLike[str]) -> bool:
    """Return whether one of the two generations is there."""
    return Path(path).exists() or previous_of(path).exists()


def remove_both(path: str | os.PathLike[str]) -> None:
    """Remove both generations."""
    for file in (Path(path), previous_of(path)):
        file.unlink(missing_ok=True)

"""Files that are there completely or not at all, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LEFTOVER = ".part-"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file next to `path`, which takes its place when the block ends well and is removed if it does not.

    It has the same suffix, because some writers go by that. What a killed process left, `remove_leftovers` removes.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{LEFTOVER}{path.stem}-", suffix=path.suffix)
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb+") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes it private; results are as public as any other file
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Text in UTF-8, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Numbers and texts as JSON, completely or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what processes that were killed in the middle of `replacing` left in a folder."""
    for path in Path(folder).glob(f"{LEFTOVER}*"):
        path.unlink(missing_ok=True)

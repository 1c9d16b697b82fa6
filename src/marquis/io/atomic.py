"""Write files so that they are there completely or not at all, whatever happens meanwhile."""

from __future__ import annotations

import fnmatch
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marquis.errors import StorageError

LEFTOVER = ".part-"
"""Prefix of files that are being written; one that no process has locked is what a killed process left."""


@contextmanager
def storage_errors(path: str | os.PathLike[str], action: str = "written") -> Iterator[None]:
    """Turn the system's errors (disk full, read-only, too long a name, I/O error) into `StorageError` with the path."""
    try:
        yield
    except StorageError:
        raise
    except OSError as problem:
        reason = problem.strerror or str(problem) or type(problem).__name__
        error = StorageError(f"{path} cannot be {action}: {reason}.")
        error.errno = problem.errno
        raise error from problem


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and those above it, unless they are there.

    Raises:
        StorageError: The system cannot make it; names the path.
    """
    path = Path(path)
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def destination(path: str | os.PathLike[str]) -> Path:
    """Return the file that a write to `path` replaces.

    A link inside its own folder is followed, so that the link stays one. Everything that is not a regular file is
    refused: a rename would put a plain file in the place of a device, and as root that succeeds.

    Raises:
        StorageError: The path is a folder, a device, a pipe or a socket, or a link to another folder.
    """
    path = Path(path)
    with storage_errors(path):
        if not path.name:
            raise StorageError(f"{str(path)!r} names no file; choose a name.")
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if target.parent != Path(os.path.realpath(path.parent)):
                raise StorageError(f"{path} is a link to {target}, in another folder; name that file itself.")
            path = target
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return path
        if not stat.S_ISREG(mode):
            raise StorageError(f"{path} is {_kind(mode)}, not a regular file; choose another name.")
    return path


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
    return kinds.get(stat.S_IFMT(mode), "a device")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that takes the place of `path` when the block ends well, and is removed if it does not.

    It has the same suffix, because some writers go by that. What a killed process left of an earlier write to the same
    path is removed first.

    Raises:
        StorageError: The system cannot write there, or `destination` refuses the path.
    """
    path = destination(path)
    with storage_errors(path):
        remove_leftovers(path.parent, f"{leftover_of(path)}*{path.suffix}")
        handle, name = _temporary(path)
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
        finally:
            if handle is not None:
                os.close(handle)


def leftover_of(path: Path) -> str:
    """Return how the names of temporary files of a path begin; cut, so that a name of the greatest length has one."""
    return f"{LEFTOVER}{path.stem[:64]}-"


def _temporary(path: Path) -> tuple[int | None, str]:
    """Make a temporary file, and return what holds its lock (None where the system has no such locks) and its name."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=leftover_of(path), suffix=path.suffix)
        if not _locked(handle):
            os.close(handle)
            return None, name
        with suppress(FileNotFoundError):  # another process took it for a left-over before it was locked
            if os.path.samestat(os.fstat(handle), os.stat(name)):
                return handle, name
        os.close(handle)


def _locked(handle: int) -> bool:
    """Return whether the lock of an open file could be taken; False also where there are none."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows; held by another process, or a file system without locks
        return False
    return True


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text in UTF-8, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write numbers and texts as JSON, completely or not at all; `io.checksum.write_json` adds a checksum."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def remove_leftovers(folder: str | os.PathLike[str], pattern: str = "*") -> None:
    """Remove what processes that were killed in the middle of `replacing` left; never what one still writes.

    Args:
        folder: Where to look.
        pattern: Which names; of these only temporary ones.
    """
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(LEFTOVER)]
    except OSError:  # not there, or not to be listed
        return
    for name in names:
        path = Path(folder, name)
        if not fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
            continue
        with suppress(OSError):
            handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                if _locked(handle):
                    path.unlink(missing_ok=True)
            finally:
                os.close(handle)

"""An exclusive lock on a folder or file that the operating system releases when its process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marquis.errors import StorageError
from marquis.io.atomic import storage_errors

SUFFIX = ".lock"


@contextmanager
def exclusive(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Hold the only right to write to `path` for the length of a block.

    The lock is the system's (`flock`), not the presence of a file: a process that is killed, however, leaves none.
    The empty file `NAME.lock` (inside a folder: `.lock`) only carries it and stays, because to remove it while
    another process is about to lock it would let two hold it.

    Args:
        path: A folder that exists, or a file that may come to be in one.
        what: What is written there, for the message, such as "a training".

    Raises:
        StorageError: Another process holds it; the message names its number.
    """
    path = Path(path)
    file = path / SUFFIX if path.is_dir() else path.with_name(f".{path.name}{SUFFIX}")
    with storage_errors(file, "locked"):
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if not _try_lock(handle):
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            raise StorageError(
                f"{path} is being written by {what} in another process (number {holder}); wait for it, stop it, or "
                "choose another place."
            )
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # and with it the lock


def _try_lock(handle: int) -> bool:
    """Take the lock unless another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

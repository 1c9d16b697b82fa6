"""Lock a folder or file exclusively; the operating system releases the lock when its process dies."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marquis.errors import StorageError
from marquis.io.atomic import storage_errors

SUFFIX = ".lock"
_held: dict[str, int] = {}
"""Files that carry a lock of this process, and the thread that holds each."""


@contextmanager
def exclusive(path: str | os.PathLike[str] | None, what: str, *, again: bool = False) -> Iterator[None]:
    """Hold the only right to write to `path` for the length of a block.

    The lock is the system's (`flock`), not the presence of a file: a process that is killed, however, leaves none. The
    file `.NAME.lock` (inside a folder: `.lock`) only carries it.

    Args:
        path: A folder that exists, or a file that may come to be in one; None where nothing is written.
        what: What is written there, for the message, such as "a training".
        again: Whether the thread that holds the lock may take it again, which changes nothing.

    Raises:
        StorageError: Another process (the message names its number) or thread holds it.
    """
    if path is None:
        yield
        return
    path = Path(path)
    file = path / SUFFIX if path.is_dir() else path.with_name(f".{path.name}{SUFFIX}")
    key = os.path.realpath(file)
    if again and _held.get(key) == threading.get_ident():
        yield
        return
    handle = _locked(file, path, what)
    _held[key] = threading.get_ident()
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        del _held[key]
        file.unlink(missing_ok=True)  # before the lock goes: whoever opened this file meanwhile sees that it is gone
        os.close(handle)


def _locked(file: Path, path: Path, what: str) -> int:
    """Open the file that carries the lock and take it; the file may vanish between the two, then again."""
    while True:
        with storage_errors(file, "locked"):
            handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        if not _try_lock(handle, file):
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            another = "another thread" if holder == str(os.getpid()) else f"another process (number {holder})"
            raise StorageError(
                f"{path} is being written by {what} in {another}; wait for it, stop it, or choose another place."
            )
        try:
            if os.path.samestat(os.fstat(handle), os.stat(file)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


def _try_lock(handle: int, file: Path) -> bool:
    """Take the lock unless another process has it; warn where the file system has no locks."""
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
    except OSError as problem:
        warnings.warn(
            f"{file} cannot be locked ({problem.strerror}): its file system has no locks. See to it yourself that no "
            "other process writes there.",
            stacklevel=4,
        )
    return True


def is_first_process() -> bool:
    """Return whether this process is the one that writes, by what Lightning and torchrun tell those they start."""
    return not any(int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"))

"""Silence torch's own reports in one thread, while other threads keep theirs."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet(loggers: Sequence[str] = ()) -> Iterator[None]:
    """Drop warnings, writes to `sys.stderr` and records of some loggers that come from this thread within the context.

    `warnings.catch_warnings` and `contextlib.redirect_stderr` change what the whole process sees: another thread loses
    its messages meanwhile, or gets its filters back in the wrong order.
    """
    silenced = _ThisThread()
    entry: Any = ("ignore", silenced, Warning, None, 0)
    filters: Any = warnings.filters
    stream = sys.stderr
    named = [logging.getLogger(name) for name in loggers]
    filters.insert(0, entry)
    sys.stderr = proxy = _Stream(stream, silenced)
    for logger in named:
        logger.addFilter(silenced)
    try:
        yield
    finally:
        silenced.active = False  # copies of the filter may live on in lists that others have saved
        if entry in filters:
            filters.remove(entry)
        if sys.stderr is proxy:
            sys.stderr = stream
        for logger in named:
            logger.removeFilter(silenced)


class _ThisThread(logging.Filter):
    """Match messages of the thread that made it, as a pattern of `warnings` and as a filter of `logging`."""

    def __init__(self) -> None:
        super().__init__()
        self.thread, self.active = threading.get_ident(), True

    def match(self, text: str = "") -> bool:
        """Return whether a message of the running thread is to be dropped; `warnings` calls this."""
        return self.active and threading.get_ident() == self.thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is kept; `logging` calls this."""
        return not self.match()


class _Stream:
    """Drop what one thread writes to a stream."""

    def __init__(self, stream: Any, silenced: _ThisThread) -> None:
        self._stream, self._silenced = stream, silenced

    def write(self, text: str) -> int:
        """Write the text unless it comes from the silenced thread."""
        return len(text) if self._silenced.match() else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

"""Show a progress bar on a terminal, and only if the work takes a while."""

from __future__ import annotations

import time
from typing import Any

PATIENCE = 1.0
"""Seconds before a bar appears: what is over sooner needs none."""


class ProgressBar:
    """Show a bar on standard error, gone when finished; never written to a file or a pipe."""

    def __init__(self, description: str, total: int | None, wanted: bool = True) -> None:
        self._description, self._total, self._wanted = description, total, wanted
        self._started = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def advance(self) -> None:
        """Record that one step is done."""
        self._done += 1
        if self._wanted and self._bar is None and time.monotonic() - self._started >= PATIENCE:
            self._show()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def _show(self) -> None:
        """Start the bar if there is a terminal or a notebook."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            self._wanted = False
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(self._description, total=self._total)
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

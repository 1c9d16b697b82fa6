"""Run a piece of work in several threads that start at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 8


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(THREADS)

    def start(thread: int) -> Any:
        barrier.wait()
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))

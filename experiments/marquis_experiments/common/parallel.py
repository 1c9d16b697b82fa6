"""All cores for the cells of a study: processes that keep their results in files."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import wait
from typing import Any

import torch

MOST = 8
"""Maximum number of processes; each needs about 1 GB."""


def run_in_processes(
    work: Callable[..., str],
    jobs: Sequence[tuple[Any, ...]],
    say: Callable[[str], None] = print,
    workers: int | None = None,
) -> None:
    """Call `work(*job)` for every job, one process per core with one thread each.

    Small networks hardly profit from a second thread, two of them do from a second core.

    Args:
        work: Function of a module that keeps its result in files and returns a line of progress.
        jobs: Arguments of its calls.
        say: Function that prints the lines.
        workers: Number of processes, by default one per core. With one nothing is done: cells are then computed
            when they are read.
    """
    workers = min(len(jobs), MOST, os.cpu_count() or 1) if workers is None else workers
    if workers < 2 or not jobs:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        running = [pool.submit(work, *job) for job in jobs]
        try:
            for done in as_completed(running):
                say(done.result())
        except BaseException:  # no new job after a failure or an interrupt
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    """Use one thread in a worker, and end it when its parent has gone, by whatever signal."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)  # at once, in the middle of a training: results are written atomically

    threading.Thread(target=end_with_parent, daemon=True).start()

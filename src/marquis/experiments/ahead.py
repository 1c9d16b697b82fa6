"""All cores for the cells of an experiment, before its page asks for them one after the other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

MOST = 8
"""Processes at a time; each needs about 1 GB."""


def work_ahead(
    work: Callable[..., str],
    jobs: Sequence[tuple[Any, ...]],
    say: Callable[[str], None] = print,
    workers: int | None = None,
) -> None:
    """`work(*job)` for every job, one process per core with one thread each; what they keep is what they are for.

    Networks of this size hardly profit from a second thread, two of them do from a second core.

    Args:
        work: A function of a module, which keeps its result in files and says in a line what it did.
        jobs: Its arguments.
        say: Told that line.
        workers: Processes; by default one per core. With one, nothing is done: whoever wants a cell computes it.
    """
    workers = min(len(jobs), MOST, os.cpu_count() or 1) if workers is None else workers
    if workers < 2 or not jobs:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running = [pool.submit(work, *job) for job in jobs]
        try:
            for done in as_completed(running):
                say(done.result())
        except BaseException:  # nothing new is begun when one has failed or somebody has had enough
            pool.shutdown(wait=False, cancel_futures=True)
            raise

"""All cores for the models or cells of an experiment, before its page asks for them one after the other."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from marquis_experiments.shared_autoencoders import MODELS, Images, Recipe, is_trained, model

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
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        running = [pool.submit(work, *job) for job in jobs]
        try:
            for done in as_completed(running):
                say(done.result())
        except BaseException:  # nothing new is begun when one has failed or somebody has had enough
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    """In every worker: one thread, and an end when whoever started it is gone, by whatever signal."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)  # at once, in the middle of a training: results are written atomically

    threading.Thread(target=end_with_parent, daemon=True).start()


def train_ahead(
    folder: Path,
    recipe: Recipe,
    wanted: Iterable[tuple[str, int]],
    images: Images,
    load: Callable[[], Images],
    say: Callable[[str], None] = print,
    workers: int | None = None,
) -> None:
    """Train those models of `shared_autoencoders` that are not there yet, on all cores.

    Post-hoc models are left to whoever wants them: they take seconds, and need their plain autoencoder first.

    Args:
        folder: Of the shared models.
        recipe: Of all of them.
        wanted: Keys and seeds.
        images: Which they are trained on.
        load: Gives these images to another process: a function of a module, or a `functools.partial` of one.
        say: Told a line about each model.
        workers: As in `work_ahead`.
    """
    own = [(key, seed) for key, seed in dict.fromkeys(wanted) if MODELS[key][0] != "lae-posthoc"]
    missing = [job for job in own if not is_trained(folder, *job, recipe, images)]
    work_ahead(_train, [(folder, key, seed, recipe, load) for key, seed in missing], say, workers)


def _train(folder: Path, key: str, seed: int, recipe: Recipe, load: Callable[[], Images]) -> str:
    said: list[str] = []
    model(folder, key, seed, recipe, load(), said.append)
    return "; ".join(said)

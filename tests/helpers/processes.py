"""Starts the processes of a group, and tells what went wrong in which of them."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import multiprocessing as mp

PATIENCE = 300.0  # seconds: loaded machines start slowly, and a test that waits for ever tells nothing


def in_processes(function: Callable[..., None], folder: Path | str, *arguments: object, count: int = 2) -> None:
    """Calls `function(rank, folder, *arguments)` in every process of a new gloo group.

    Raises:
        AssertionError: a process raised, died or did not end; with the traceback of each one that raised.
    """
    meeting = Path(folder) / f"meeting-{time.monotonic_ns()}"
    meeting.mkdir()
    context = mp.get_context("spawn")
    group = [
        context.Process(target=_member, args=(function, rank, count, str(meeting), str(folder), arguments))
        for rank in range(count)
    ]
    for process in group:
        process.start()
    end = time.monotonic() + PATIENCE
    while any(p.is_alive() for p in group) and all(p.exitcode in (None, 0) for p in group) and time.monotonic() < end:
        time.sleep(0.02)
    for process in group:  # the others of a process that failed tell their side of it first
        process.join(30)
        process.kill()
        process.join()
    codes = [process.exitcode for process in group]
    message = "\n".join(path.read_text() for path in sorted(meeting.glob("error*")))
    assert not any(codes), f"exit codes {codes} of the processes\n{message}"


def _member(function: Callable[..., None], rank: int, count: int, meeting: str, folder: str, arguments: tuple) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}/store", rank=rank, world_size=count, timeout=timedelta(seconds=PATIENCE)
    )
    try:
        function(rank, folder, *arguments)
    except BaseException:
        Path(meeting, f"error{rank}").write_text(f"process {rank}:\n{traceback.format_exc()}")
        os._exit(1)
    # A process that leaves while another still reads from it is an error there; and the interpreter's own
    # end sometimes aborts in threads of gloo ("terminate called without an active exception"): it is left out.
    Path(meeting, f"done{rank}").touch()
    while len(list(Path(meeting).glob("done*"))) < count and not list(Path(meeting).glob("error*")):
        time.sleep(0.01)
    os._exit(0)

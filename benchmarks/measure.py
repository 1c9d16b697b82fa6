"""One measurement in a fresh process: `python -m benchmarks.measure memory W1 ours:sketched` prints one JSON line.

Memory: the peak of the resident set above its value just before the call, for the plain step and then for the curvature
call. Imports, the network, its batch and (by one warm-up call) the captured graph are there already and do not count;
tensors that the warm-up leaves behind (buffers kept between calls) are added: keeping them hides nothing. Every tensor
gets pages of its own, so that the number is what the call needs and not what the allocator happens to hold back.

Time: plain step and curvature call in turn on one pinned core, with the allocator as it is. The ratio is the median
over the turns of (curvature / plain step just before it; the median of three steps where the call is slow), so a slow
drift of the machine cancels.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.workloads import build, plain_step

MODULES = {
    "ours": "benchmarks.ours",
    "backpack": "benchmarks.peers_backpack",
    "curvlinops": "benchmarks.peers_curvlinops",
    "laplace": "benchmarks.peers_laplace",
}
MOST_TURNS, FEWEST_TURNS = 25, 15
MEGABYTE = 2.0**20
OWN_PAGES = 32 * 1024  # bytes from which on an allocation gets pages of its own while memory is measured


def pin_to_one_core() -> int | None:
    """Stay on one core, the last one allowed: the first one serves most interrupts."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        return None
    return core


def cpu_name() -> str:
    """Return the processor's name and its vector instructions."""
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = named[0].split(":", 1)[1].strip() if named else platform.machine()
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"


def _status(field: str) -> int:
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _own_pages() -> None:
    """Tell the C library to map every tensor and to unmap it when freed, instead of keeping it for later."""
    with suppress(OSError, AttributeError):  # another C library: freed memory that it keeps is then not counted
        ctypes.CDLL("libc.so.6").mallopt(-3, OWN_PAGES)  # M_MMAP_THRESHOLD


def _settle() -> None:
    """Give freed memory back to the system, so that it counts again when it is used again."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _tensor_bytes() -> int:
    """Bytes behind all tensors that Python can reach, each storage once."""
    storages = {}
    for thing in gc.get_objects():
        # Not isinstance: that would ask lazy proxies for their class and make them import things.
        if issubclass(type(thing), torch.Tensor):
            try:
                storage = thing.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):
                continue  # a tensor without storage, as tracing leaves behind
    return sum(storages.values())


def peak_bytes(call: Callable[[], object]) -> int:
    """Peak of the resident set during the call, above what it was before.

    Raises:
        OSError: not on Linux, or /proc may not be written.
    """
    _settle()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # sets the high-water mark VmHWM to the present
    start = _status("VmRSS")
    result = call()
    peak = _status("VmHWM") - start
    del result
    return max(peak, 0)


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    result = call()
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    del result
    return wall, cpu


def _summary(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = sorted(theirs / plain for plain, theirs in pairs)
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return {
        "plain_seconds": median(p for p, _ in pairs),
        "seconds": median(t for _, t in pairs),
        "ratio": median(ratios),
        "ratio_quartiles": [low, high],
    }


def measure(what: str, workload_name: str, method: str, seconds: float = 3.0) -> dict[str, Any]:
    """Memory or time of one method on one workload, and of the plain step next to it.

    Args:
        what: "memory" or "time".
        workload_name: as `workloads.build` takes it.
        method: "module:name", for instance "ours:sketched" or "backpack:exact".
        seconds: about how long the timing may take. Fifteen turns are taken if four times as long suffices.

    Returns:
        What goes into results.json: "status" is "measured", or "left out" with a "reason".
    """
    torch.set_num_threads(1)
    row: dict[str, Any] = {"workload": workload_name, "method": method, "core": pin_to_one_core()}
    workload = build(workload_name)
    module, _, name = method.partition(":")
    try:
        call = import_module(MODULES[module]).METHODS[name](workload)
        numbers = (
            _memory(plain_step(workload), call) if what == "memory" else _time(plain_step(workload), call, seconds)
        )
    except Exception as error:  # a peer raises what it likes; the table says what
        message = (str(error) or "no message").splitlines()[0].replace("|", "/")[:200]
        return row | {"status": "left out", "reason": f"{type(error).__name__}: {message}"}
    return row | {"status": "measured"} | numbers


def _memory(plain: Callable[[], object], call: Callable[[], object]) -> dict[str, Any]:
    _own_pages()
    plain()
    try:
        plain_peak = peak_bytes(plain) / MEGABYTE
    except OSError as error:
        return {"memory_reason": f"peak memory not measured: {error}"}
    gc.collect()
    tensors = _tensor_bytes()
    call()  # captures the network, loads what is loaded late
    gc.collect()
    retained = max(_tensor_bytes() - tensors, 0) / MEGABYTE
    peak = peak_bytes(call) / MEGABYTE + retained
    ratio = peak / plain_peak if plain_peak else None
    return {"plain_peak_mb": plain_peak, "peak_mb": peak, "kept_mb": retained, "peak_ratio": ratio}


def _time(plain: Callable[[], object], call: Callable[[], object], seconds: float) -> dict[str, Any]:
    plain()
    call()
    walls: list[tuple[float, float]] = []
    clocks: list[tuple[float, float]] = []
    begin, steps = time.thread_time(), 3
    while len(walls) < MOST_TURNS:
        plain_times = [_timed(plain) for _ in range(steps)]
        wall, cpu = _timed(call)
        walls.append((median(w for w, _ in plain_times), wall))
        clocks.append((median(c for _, c in plain_times), cpu))
        spent = time.thread_time() - begin  # the wall clock would cut turns short on a busy machine
        if spent > 4 * seconds or (spent > seconds and len(walls) >= FEWEST_TURNS):
            break
        steps = 3 if wall > seconds / 6 else 1  # a slow call is timed seldom; the cheap step next to it need not be
    return {"repeats": len(walls), "cpu": _summary(clocks), "wall": _summary(walls)}


def main(arguments: list[str] | None = None) -> None:
    """Take one measurement and print it as the last line of the output."""
    parser = argparse.ArgumentParser(description="One measurement, as one line of JSON.")
    parser.add_argument("what", choices=["memory", "time"])
    parser.add_argument("workload")
    parser.add_argument("method", help=f"one of {', '.join(MODULES)}, a colon, and the name of its method")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long the timing may take")
    chosen = parser.parse_args(arguments)
    row = measure(chosen.what, chosen.workload, chosen.method, chosen.seconds)
    sys.stdout.flush()
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

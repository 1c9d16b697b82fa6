"""One measurement in a fresh process: `python -m benchmarks.measure W1 ours:sketched --seconds 3` prints one JSON line.

Memory first: the peak of the resident set above its value just before the call, for the plain step and then for the
curvature call. Imports, the network, its batch and (by one warm-up call) the captured graph are there already and do
not count; tensors that the warm-up leaves behind (buffers kept between calls) are added: keeping them hides nothing.
Then time: plain step and curvature call in turn on one pinned core. The ratio is the median over the turns of
(curvature / plain step just before it; the median of three steps where the call is slow), so a slow drift of the
machine cancels.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
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
MOST_REPEATS = 25
FEW_REPEATS = 6
MEGABYTE = 2.0**20


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


def _status(field: str) -> int:
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _settle() -> None:
    """Give freed memory back to the system, so that it counts again when it is used again."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library: freed memory that it keeps is then not counted
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


def peak_bytes(call: Callable[[], object], repeats: int = 3) -> int:
    """Peak of the resident set during the call, above what it was before: the median of the repeats.

    Several, because the allocator sometimes reuses a hole and sometimes does not.

    Raises:
        OSError: not on Linux, or /proc may not be written.
    """
    peaks = []
    for _ in range(repeats):
        _settle()
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")  # sets the high-water mark VmHWM to the present
        start = _status("VmRSS")
        result = call()
        peaks.append(max(_status("VmHWM") - start, 0))
        del result
    return sorted(peaks)[len(peaks) // 2]


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


def measure(workload_name: str, method: str, seconds: float = 3.0) -> dict[str, Any]:
    """Peak memory and time of one method on one workload, and of the plain step next to it.

    Args:
        workload_name: as `workloads.build` takes it.
        method: "module:name", for instance "ours:sketched" or "backpack:exact".
        seconds: about how long the timing may take. A call longer than that is timed once.

    Returns:
        What goes into results.json: "status" is "measured", or "left out" with a "reason".
    """
    torch.set_num_threads(1)
    core = pin_to_one_core()
    row: dict[str, Any] = {"workload": workload_name, "method": method, "core": core}
    workload = build(workload_name)
    plain = plain_step(workload)
    plain()
    try:
        row["plain_peak_mb"] = peak_bytes(plain) / MEGABYTE
    except OSError as error:
        row["memory_reason"] = f"peak memory not measured: {error}"

    module, _, name = method.partition(":")
    try:
        call = import_module(MODULES[module]).METHODS[name](workload)
        tensors = _tensor_bytes()
        call()  # captures the network, loads what is loaded late
        gc.collect()
        kept = max(_tensor_bytes() - tensors, 0)
        expected = _timed(call)[1]
        if "memory_reason" not in row:
            peak = peak_bytes(call, repeats=3 if expected < 1 else 1)
            row["peak_mb"] = (peak + kept) / MEGABYTE
            row["kept_mb"] = kept / MEGABYTE
            row["peak_ratio"] = row["peak_mb"] / row["plain_peak_mb"] if row["plain_peak_mb"] else None
    except Exception as error:  # a peer raises what it likes; the table says what
        row |= {"status": "left out", "reason": f"{type(error).__name__}: {(str(error) or '?').splitlines()[0][:200]}"}
        return row

    repeats = max(1, min(MOST_REPEATS, int(seconds / max(expected, 1e-9))))
    steps = 1 if repeats > FEW_REPEATS else 3  # a slow call is timed seldom; the cheap step next to it need not be
    walls, clocks = [], []
    for _ in range(repeats):
        plain_times = [_timed(plain) for _ in range(steps)]
        wall, cpu = _timed(call)
        walls.append((median(w for w, _ in plain_times), wall))
        clocks.append((median(c for _, c in plain_times), cpu))
    row |= {"status": "measured", "repeats": repeats, "cpu": _summary(clocks), "wall": _summary(walls)}
    return row


def main(arguments: list[str] | None = None) -> None:
    """Take one measurement and print it as the last line of the output."""
    parser = argparse.ArgumentParser(description="One measurement, as one line of JSON.")
    parser.add_argument("workload")
    parser.add_argument("method", help=f"one of {', '.join(MODULES)}, a colon, and the name of its method")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long the timing may take")
    chosen = parser.parse_args(arguments)
    row = measure(chosen.workload, chosen.method, chosen.seconds)
    sys.stdout.flush()
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

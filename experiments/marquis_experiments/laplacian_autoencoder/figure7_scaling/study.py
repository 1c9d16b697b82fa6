"""The study `scaling`: time and memory of one curvature call against the image's resolution (LAE Figure 7).

Five 3x3 convolutions of three channels with tanh, which keep the resolution, one image. Every method runs in a process
of its own, next to plain forward and backward passes of the same network: their ratio cancels the machine. Memory is
the peak of the resident set during one call above its value before (Linux only).
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from marquis.curvature import ggn
from marquis.errors import MarquisError
from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.laplacian_autoencoder.figure7_scaling.page import draw, values

METHODS = {
    "block": ("block", "exact"),
    "exact": ("diagonal", "exact"),
    "mixed": ("diagonal", "mixed"),
    "sketched": ("diagonal", "sketched"),
    "approximate": ("diagonal", "approximate"),
    "kronecker": ("kronecker", "sketched"),
}

EXACT = ("block", "exact")
"""Methods whose cost grows with the columns of the output Hessian: not run at the largest resolutions."""


def measure(run: Run) -> dict[str, Any]:
    """Time every method; no data are read, the image is random."""
    settings = run.settings
    timed = in_a_process if settings.own_process else in_this_process
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        sizes = [size for size in settings.sizes if method not in EXACT or size <= settings.exact_limit]
        described = {"method": method, "sizes": sizes, **settings.only("seconds", "turns")}
        row = run.cell(method, described, lambda m=method, s=sizes: {"rows": timed(m, s, settings)}, "rows")
        rows.append(row)
        last = row["rows"][-1]
        run.say(f"{method} at {last['size']}: {last['seconds']:.3g} s, {last['ratio']:.2f} x")
    return {"rows": rows}


def in_this_process(method: str, sizes: Sequence[int], settings: Settings) -> list[dict[str, Any]]:
    """Time all resolutions of a method, for the quick size."""
    return time_and_memory(method, sizes, settings.seconds, settings.turns)


def in_a_process(method: str, sizes: Sequence[int], settings: Settings) -> list[dict[str, Any]]:
    """Time all resolutions of a method in a fresh interpreter with one thread.

    Raises:
        MarquisError: That interpreter stopped.
    """
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return pool.submit(time_and_memory, method, sizes, settings.seconds, settings.turns, True).result()
    except BrokenProcessPool as error:
        raise MarquisError(f"the process that measures {method} has stopped: {error}") from None


def network() -> nn.Sequential:
    """Return five 3x3 convolutions with tanh that keep three channels and the resolution."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers).eval()


def calls(method: str, size: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the plain forward and backward pass and the curvature call, on one image."""
    model = network()
    x = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(size))
    structure, estimator = METHODS[method]
    generator = torch.Generator().manual_seed(0)

    def plain() -> None:
        loss = 0.5 * (model(x) - x).square().sum()
        torch.autograd.grad(loss, list(model.parameters()))

    def curvature() -> object:
        return ggn(model, x, "gaussian", structure, estimator, generator=generator)

    return plain, curvature


def time_and_memory(
    method: str, sizes: Sequence[int], seconds: float, turns: int, keep_nothing: bool = False
) -> list[dict[str, Any]]:
    """Measure times of all resolutions, then memory, for which the allocator can be set to keep nothing back."""
    pairs = [calls(method, size) for size in sizes]
    rows = [{"size": size, **_times(*pair, seconds, turns)} for size, pair in zip(sizes, pairs, strict=True)]
    if keep_nothing:
        with suppress(OSError, AttributeError):  # another C library: what it keeps back is then not counted
            ctypes.CDLL("libc.so.6").mallopt(-3, 32 * 1024)  # M_MMAP_THRESHOLD
    for row, (plain, curvature) in zip(rows, pairs, strict=True):
        row["plain_mb"], row["mb"] = _peak(plain), _peak(curvature)
    return rows


def _times(plain: Callable[[], object], call: Callable[[], object], seconds: float, turns: int) -> dict[str, Any]:
    """Compute medians of CPU seconds over pairs of a plain pass and a call, and the median of their ratios."""
    plain()
    call()
    pairs: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(pairs) < turns and (len(pairs) < 3 or time.perf_counter() - begin < seconds):
        pairs.append((median(_cpu(plain) for _ in range(3)), _cpu(call)))
    return {
        "plain_seconds": median(p for p, _ in pairs),
        "seconds": median(c for _, c in pairs),
        "ratio": median(c / p for p, c in pairs),
        "turns": len(pairs),
    }


def _cpu(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _peak(call: Callable[[], object]) -> float | None:
    """Return the peak of the resident set during the call above its value before, in MB; None if unknown."""
    call()
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present
        before = _status("VmRSS")
        result = call()
        peak = _status("VmHWM") - before
    except (OSError, AttributeError):
        return None
    del result
    return max(peak, 0) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


# fmt: off
STUDY = Study(
    "scaling", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "sizes": (8, 16, 32, 48, 64, 96, 128, 256, 512), "exact_limit": 128, "seconds": 0.6, "turns": 25,
        "own_process": True,
    },
    quick={"sizes": (8, 16), "exact_limit": 8, "seconds": 0.05, "turns": 3, "own_process": False},
    full={"exact_limit": 512, "seconds": 5.0, "turns": 100},
)
# fmt: on

"""The study `scaling`: time and memory of one curvature call against the image's resolution (LAE Figure 7).

Five 3x3 convolutions of three channels with tanh, which keep the resolution, one image. Every method runs in a process
of its own, next to plain forward and backward passes of the same network: their ratio cancels the machine. Memory is
the peak of the resident set during one call above its value before (Linux only).
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
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
from marquis_experiments.common.figure import BLUE, GREEN, GREY, ORANGE, Figure
from marquis_experiments.common.page import Row, table, verdict, yes
from marquis_experiments.common.study import Run, Settings, Study

COLOURS = {"exact": ORANGE, "sketched": BLUE, "approximate": GREEN, "kronecker": "#e0a32e"}
"""Methods of the picture; `mixed` coincides with `approximate` here."""
TABLE_1 = {
    "block": ("block diagonal", "$R_m^2+W_s^2$", "$R_s^2+W_s^2$", 2),
    "kronecker": ("KFAC", "$R_s^2+W_s$", "$R_s^2+W_s$", 2),
    "exact": ("exact diagonal", "$R_m^2+W_s$", "$R_s^2+W_s$", 2),
    "approximate": ("approximate diagonal", "$R_m+W_s$", "$R_s+W_s$", 1),
    "mixed": ("mixed diagonal", "$R_m+W_s$", "$R_s+W_s$", 1),
    "sketched": ("– (ours: sketched diagonal)", "–", "–", 1),
}
"""Our method to the paper's Table 1: its name there, memory, time, and the exponent of the pixels that follows."""
LINEAR = 1.25
"""Cost grows about linearly if the exponent of the number of pixels is below this."""
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


# --- page --------------------------------------------------------------------------------------------------


def slope(rows: list[Row], key: str) -> float:
    """Compute the exponent of the number of pixels above a quarter of the largest edge; NaN for one resolution."""
    good = [row for row in rows if row[key]]
    large = [row for row in good if row["size"] >= good[-1]["size"] / 4]
    if len(large) < 2:
        return math.nan
    first, last = large[0], large[-1]
    return math.log(last[key] / first[key]) / (2 * math.log(last["size"] / first["size"]))


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs; the claim is that approximate cost is linear and exact and Kronecker are not."""
    rows = {row["method"]: row["rows"] for row in results["rows"]}
    longest = max(rows.values(), key=len)
    sizes = [row["size"] for row in longest]
    exponents = {
        method: {"seconds": slope(measured, "seconds"), "mb": slope(measured, "mb")}
        for method, measured in rows.items()
    }
    linear = exponents["approximate"]["seconds"] < LINEAR
    poor = [exponents[method]["seconds"] >= LINEAR for method in ("exact", "kronecker")]
    main = [
        [method, *cells(measured, sizes, "ratio"), *(shown(exponents[method][key], ".2f") for key in ("seconds", "mb"))]
        for method, measured in rows.items()
    ]
    return {
        "exponents": {method: shown(one["seconds"], ".2f") for method, one in exponents.items()},
        "last": {method: measured[-1] for method, measured in rows.items()},
        "verdict": verdict(linear, *poor),
        "holds": {"linear": yes(linear), "exact": yes(poor[0]), "kronecker": yes(poor[1])},
        "table": table(["edge of the image", *map(str, sizes), "exponent, time", "memory"], main),
        "complexities": table(
            ["approximation", "paper: memory", "paper: time", "exponent of the pixels", "ours: time", "ours: memory"],
            [
                [*line, *(shown(exponents[method][key], ".2f") for key in ("seconds", "mb"))]
                for method, line in TABLE_1.items()
                if method in exponents
            ],
        ),
        "seconds": with_plain(rows, longest, sizes, "seconds"),
        "megabytes": with_plain(rows, longest, sizes, "mb"),
    }


def shown(value: float | None, form: str = ".3g") -> str:
    """Return a number, or a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:{form}}"


def cells(rows: list[Row], sizes: list[int], key: str) -> list[str]:
    """Return a method's numbers for all resolutions."""
    of_size = {row["size"]: row[key] for row in rows}
    return [shown(of_size.get(size)) for size in sizes]


def with_plain(rows: Mapping[str, list[Row]], longest: list[Row], sizes: list[int], key: str) -> str:
    """Return a table of all methods below the plain pass."""
    lines = [["plain forward + backward", *cells(longest, sizes, f"plain_{key}")]]
    lines += [[method, *cells(measured, sizes, key)] for method, measured in rows.items()]
    return table(["edge of the image", *map(str, sizes)], lines)


def draw(folder: Path, results: dict[str, Any]) -> None:
    """Draw seconds, ratio and megabytes against the edge of the image, all axes logarithmic."""
    rows = [row for row in results["rows"] if row["method"] in COLOURS]
    figure = Figure(3, 3, 3.9, 3.6)
    longest = max((row["rows"] for row in rows), key=len)
    edges = [row["size"] for row in longest]
    keys = {"seconds": "CPU seconds", "ratio": "times a plain step", "mb": "peak memory (MB)"}
    for axis, (key, title) in zip(figure.axes, keys.items(), strict=True):
        for row in rows:
            good = [one for one in row["rows"] if one[key] is not None]
            x, y = [one["size"] for one in good], [one[key] for one in good]
            axis.plot(x, y, "o-", ms=3.5, color=COLOURS[row["method"]], label=row["method"])
        if key != "ratio":
            plain = [one[f"plain_{key}"] or math.nan for one in longest]
            axis.plot(edges, plain, "--", color=GREY, label="plain step")
        axis.set(xscale="log", yscale="log", title=title, xlabel="edge of the image")
        axis.set_xticks(edges, [str(edge) if edge & (edge - 1) == 0 else "" for edge in edges])
        axis.minorticks_off()
    handles = figure.axes[0].get_legend_handles_labels()
    figure.figure.legend(*handles, loc="outside lower center", ncols=6, fontsize=8)
    figure.save(folder / "scaling.png")


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

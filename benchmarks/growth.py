"""How time and memory of a curvature call grow: `python -m benchmarks.growth` writes its page.

A tanh network 64-256-128-O (softmax) on a batch, of which one size at a time is changed; CPU time of one core, median
of seven calls, and the peak of the resident set above its start, every point in a fresh process. The exponent is the
slope of a straight line through the logarithms of the upper three points, where fixed costs matter least.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks.measure import MEGABYTE, _own_pages, _timed, cpu_name, peak_bytes, pin_to_one_core
from benchmarks.report import number, table
from marquis.curvature import accumulate, ggn

AXES = {
    "outputs": (10, 64, 256, 1024, 4096),
    "batch": (8, 32, 128, 512),
    "depth": (2, 4, 8, 16, 32),
    "width": (64, 128, 256, 512, 1024),
    "data": (64, 256, 1024, 4096),
}
METHODS = {
    "diagonal, sketched": ("diagonal", "sketched"),
    "diagonal, approximate": ("diagonal", "approximate"),
    "diagonal, exact": ("diagonal", "exact"),
    "Kronecker, sketched": ("kronecker", "sketched"),
}


def network(outputs: int = 10, depth: int = 2, width: int | None = None) -> nn.Sequential:
    """Return the network; with `depth` or `width` changed all hidden layers have the same width."""
    widths = [64, 256, 128] if width is None and depth == 2 else [64] + [width or 128] * depth
    layers: list[nn.Module] = []
    for inputs, features in pairwise(widths):
        layers += [nn.Linear(inputs, features), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs)).eval()


def calls(axis: str, value: int) -> dict[str, Callable[[], object]]:
    """Return the plain step and every curvature call at one size."""
    torch.manual_seed(0)
    model = network(**({axis: value} if axis in ("outputs", "depth", "width") else {}))
    count = value if axis in ("batch", "data") else 32
    x, y = torch.rand(count, 64), torch.randint(10, (count,))
    parameters = list(model.parameters())
    batches = [(part, labels) for part, labels in zip(x.split(64), y.split(64), strict=True)]

    def plain() -> object:
        pairs = batches if axis == "data" else [(x, y)]
        loss = nn.functional.cross_entropy
        return [torch.autograd.grad(loss(model(a), b, reduction="sum"), parameters) for a, b in pairs]

    def call(structure: str, estimator: str) -> object:
        if axis == "data":
            return accumulate(model, batches, "categorical", structure, estimator)
        return ggn(model, x, "categorical", structure, estimator)

    return {"plain step": plain} | {name: lambda how=how: call(*how) for name, how in METHODS.items()}


def point(axis: str, value: int) -> dict[str, tuple[float, float]]:
    """Return the seconds and peak megabytes of every call at one size, in this process."""
    results = {}
    for name, call in calls(axis, value).items():
        call()
        results[name] = median(_timed(call)[1] for _ in range(7))
    _own_pages()
    return {name: (results[name], peak_bytes(call) / MEGABYTE) for name, call in calls(axis, value).items()}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the least-squares slope of log value against log size, over the upper three sizes."""
    x, y = ([math.log(max(v, 1e-9)) for v in part[-3:]] for part in (sizes, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def section(axis: str, columns: list[dict[str, tuple[float, float]]]) -> str:
    """Return the table of one axis, with the processor that it was measured on."""
    sizes, rows = AXES[axis], []
    for name in columns[0]:
        seconds, peaks = ([column[name][i] for column in columns] for i in (0, 1))
        cells = [f"{number(1000 * s)} [{number(p)}]" for s, p in zip(seconds, peaks, strict=True)]
        slopes = f"{exponent(list(sizes), seconds):.2f} / {exponent(list(sizes), peaks):.2f}"
        rows.append([name, *cells, slopes])
    head = ["call", *map(str, sizes), "exponent time / memory"]
    return f"## {axis.capitalize()}\n\nCPU: {cpu_name()}.\n\n{table(head, rows)}"


def write(page: Path, measured: dict[str, str]) -> None:
    """Write the page: the sections measured now, and those of other axes as they stood there."""
    before = page.read_text(encoding="utf-8").strip() if page.exists() else ""
    sections = {part.partition("\n")[0].lower(): f"## {part.strip()}" for part in before.split("\n## ")[1:]}
    sections |= measured
    missing = ", ".join(axis for axis in AXES if axis not in sections)
    parts = [
        f"# Growth\n\nWritten by `python -m benchmarks.growth`. {(__doc__ or '').partition(chr(10) * 2)[2].strip()}\n\n"
        "Each cell: milliseconds [peak MB]. *Batch* and *data* use ten classes and all others a "
        "batch of 32; *data* is `accumulate` over batches of 64. *Depth* and *width* are those of hidden layers (width "
        "128 and two layers otherwise); the number of weights grows with the square of the width.",
        *(sections[axis] for axis in AXES if axis in sections),
    ]
    parts += [f"Not measured: {missing}."] if missing else []
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure every point and write the page."""
    parser = argparse.ArgumentParser(description="Growth of time and memory.")
    parser.add_argument("--point", nargs=2, metavar=("AXIS", "SIZE"), help="one point, for a fresh process")
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), help="others stay as the page has them")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks/growth.md"))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pin_to_one_core()
    if chosen.point:
        print(json.dumps(point(chosen.point[0], int(chosen.point[1]))))
        return
    for axis in chosen.axes:
        columns = []
        for size in AXES[axis]:
            command = [sys.executable, "-m", "benchmarks.growth", "--point", axis, str(size)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            columns.append(json.loads(done.stdout.splitlines()[-1]))
            print(axis, size, columns[-1], flush=True)
        write(chosen.page, {axis: section(axis, columns)})


if __name__ == "__main__":
    main()

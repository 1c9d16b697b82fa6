"""The engine of this source against that of another commit, row by row: `python -m benchmarks.against OLD_SRC`.

Two processes per row stay alive, one on each source; they take turns of as many calls as fill about a tenth of a
second, so drift of the machine cancels. Shown is the median ratio of CPU times (below 1: this source is faster) over
at least fifteen pairs, with its 95 % interval. OLD_SRC is the folder that holds the other `marquis`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import ROOT
from benchmarks.measure import _timed, pin_to_one_core
from benchmarks.ours import METHODS
from benchmarks.run import measurements
from benchmarks.statistics import with_interval
from benchmarks.workloads import build

TURN = 0.1  # seconds of calls between two changes of the source


class Engine:
    """A process that makes one call of the benchmark on the source of `src`, as often as it is asked to."""

    def __init__(self, src: Path, workload: str, method: str) -> None:
        """Start the process; its first call, which captures the network, is not timed."""
        environment = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.against", "--serve", workload, method]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.seconds(2)

    def seconds(self, calls: int) -> float:
        """Return the CPU seconds of one call, over so many of them."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(f"{calls}\n")
        stdin.flush()
        return float(stdout.readline()) / calls

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve(workload: str, method: str) -> None:
    """Answer every number on the standard input with the CPU seconds of that many calls."""
    torch.set_num_threads(1)
    pin_to_one_core()
    call = METHODS[method.partition(":")[2]](build(workload))
    for line in sys.stdin:
        print(sum(_timed(call)[1] for _ in range(int(line))), flush=True)


def compare(old: Path, new: Path, workload: str, method: str, pairs: int) -> dict[str, Any]:
    """Return one row of the table."""
    engines = [Engine(src, workload, method) for src in (old, new)]
    try:
        calls = max(1, round(TURN / engines[1].seconds(1)))
        times = [[engine.seconds(calls) for engine in engines] for _ in range(pairs)]
    finally:
        for engine in engines:
            engine.close()
    ratio, low, high = with_interval([after / before for before, after in times])
    milliseconds = [1000 * with_interval([t[side] for t in times])[0] for side in (0, 1)]
    return {"workload": workload, "method": method, "ms": milliseconds, "ratio": [ratio, low, high], "pairs": pairs}


def main(arguments: list[str] | None = None) -> None:
    """Compare all rows, or serve one process of a comparison."""
    parser = argparse.ArgumentParser(description="This source's engine against another commit's.")
    parser.add_argument("old", type=Path, nargs="?", help="folder that holds the other `marquis`")
    parser.add_argument("--new", type=Path, default=ROOT / "src", help="folder of this one")
    parser.add_argument("--only", default="*", help="pattern of workload and method, as in 'W1 ours:*'")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path, help="JSON lines are added here")
    parser.add_argument("--serve", nargs=2, metavar=("WORKLOAD", "METHOD"), help="be one of the two processes")
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve(*chosen.serve)
        return
    for workload, method in measurements():
        if not method.startswith("ours:") or not fnmatch(f"{workload} {method}", chosen.only):
            continue
        row = compare(chosen.old.resolve(), chosen.new.resolve(), workload, method, chosen.pairs)
        ratio, low, high = row["ratio"]
        old, new = row["ms"]
        print(f"{workload:5} {method:18} {old:9.2f} -> {new:9.2f} ms   {ratio:.3f} [{low:.3f}, {high:.3f}]", flush=True)
        if chosen.out:
            with chosen.out.open("a") as lines:
                lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

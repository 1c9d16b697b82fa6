"""Measure how a pass over the data scales from one process to two: `python -m benchmarks.processes`.

A fixed data set is split among the processes, each with one thread. Wall time says what a user waits, processor time
per process what a machine of its own would take: on a loaded machine only the latter compares.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import multiprocessing as mp
from torch import nn

from marquis.curvature import accumulate

WIDTH, ROWS, BATCH, REPEATS = 500, 4096, 32, 3


def network() -> nn.Module:
    """Return five dense layers with a million weights."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).eval()


def member(rank: int, count: int, folder: str) -> None:
    """Measure both structures in one process of a group, and write the seconds to a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    data = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    batches = list(data.split(BATCH))[rank::count]
    model, seconds = network(), {}
    for structure in ("diagonal", "kronecker"):
        accumulate(model, batches[:2], "categorical", structure, "sketched", progress=False)
        for _ in range(REPEATS):
            torch.distributed.barrier()
            wall, work = time.perf_counter(), time.process_time()
            accumulate(model, batches, "categorical", structure, "sketched", progress=False)
            seconds.setdefault(structure, []).append((time.perf_counter() - wall, time.process_time() - work))
    torch.save(seconds, Path(folder, f"{rank}.pt"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Print a row per structure and number of processes: the smallest of the repeats, the slowest process."""
    print("| structure | processes | wall, s | processor time of each process, s |\n| --- | ---: | ---: | ---: |")
    rows: dict[tuple[str, int], str] = {}
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(member, (count, folder), count)  # pyright: ignore[reportPrivateImportUsage]
            parts = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(count)]
        for structure in parts[0]:
            wall, work = (max(min(run[k] for run in part[structure]) for part in parts) for k in (0, 1))
            rows[structure, count] = f"| {structure} | {count} | {wall:.2f} | {work:.2f} |"
    print("\n".join(rows[key] for key in sorted(rows)))


if __name__ == "__main__":
    main()

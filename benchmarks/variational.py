"""A step of Variational Laplace against a step of MAP: `python -m benchmarks.variational` writes its page.

A step is loss, backward and Adam. Each method takes turns with MAP in one process on one core, so that drift of the
machine cancels; the ratio is the median over the turns. Memory: peak of the resident set during a step above what it
was before, in a fresh process per method. `--check` fails if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks.measure import MEGABYTE, _own_pages, peak_bytes, pin_to_one_core
from marquis.variational import MAP, MeanFieldVI, PreactResNet18, VariationalLaplace, small_cnn

BATCH = 128
MOST_TIME, MOST_MEMORY = 1.9, 1.3
"""The bars: default gradient in MAP steps, on both networks; memory of the differences in MAP's peak."""

NETWORKS = {
    "CNN": lambda: small_cnn(),
    "narrow PreactResNet-18": lambda: PreactResNet18(1, 10, 1 / 8),
}
VARIANTS: dict[str, dict[str, object]] = {
    "one-sided (default)": {},
    "central": {"gradient": "central"},
    "double-backward": {"gradient": "double-backward"},
    "forward-over-reverse": {"gradient": "forward-over-reverse"},
    "one-sided, regulariser on 32 of 128": {"regulariser_batch": 32},
}


def stepper(network: str, variant: str):
    """A function that takes one training step."""
    torch.manual_seed(0)
    net: nn.Module = NETWORKS[network]().train()
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    if variant == "MAP":
        method = MAP(net, "categorical", num_data=10_000)
    elif variant == "VI":
        method = MeanFieldVI(net, "categorical", num_data=10_000)
    else:
        method = VariationalLaplace(net, "categorical", num_data=10_000, **VARIANTS[variant])  # type: ignore
    optimiser = torch.optim.Adam(method.parameter_groups(1e-4))

    def step() -> None:
        loss = method.step(x, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def time_ratios(network: str, turns: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds of a step, and median ratio to the MAP step just before it, by method."""
    steps = {name: stepper(network, name) for name in ["MAP", "VI", *VARIANTS]}
    for step in steps.values():
        step()
        step()
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            plain, method_time = _cpu(steps["MAP"]), _cpu(step)
            ratios[name].append((method_time, method_time / plain))
    return {name: (1000 * median(t for t, _ in pairs), median(r for _, r in pairs)) for name, pairs in ratios.items()}


def _cpu(step) -> float:
    started = time.thread_time()
    step()
    return time.thread_time() - started


def peak_megabytes(network: str, variant: str) -> float:
    """Peak memory of a step in this process, which should be a fresh one."""
    _own_pages()
    step = stepper(network, variant)
    step()
    step()
    return median(peak_bytes(step) for _ in range(5)) / MEGABYTE


def main(arguments: list[str] | None = None) -> None:
    """Measure everything, print it, write the page."""
    parser = argparse.ArgumentParser(description="Steps of Variational Laplace, in MAP steps.")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks/variational.md"))
    parser.add_argument("--memory", nargs=2, metavar=("NETWORK", "METHOD"), help="one measurement, for a fresh process")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pin_to_one_core()
    if chosen.memory:
        print(json.dumps(peak_megabytes(*chosen.memory)))
        return
    lines, missed = [], []
    for network in NETWORKS:
        times = time_ratios(network, chosen.turns)
        memory = {}
        for name in times:
            command = [sys.executable, "-m", "benchmarks.variational", "--memory", network, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            memory[name] = float(done.stdout.splitlines()[-1])
        for name, (milliseconds, ratio) in times.items():
            share = memory[name] / memory["MAP"]
            lines.append(
                f"| {network} | {name} | {milliseconds:.1f} | {ratio:.2f} | {memory[name]:.0f} | {share:.2f} |"
            )
            print(lines[-1], flush=True)
            if "default" in name and ratio > MOST_TIME:
                missed.append(f"{network}: {name} takes {ratio:.2f} MAP steps, the bar is {MOST_TIME}")
            if name in ("one-sided (default)", "central") and share > MOST_MEMORY:
                missed.append(f"{network}: {name} needs {share:.2f} of MAP's memory, the bar is {MOST_MEMORY}")
    chosen.page.parent.mkdir(parents=True, exist_ok=True)
    chosen.page.write_text(page(lines, missed), encoding="utf-8")
    for message in missed:
        print("MISSED:", message)
    if chosen.check and missed:
        sys.exit(1)


def page(lines: list[str], missed: list[str]) -> str:
    """The documentation page."""
    verdict = "Both are met." if not missed else "Missed: " + "; ".join(missed) + "."
    table = "\n".join(
        [
            "| network | method | ms per step | MAP steps | peak MB | of MAP's |",
            "| --- | --- | --- | --- | --- | --- |",
            *lines,
        ]
    )
    return f"""# A step of Variational Laplace

Written by `python -m benchmarks.variational`. A step is loss, backward and Adam on {BATCH} images of 28 x 28, on one
core; *ms* is the core's time. Each step is timed right after a MAP step and the median of the ratios is shown, so other
load on the machine cancels. The paper pays 2.75 MAP steps (its Table 2). *Peak MB* is the resident set's peak during
a step above its start, in a fresh process.

The bars: at most {MOST_TIME} MAP steps for the default on both networks, and at most {MOST_MEMORY} times MAP's memory
for the differences. {verdict}

{table}

The last line of each network computes the regulariser on a quarter of the minibatch: unbiased for the mean Fisher,
noisier, and an option, not the default. The default takes two gradients: its floor is two MAP steps less one step of
the optimiser, so that the bar can only be met by a smaller regulariser batch.
[The method](../variational.md) explains the four gradients.
"""


if __name__ == "__main__":
    main()

"""Every measurement, one fresh process each, then the page: `make bench`, or `python -m benchmarks.run --help`.

Writes results.json, index.md and two pictures into docs/benchmarks. `--render` makes the page again from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.environment import REQUIREMENTS, ROOT, peers_python
from benchmarks.workloads import FIGURE7_SIZES

MEMORY_LIMIT = 16 * 2**30  # of address space: a peer that wants more fails alone instead of taking the machine down
TIME_LIMIT = 240.0  # seconds for one process
LARGEST_SURE_EXACT = 128  # Figure 7 sizes above are tried for `exact` only if they promise to be fast
LONGEST_EXACT = 15.0  # seconds, predicted from the size below
PARTIAL = ROOT / "runs" / "bench-partial.json"  # rows so far, so that an interrupted run is not lost
QUIET = 0.1  # share of the machine that others may use before a run counts as provisional


def measurements() -> list[tuple[str, str]]:
    """Workload and method of everything that is measured, cheap workloads first."""
    ours = [(w, f"ours:{m}") for w in ("W1", "W2", "W4") for m in ("sketched", "approximate", "kronecker", "exact")]
    for size in FIGURE7_SIZES:
        ours += [(f"F{size}", "ours:sketched"), (f"F{size}", "ours:approximate")]
        if size <= 2 * LARGEST_SURE_EXACT:
            ours.append((f"F{size}", "ours:exact"))
    peers = [(w, f"backpack:{m}") for w in ("W1", "W4") for m in ("exact", "mc", "kfac")]
    peers.append(("W2", "backpack:exact"))  # raises; the table says what
    peers += [(w, "curvlinops:kfac") for w in ("W1", "W2", "W4")]
    peers.append(("W4/8", "laplace:diagonal"))  # the whole batch of 128 took 46 s and 14 GB
    peers += [(f"F{size}", "backpack:exact") for size in (8, 16, 32, 48)]
    return ours + peers


def take(python: Path, workload: str, method: str, seconds: float) -> dict[str, Any]:
    """Memory and time of one method, each in a process of its own."""
    row = _process(python, "memory", workload, method, seconds)
    return row if row["status"] != "measured" else row | _process(python, "time", workload, method, seconds)


def _process(python: Path, what: str, workload: str, method: str, seconds: float) -> dict[str, Any]:
    """One measurement; a process that dies is a row with a reason, not the end of the run."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))

    command = [str(python), "-m", "benchmarks.measure", what, workload, method, "--seconds", str(seconds)]
    failed = {"workload": workload, "method": method, "status": "left out"}
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIME_LIMIT}
    try:
        done = subprocess.run(command, cwd=ROOT, preexec_fn=limit, check=False, **pipes)
    except subprocess.TimeoutExpired:
        return failed | {"reason": f"stopped after {TIME_LIMIT:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        message = (done.stderr.strip() or "no message").splitlines()[-1].replace("|", "/")[:200]
        return failed | {"reason": f"the process ended with {done.returncode}: {message}"}
    return json.loads(lines[-1])


def too_slow(workload: str, method: str, rows: list[dict[str, Any]]) -> str | None:
    """Why a large exact measurement is not even tried; None if it is."""
    size = int(workload[1:]) if workload[0] == "F" else 0
    if method != "ours:exact" or size <= LARGEST_SURE_EXACT:
        return None
    key = (f"F{size // 2}", method, "measured")
    below = [r for r in rows if (r["workload"], r["method"], r["status"]) == key]
    if below and (expected := 4 * below[0]["cpu"]["seconds"]) < LONGEST_EXACT:
        print(f"  (about {expected:.0f} s a call expected)")
        return None
    return f"not tried: more than {LONGEST_EXACT:.0f} s expected"


def busy_share(seconds: float = 2.0) -> float | None:
    """Share of all cores that somebody uses right now; None where the system does not say."""

    def sample() -> tuple[int, int]:
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)

    try:
        idle, total = sample()
        time.sleep(seconds)
        idle_after, total_after = sample()
    except OSError:
        return None
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def machine() -> dict[str, Any]:
    """What the numbers depend on, for the page."""
    import torch

    import marquis

    model = platform.processor() or platform.machine()
    try:
        named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, IndexError):
        memory = None
    peers = ("backpack-for-pytorch==", "curvlinops-for-pytorch==", "laplace-torch==")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "cores_used": 1,
        "memory_gb": memory and round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "marquis": marquis.__version__,
        "commit": _commit(),
        "peers": [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith(peers)],
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--short", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and write results.json, index.md and pictures.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks", help="folder for the results")
    parser.add_argument("--only", default="*", help="pattern of workload/method, as in 'W1 ours:*'")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long each timing may take")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--render", action="store_true", help="only make the page again from results.json")
    chosen = parser.parse_args(arguments)
    results_file = chosen.out / "results.json"
    if chosen.render:
        report.write(json.loads(results_file.read_text()), chosen.out)
        return

    start = time.perf_counter()
    peers, word = (None, "not asked for") if chosen.no_peers else peers_python()
    busy = busy_share()
    results: dict[str, Any] = {
        "taken": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "busy_before": busy,
        "provisional": busy is None or busy > QUIET,
        "peers_word": word,
        "rows": [],
    }
    if peers is None:
        print(f"peers are skipped: {word}", flush=True)
    for workload, method in measurements():
        python = Path(sys.executable) if method.startswith("ours:") else peers
        if python is None or not fnmatch(f"{workload} {method}", chosen.only):
            continue
        reason = too_slow(workload, method, results["rows"])
        if reason:
            row = {"workload": workload, "method": method, "status": "left out", "reason": reason}
        else:
            row = take(python, workload, method, chosen.seconds)
        results["rows"].append(row)
        PARTIAL.parent.mkdir(exist_ok=True)
        PARTIAL.write_text(json.dumps(report.rounded(results), indent=1) + "\n")
        print(f"[{time.perf_counter() - start:4.0f} s] {report.one_line(row)}", flush=True)
    results["minutes"] = round((time.perf_counter() - start) / 60, 1)

    chosen.out.mkdir(parents=True, exist_ok=True)
    results_file.write_text(json.dumps(report.rounded(results), indent=1) + "\n")
    report.write(results, chosen.out)
    PARTIAL.unlink(missing_ok=True)
    print(f"wrote {chosen.out / 'index.md'} after {results['minutes']} minutes")


if __name__ == "__main__":
    main()

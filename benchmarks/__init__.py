"""Benchmarks of the curvature engine and of its peers: `make bench`, or `python -m benchmarks.run --help`.

`workloads` says what is computed, `ours` and `peers_*` who computes it, `measure` takes one measurement in a fresh
process, `run` takes them all, `bars` holds what we promised, `report` turns the numbers into a page and pictures.
"""

from __future__ import annotations

import os

# Here, because it must happen before anything imports torch: every number is taken with one thread.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

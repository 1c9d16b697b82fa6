"""What we promised, and what the peers reached when they were measured before this benchmark existed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """A limit on one number of one measurement. "ratio" is to one plain forward and backward pass."""

    workload: str
    method: str
    quantity: str  # "ratio", "peak_ratio", "peak_mb" or "seconds"
    limit: float
    peers: str = ""

    def value(self, rows: list[dict[str, Any]]) -> float | None:
        """The measured number, by CPU time where it is a time; None where it was not measured."""
        for row in rows:
            if (row["workload"], row["method"], row["status"]) == (self.workload, self.method, "measured"):
                return row["cpu"][self.quantity] if self.quantity in ("ratio", "seconds") else row.get(self.quantity)
        return None


def _cheap() -> list[Bar]:
    bars = []
    for method in ("ours:sketched", "ours:approximate"):
        for workload in ("W1", "W2", "W4"):
            limit = 1.5 if method == "ours:sketched" else 1.4
            bars.append(Bar(workload, method, "ratio", limit))
            bars.append(Bar(workload, method, "peak_ratio", 2.2))
        bars.append(Bar("F512", method, "ratio", 3.0))
        bars.append(Bar("F512", method, "peak_mb", 1024.0))
    return bars


BARS = [
    *_cheap(),
    Bar("W1", "ours:exact", "ratio", 20.0, "BackPACK 561 x"),
    Bar("W2", "ours:exact", "ratio", 25.0, "BackPACK cannot; 264 x with a rule added"),
    Bar("W2", "ours:exact", "peak_mb", 500.0, "BackPACK cannot; 5022 MB with a rule added"),
    Bar("W4", "ours:exact", "ratio", 4.5, "BackPACK 8.2 x"),
    Bar("F128", "ours:exact", "seconds", 2.0, "BackPACK runs out of 20 GB at 96x96"),
    Bar("F128", "ours:exact", "peak_mb", 250.0, "BackPACK runs out of 20 GB at 96x96"),
    Bar("W1", "ours:kronecker", "ratio", 2.2, "BackPACK 2.8 x, curvlinops 3.6 x"),
    Bar("W2", "ours:kronecker", "ratio", 2.2, "curvlinops 2.7 x"),
    Bar("W4", "ours:kronecker", "ratio", 2.2, "BackPACK 3.5 x, curvlinops 2.3 x on a smaller network"),
]

# Measured before, by hand, on one core of a similar machine (torch 2.13, float32). Not repeated by `make bench`: too
# slow, too large, or not installable next to the others. W4' is a smaller W4 (6 and 16 channels, tanh).
QUOTED = [  # method, workload, seconds, ratio, peak MB (None: not taken), remark
    ("BackPACK diagonal, exact", "W2", 37.5, 264.0, 5022.0, "with a rule for Upsample added; as it is, it raises"),
    ("BackPACK diagonal, sampled labels", "W2", 0.265, 2.0, 295.0, "with a rule for Upsample added"),
    ("BackPACK KFAC, sampled labels", "W2", 0.415, 3.1, 368.0, "with a rule for Upsample added"),
    ("curvlinops KFAC, exact", "W1", 8.0, 1611.0, 310.0, ""),
    ("curvlinops KFAC, exact", "W4'", 0.174, 7.1, 39.0, ""),
    ("laplace-torch diagonal, default", "W1", None, None, None, "stopped above 20 GB (batch 1: 13.2 s, 6.5 GB)"),
    ("laplace-torch diagonal, default", "W4'", 45.6, 2160.0, 14573.0, ""),
    ("laplace-torch diagonal, by BackPACK", "W1", 2.93, 389.0, 263.0, ""),
    ("laplace-torch diagonal, by BackPACK", "W4'", 0.143, 6.8, 96.0, ""),
    ("the paper's code, exact", "W1", 3.20, 644.0, 381.0, ""),
    ("the paper's code, exact", "W2", None, None, None, "asks for 40 GB"),
    ("the paper's code, approximate", "W1", 0.354, 47.0, 205.0, ""),
    ("the paper's code, approximate", "W2", 1.52, 10.7, 860.0, "2044 times too large: its Upsample sums over channels"),
    ("nnj, exact", "W1", 1.58, 318.0, 640.0, ""),
]
QUOTED_FIGURE7 = [  # method, size, seconds, peak MB
    ("BackPACK, exact", 64, 34.7, 6744.0),
    ("laplace-torch diagonal", 32, 2.1, 791.0),
    ("laplace-torch diagonal", 64, 30.5, 11426.0),
    ("the paper's code, exact", 32, 10.9, 516.0),
    ("the paper's code, exact", 48, 78.0, 2530.0),
]

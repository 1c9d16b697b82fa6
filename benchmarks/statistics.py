"""Medians of ratios with their intervals."""

from __future__ import annotations

from math import comb
from statistics import median


def with_interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median, and the order statistics between which it lies with at least 95 % probability."""
    ordered, n = sorted(values), len(values)
    below, total = 0, 0.0
    while below < n // 2 and (total := total + comb(n, below) * 0.5**n) <= 0.025:
        below += 1
    low = max(0, below - 1)
    return median(ordered), ordered[low], ordered[n - 1 - low]

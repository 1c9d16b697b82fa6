"""Test whether rows come from another distribution than those an estimator was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marquis.errors import DataError
from marquis.notebook import html_table

FEWEST = 5
"""Smallest number of rows to compare."""


@dataclass(frozen=True)
class Drift:
    """Hold the outcome of a test for drift; true in a condition if there is drift.

    Attributes:
        p_value: Of the test: how often rows of the same distribution would differ as much.
        p_values: Of each statistic alone.
        alpha: Level of the test.
    """

    p_value: float
    p_values: dict[str, float]
    alpha: float

    @property
    def is_drift(self) -> bool:
        """Return whether the p-value is below the level."""
        return self.p_value < self.alpha

    def _repr_html_(self) -> str:
        verdict = f"drift at level {self.alpha:g}" if self.is_drift else f"no drift at level {self.alpha:g}"
        rows = [*self.p_values.items(), ("all together", self.p_value)]
        return html_table(verdict, ["statistic", "p-value"], rows)

    def __bool__(self) -> bool:
        return self.is_drift


def compare_samples(reference: Mapping[str, np.ndarray], statistics: Mapping[str, np.ndarray], alpha: float) -> Drift:
    """Compare statistics of rows by two-sample Kolmogorov-Smirnov tests, corrected for their number (Bonferroni).

    Raises:
        DataError: There are too few rows, or the level is none.
    """
    from scipy.stats import ks_2samp

    if not 0 < alpha < 1:
        raise DataError(f"alpha={alpha!r}: a level between 0 and 1.")
    rows = min(len(next(iter(part.values()))) for part in (reference, statistics))
    if rows < FEWEST:
        raise DataError(f"{rows} rows to compare: at least {FEWEST} are needed for a test of drift.")
    compare: Any = ks_2samp
    single = {name: float(compare(reference[name], statistics[name]).pvalue) for name in reference}
    return Drift(min(1.0, len(single) * min(single.values())), single, alpha)

"""The comparisons of the study of first use: who wins, and what is undecided."""

from __future__ import annotations

import numpy as np
import pytest

from marquis_experiments.defaults.first_use import FEW, OURS, RIVALS, compared, few_data, few_rows


def rows(ours: list[float], best: list[float]) -> list[dict[str, float]]:
    others = dict.fromkeys(RIVALS["filled"], 2.0)
    return [{**others, RIVALS["filled"][0]: b, OURS["filled"]: o} for o, b in zip(ours, best, strict=True)]


@pytest.mark.parametrize(
    ("ours", "best", "outcome"),
    [
        ([0.5], [0.6], "win"),
        ([0.6], [0.5], "**loss**"),
        ([0.5004], [0.5], "undecided"),
        ([0.5, 0.52, 0.54], [0.6, 0.63, 0.63], "win"),
        ([0.5, 0.7, 0.6], [0.6, 0.6, 0.65], "undecided"),
        ([0.7, 0.71, 0.72], [0.6, 0.62, 0.61], "**loss**"),
    ],
)
def test_outcomes(ours, best, outcome):
    line = compared("filled", "a table", rows(ours, best))
    assert line["outcome"] == outcome
    assert line["gain"] == pytest.approx(sum(best) / len(best) - sum(ours) / len(ours))
    assert line["over_mean"] == pytest.approx(sum(ours) / len(ours) / 2)


def test_few_rows_are_judged_by_new_ones():
    held = few_rows(1, 2)
    assert held["one_row_is_refused"] and all(0.5 < held[kind] <= 1 for kind in FEW)


@pytest.mark.parametrize("kind", FEW)
def test_copies_of_five_rows(kind):
    X, y, new, targets = few_data(kind, np.random.default_rng(0))
    assert len(np.unique(X, axis=0)) == 5 and len(X) == len(y) == 80 and len(new) == len(targets) == 1000
    assert len(np.unique(np.column_stack([X, y]), axis=0)) == (80 if kind == "replicates" else 5)

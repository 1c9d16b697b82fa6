"""Calibration of the intervals of missing entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from marquis.sklearn.entry_predictions import interval_scale


def test_intervals_hold_nine_tenths_whatever_the_tails():
    count = 100_000
    source = np.random.default_rng(0)
    columns = [source.normal(size=count), 3 * source.normal(size=count), source.standard_t(2, size=count)]
    scale = interval_scale(torch.as_tensor(np.stack(columns, 1)))
    quantile = stats.norm.ppf(0.95)
    expected = [1.0, 9.0, (stats.t.ppf(0.95, 2) / quantile) ** 2]  # the second moment of the last is infinite
    assert scale.numpy() == pytest.approx(np.array(expected), rel=0.03)


def test_columns_with_few_entries_take_the_common_scale():
    errors = torch.full((4000, 2), torch.nan, dtype=torch.float64)
    errors[:, 0] = 2 * torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    few, many = interval_scale(errors)[1], interval_scale(errors)[0]
    assert float(few) == pytest.approx(float(many), rel=0.1) and float(many) == pytest.approx(4.0, rel=0.1)
    assert interval_scale(torch.full((3, 2), torch.nan, dtype=torch.float64)).tolist() == [1.0, 1.0]

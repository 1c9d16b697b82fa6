"""Pictures: what is drawn is what was passed, on the axes that were passed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marquis import plots
from marquis.errors import DataError
from marquis.tasks.ranking import auroc


def test_regression_band_is_sorted_and_uses_the_axes():
    ax = Figure().subplots()
    x = np.array([2.0, 0.0, 1.0])
    result = plots.regression_band(torch.tensor(x), x**2, x**2 - 1, x**2 + 1, (x, x), ax)
    assert result is ax
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[0, 0], [1, 1], [2, 4]])
    assert ax.collections[0].get_paths()[0].get_extents().bounds == (0.0, -1.0, 2.0, 6.0)


def test_reliability_diagram_counts():
    probs = np.array([[0.9, 0.1]] * 8 + [[0.4, 0.6]] * 4)
    y = np.array([0] * 6 + [1] * 2 + [1, 0, 1, 0])
    ax = plots.reliability_diagram(probs, y, bins=3)
    points = ax.containers[0].lines[0].get_xydata()
    np.testing.assert_allclose(points[0], [0.6, 0.5])
    np.testing.assert_allclose(points[1:, 1].mean(), 0.75)
    assert (
        ax.get_title()
        == f"calibration error {(4 * 0.1 + 4 * abs(points[1, 1] - 0.9) + 4 * abs(points[2, 1] - 0.9)) / 12:.3f}"
    )
    same = plots.reliability_diagram(probs[:, 1], y, bins=3)
    np.testing.assert_allclose(same.containers[0].lines[0].get_xydata(), points)


def test_roc_histogram_imputed_and_contributions():
    inside, outside = torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.randn(40) + 1
    ax = plots.roc(inside, outside, "a")
    assert plots.roc(inside, 2 * outside, "b", ax) is ax and len(ax.lines) == 3
    assert ax.get_legend().get_texts()[0].get_text() == f"a: {auroc(inside.double(), outside.double()):.3f}"
    bars = plots.score_histogram(inside, outside).patches
    assert sum(bar.get_height() for bar in bars) == pytest.approx(2)
    hidden = plots.imputed_against_observed([1.0, 2.0], [1.5, 1.0], [0.1, 0.2])
    np.testing.assert_array_equal(hidden.containers[0].lines[0].get_xydata(), [[1, 1.5], [2, 1]])
    bars = plots.contributions([0.1, -3.0, 0.2, 1.0], ["a", "b$", "c", "d"], largest=2)
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([-3.0, 1.0, 0.3])
    assert [text.get_text() for text in bars.get_yticklabels()] == [r"b\$", "d", "2 others"]
    assert all(isinstance(each, Axes) for each in (ax, hidden, bars))


def test_refusals():
    with pytest.raises(DataError, match="NaN"):
        plots.imputed_against_observed([1.0, np.nan], [1.0, 2.0])
    with pytest.raises(DataError, match="lengths"):
        plots.regression_band([1.0], [1.0, 2.0], [0.0], [1.0])
    with pytest.raises(DataError, match="names"):
        plots.contributions([1.0, 2.0], ["a"])
    with pytest.raises(DataError, match="numbers"):
        plots.roc(["x"], [1.0])
    with pytest.raises(DataError, match="from 0 to 1"):
        plots.reliability_diagram([[0.9, 0.1], [0.2, 0.8]], [1, 2])

"""Coverage by simulation, averaged over calibration sets, from below and from above; and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import marquis as mq
from marquis.conformal import ConformalIntervals, ConformalSets, calibrate, p_values, quantile
from marquis.errors import DataError, UnsupportedOperationError

REPEATS = 4000


def within(covered: list[float], alpha: float, n: int, per_set: int) -> None:
    """The mean coverage lies between the two bounds, up to four standard errors."""
    error = 4 * np.std(covered) / math.sqrt(len(covered)) + 1e-12
    assert 1 - alpha - error <= np.mean(covered) <= 1 - alpha + 1 / (n + 1) + error
    assert error < 0.02 and per_set > 0


@pytest.mark.parametrize(("n", "alpha"), [(9, 0.1), (19, 0.2), (40, 0.1)])
def test_intervals_of_a_wrong_model_cover_two_sided(n, alpha):
    """Heavy tails, wrong mean, wrong scale: the promise needs none of them."""
    source, covered = np.random.default_rng(0), []
    for _ in range(REPEATS):
        x = source.random(n + 20)
        y = np.sin(6 * x) + (0.1 + x) * source.standard_t(3, n + 20)
        mean, scale = 0.5 * x, 0.3 + 0 * x
        calibrated = ConformalIntervals.calibrate(mean[:n], scale[:n], y[:n])
        low, high = calibrated.interval(mean[n:], scale[n:], alpha)
        covered.append(float(((low <= y[n:]) & (y[n:] <= high)).mean()))
    within(covered, alpha, n, 20)


@pytest.mark.parametrize(("n", "alpha"), [(15, 0.1), (40, 0.25)])
def test_adaptive_sets_cover_two_sided(n, alpha):
    source, covered = np.random.default_rng(1), []
    for repeat in range(REPEATS):
        logits = source.normal(size=(n + 10, 4)) * 2
        truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        y = np.array([source.choice(4, p=p) for p in truth])
        sharp = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)  # a model that is too certain
        sets = ConformalSets.calibrate(sharp[:n], y[:n], 2 * repeat).sets(sharp[n:], alpha, 2 * repeat + 1)
        covered.append(float(sets[np.arange(10), y[n:]].mean()))
    within(covered, alpha, n, 10)


@pytest.mark.parametrize("seed", [1, 4, 11])
def test_rows_by_themselves_are_covered_as_rows_among_others(seed):
    """With uniform numbers by place, all single rows had the same one: seed 4 covered .64 instead of .9."""
    source = np.random.default_rng(5)
    probs = source.dirichlet(np.full(3, 0.3), 4400)
    y = (probs.cumsum(1) < source.random((4400, 1))).sum(1)
    conformal = ConformalSets.calibrate(probs[:4000], y[:4000])  # so many that coverage is hardly random
    together = conformal.sets(probs[4000:], 0.1, seed)
    alone = np.concatenate([conformal.sets(row[None], 0.1, seed) for row in probs[4000:]])
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(conformal.sets(probs[:3999:-1], 0.1, seed), together[::-1])
    assert abs(alone[np.arange(400), y[4000:]].mean() - 0.9) < 4 * math.sqrt(0.09 / 400)
    # Rows that are equal to the last digit have different numbers in one call, else all of them were in or out.
    same = conformal.sets(np.tile(probs[4000], (500, 1)), 0.1, seed)
    certain = conformal.sets(np.tile([1.0, 0.0, 0.0], (500, 1)), 0.1, seed)[:, 0].mean()
    assert 0.8 < certain < 1 and same.shape == (500, 3)


def test_p_values_are_uniform_on_ordinary_data():
    source, below = np.random.default_rng(2), []
    for _ in range(REPEATS):
        p = p_values(source.normal(size=19), source.normal(size=10))
        below.append(float((p <= 0.1).mean()))
    assert abs(np.mean(below) - 0.1) < 4 * np.std(below) / math.sqrt(REPEATS)  # 19 scores: exactly 2 of 20 ranks
    assert p_values([0.0, 1.0, 2.0], [5.0, -1.0, 1.0]).tolist() == [0.25, 1.0, 0.75]


def test_too_few_examples_give_everything_and_a_warning():
    with pytest.warns(UserWarning, match="too few"):
        low, high = ConformalIntervals.calibrate(np.zeros(8), np.ones(8), np.ones(8)).interval([0.0], [1.0], 0.1)
    assert low[0] == -np.inf and high[0] == np.inf
    assert quantile(np.arange(9.0), 0.1) == 8  # nine are just enough
    with pytest.warns(UserWarning, match="too few"):
        assert ConformalSets.calibrate(np.full((3, 2), 0.5), np.array([0, 1, 0])).sets([[0.9, 0.1]], 0.1).all()


def test_missing_labels_are_left_out_by_column():
    scores = np.stack([np.arange(20.0), np.r_[np.arange(10.0), np.full(10, np.nan)]], 1)
    np.testing.assert_array_equal(quantile(scores, 0.2), [16.0, 8.0])


def test_predictions_of_a_network():
    torch.manual_seed(0)
    x, y = torch.randn(120, 2), torch.randn(120, 1)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).eval()
    la = mq.Laplace(model, "gaussian").fit([(x[:50], y[:50])], progress=False)
    conformal = calibrate(la.predict(x[50:90]), y[50:90])
    low, high = conformal.interval(la.predict(x[90:]), 0.2)
    assert low.shape == (30, 1) and (low < high).all()
    own = la.predict(x[90:])
    torch.testing.assert_close((high + low) / 2, own.mean.double(), atol=1e-6, rtol=0)
    with pytest.raises(UnsupportedOperationError, match="interval"):
        conformal.sets(own)
    labels = (y > 0).float()
    binary = mq.Laplace(model, "bernoulli").fit([(x[:50], labels[:50])], progress=False)
    sets = mq.conformal.calibrate(binary.predict(x[50:90]), labels[50:90]).sets(binary.predict(x[90:]), 0.2)
    assert sets.shape == (30, 2) and sets.dtype == torch.bool


def test_refusals():
    with pytest.raises(DataError, match="alpha"):
        quantile([1.0, 2.0], 1.5)
    with pytest.raises(DataError, match="positive"):
        ConformalIntervals.calibrate([1.0], [0.0], [1.0])
    with pytest.raises(DataError, match="class numbers"):
        ConformalSets.calibrate(np.full((2, 2), 0.5), np.array([0.0, 1.0]))

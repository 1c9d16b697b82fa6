"""AUROC, AUPR and false positive rates: by counting pairs, by their symmetries, and against scikit-learn."""

from __future__ import annotations

import pytest
import torch

from marquis.errors import DataError
from marquis.tasks import ranking
from sklearn import metrics


def two_sets(seed: int, n: int = 40, m: int = 60, ties: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(n, generator=generator, dtype=torch.float64)
    outside = torch.randn(m, generator=generator, dtype=torch.float64) + 0.7
    return ((inside * 2).round(), (outside * 2).round()) if ties else (inside, outside)


def labelled(inside, outside):
    return torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]), torch.cat([inside, outside])


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_auroc_counts_pairs(seed, ties):
    inside, outside = two_sets(seed, ties=ties)
    pairs = outside[:, None] - inside[None, :]
    counted = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean()
    assert ranking.auroc(inside, outside) == pytest.approx(float(counted), rel=1e-12)
    if ties:  # or the half would never have been tried
        assert (pairs == 0).any()


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_scikit_learn_agrees(seed, ties):
    inside, outside = two_sets(seed, ties=ties)
    truth, score = labelled(inside, outside)
    assert ranking.auroc(inside, outside) == pytest.approx(metrics.roc_auc_score(truth, score), rel=1e-12)
    theirs = metrics.average_precision_score(truth, score)
    assert ranking.average_precision(inside, outside) == pytest.approx(theirs, rel=1e-12)
    curve = ranking.roc_curve(inside, outside)
    false, true, threshold = metrics.roc_curve(truth, score, drop_intermediate=False)
    assert curve.false_positive_rate.numpy() == pytest.approx(false, abs=1e-15)
    assert curve.true_positive_rate.numpy() == pytest.approx(true, abs=1e-15)
    assert curve.threshold.numpy() == pytest.approx(threshold, abs=1e-15)
    assert metrics.auc(false, true) == pytest.approx(ranking.auroc(inside, outside), rel=1e-12)


@pytest.mark.parametrize("tpr", [0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_false_positives_at_a_rate_by_trying_every_threshold(seed, tpr):
    inside, outside = two_sets(seed)
    tried = [
        float((inside >= t).double().mean())
        for t in torch.cat([inside, outside])
        if float((outside >= t).double().mean()) >= tpr
    ]
    assert ranking.fpr_at_tpr(inside, outside, tpr) == pytest.approx(min(tried), abs=1e-15)


def test_only_the_order_matters():
    inside, outside = two_sets(0)
    for change in (torch.exp, lambda s: 3 * s - 100, torch.atan, lambda s: s**3):
        for measure in (ranking.auroc, ranking.average_precision, ranking.fpr_at_tpr):
            assert measure(change(inside), change(outside)) == measure(inside, outside)
    assert ranking.auroc(-inside, -outside) == pytest.approx(1 - ranking.auroc(inside, outside))  # not monotone rising


def test_constant_score_tells_nothing():
    inside, outside = torch.ones(7), torch.ones(3)
    assert ranking.auroc(inside, outside) == 0.5
    assert ranking.average_precision(inside, outside) == pytest.approx(0.3)  # the share of the outside
    assert ranking.fpr_at_tpr(inside, outside) == 1.0


def test_swapping_the_sets_mirrors_and_nothing_is_flipped():
    inside, outside = two_sets(1)
    forward = ranking.auroc(inside, outside)
    assert forward > 0.5
    assert ranking.auroc(outside, inside) == pytest.approx(1 - forward, rel=1e-12)
    assert ranking.auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 0.0


def test_perfect_separation():
    inside, outside = torch.arange(5.0), torch.arange(5.0) + 10
    assert ranking.auroc(inside, outside) == ranking.average_precision(inside, outside) == 1.0
    assert ranking.fpr_at_tpr(inside, outside) == 0.0


def test_infinite_scores_have_a_rank():
    assert ranking.auroc(torch.tensor([0.0, 1.0]), torch.tensor([torch.inf, -torch.inf])) == 0.5


@pytest.mark.parametrize("measure", [ranking.auroc, ranking.average_precision, ranking.fpr_at_tpr, ranking.roc_curve])
def test_what_has_no_rank_is_refused(measure):
    good = torch.arange(3.0)
    with pytest.raises(DataError, match=r"OOD scores must be a tensor \[n\]"):
        measure(good, torch.zeros(0))
    with pytest.raises(DataError, match=r"in-distribution scores must be a tensor \[n\].*\[3, 1\]"):
        measure(good.unsqueeze(1), good)
    with pytest.raises(DataError, match="1 of 2 in-distribution scores are NaN"):
        measure(torch.tensor([0.0, torch.nan]), good)
    with pytest.raises(DataError, match="list"):
        measure([1.0], good)


@pytest.mark.parametrize("tpr", [0.0, 1.1, -1])
def test_impossible_rates_are_refused(tpr):
    with pytest.raises(DataError, match=r"lies in \(0, 1\]"):
        ranking.fpr_at_tpr(torch.arange(3.0), torch.arange(3.0), tpr)

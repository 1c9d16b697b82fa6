"""Dense layers alone: variances by layer against `predict`, and a choice that keeps to its limit."""

from __future__ import annotations

import itertools

import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from marquis.laplace import Laplace
from marquis.predictive import predict
from marquis_experiments.common.images import Labelled
from marquis_experiments.common.networks import image_cnn
from marquis_experiments.linearised_laplace.fashion_classification.dense import (
    Parts,
    averaged,
    chosen,
    dense_laplace,
    dense_names,
    frontier,
    nll_and_auroc,
    parts_of,
    without_variance,
)
from marquis_experiments.linearised_laplace.stack_covariance import StackCovariance

GRID = (0.5, 4.0, 60.0)


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    network = image_cnn((2, 3, 4), (5, 6), seed=1).double()
    data = Labelled(torch.randn(12, 1, 28, 28, dtype=torch.float64), torch.arange(12) % 10)
    return network, data, dense_laplace(network, data)


def test_variances_by_layer_are_those_of_predict_with_a_prior_per_layer(small):
    network, data, laplace = small
    assert dense_names(network) == [f"{layer}.{kind}" for layer in (8, 10, 12) for kind in ("weight", "bias")]
    parts = parts_of(laplace, GRID, data.x[:5], chunk=2)
    torch.testing.assert_close(parts.mean, network(data.x[:5]).detach(), rtol=1e-10, atol=1e-12)
    own = laplace.problem().grouped_prior
    for combination in ((0, 1, 2), (2, 0, 0)):
        laplace.update(prior=own.with_precision(torch.tensor([GRID[i] for i in combination], dtype=torch.float64)))
        theirs = laplace.predict(data.x[:5])
        summed = sum(parts.variances[layer, place] for layer, place in enumerate(combination))
        torch.testing.assert_close(summed, theirs.variance, rtol=1e-8, atol=0)
        torch.testing.assert_close(parts.probs(combination), theirs.probs, rtol=1e-8, atol=1e-12)
    laplace.update(prior=own)


def test_parts_of_a_stack_add_up_and_convolutions_may_be_held(small):
    network, data, laplace = small
    whole = Laplace(network, "categorical", "kronecker").fit([(data.x, data.y)], progress=False)
    stack, dense = StackCovariance(network, [whole.posterior]), StackCovariance(network, [laplace.posterior])
    assert stack.layers == ("0", "2", "5", "8", "10", "12") and dense.layers == ("8", "10", "12")
    _, all_parts = stack.by_layer(data.x[:3])
    _, dense_parts = dense.by_layer(data.x[:3])
    for name in dense.layers:  # held convolutions leave the dense layers' curvature as it is
        torch.testing.assert_close(dense_parts[name], all_parts[name], rtol=1e-8, atol=0)
    summed = torch.stack(list(all_parts.values())).sum(0)
    torch.testing.assert_close(summed[0], predict(whole.posterior, network, data.x[:3]).covariance, rtol=1e-8, atol=0)
    assert float((dense(data.x[:3])[1] / stack(data.x[:3])[1]).diagonal(dim1=2, dim2=3).max()) < 1


def random_parts(n: int, seed: int, spread: float) -> Parts:
    numbers = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(n, 4, generator=numbers, dtype=torch.float64)
    scale = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64).reshape(1, 3, 1, 1)
    return Parts(mean, spread * scale * torch.rand(2, 3, n, 4, generator=numbers, dtype=torch.float64))


def test_the_choice_keeps_to_the_limit_and_is_the_best_that_does():
    inside, outside = [random_parts(60, k, 1.0) for k in (0, 1)], [random_parts(50, k, 9.0) for k in (2, 3)]
    labels = (inside[0].mean + inside[1].mean).argmax(1)
    scores = {}
    for combination in itertools.product(range(3), repeat=2):
        p = sum(part.probs(combination) for part in inside) / 2
        q = sum(part.probs(combination) for part in outside) / 2
        outlier = [0] * 60 + [1] * 50
        area = roc_auc_score(outlier, -torch.cat([p, q]).max(1).values.numpy())
        scores[combination] = (log_loss(labels.numpy(), p.numpy(), labels=range(4)), area)
    ordered = sorted(nll for nll, _ in scores.values())
    middle = (ordered[4] + ordered[5]) / 2  # between two of them: rounding must not decide who keeps to it
    found = chosen(inside, outside, labels, GRID, middle)
    allowed = {key: value for key, value in scores.items() if value[0] <= middle}
    best = max(allowed, key=lambda key: allowed[key][1])
    assert tuple(found["combination"]) == best and found["precision"] == [GRID[i] for i in best]
    assert found["nll"] == pytest.approx(scores[best][0], rel=1e-10)
    assert found["auroc"] == pytest.approx(scores[best][1], rel=1e-10)
    assert max(value[1] for value in scores.values()) > found["auroc"]  # the limit cost something
    none = chosen(inside, outside, labels, GRID, 0.0)
    assert none["nll"] == pytest.approx(min(nll for nll, _ in scores.values()), rel=1e-10)
    line = frontier(inside, outside, labels, GRID)
    assert [point["precision"] for point in line] == list(GRID)
    assert line[1]["auroc"] == pytest.approx(scores[1, 2][1], rel=1e-10)
    # The last place of the grid has no variance here: there the mixture is that of the networks themselves.
    assert nll_and_auroc(without_variance(inside), without_variance(outside), labels) == nll_and_auroc(
        averaged(inside, (2, 2)), averaged(outside, (2, 2)), labels
    )

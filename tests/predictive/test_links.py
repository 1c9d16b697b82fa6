"""The link from Gaussian logits to class probabilities: invariance, limits, error, and what it may depend on."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis.likelihoods.averages import sigmoid_average, softmax_average


def cases(classes: int, variance: float, count: int = 25, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random logits of several scales, and full covariances of unequal variances."""
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)  # noqa: E731
    mean = draw(count, classes) * torch.linspace(0.5, 6, count).unsqueeze(1)
    root = draw(count, classes, classes) * (0.5 * draw(count, classes, 1)).exp()
    covariance = root @ root.mT
    scale = covariance.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    return mean, covariance * variance / scale


def link(mean: Tensor, covariance: Tensor) -> Tensor:
    return mq.Categorical().predictive(mean, covariance.diagonal(dim1=1, dim2=2), covariance).probs


def monte_carlo(mean: Tensor, covariance: Tensor, samples: int = 40_000) -> Tensor:
    """Average over independent draws: no projection, another root, other numbers."""
    source = torch.Generator().manual_seed(7)
    root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(covariance.shape[-1]))
    total = torch.zeros_like(mean)
    for _ in range(samples // 2000):
        z = torch.randn(2000, mean.shape[1], generator=source, dtype=torch.float64)
        total += (mean.unsqueeze(1) + z @ root.mT).softmax(-1).sum(1)
    return total / samples


def test_sigmoid_average_against_quadrature_and_in_the_tails():
    points = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weights = (-0.5 * points.square()).exp() * (points[1] - points[0]) / math.sqrt(2 * math.pi)
    for m in (-30.0, -8.0, -1.0, 0.0, 0.3, 5.0):
        for v in (0.01, 1.0, 9.0, 25.0):
            truth = float((weights * (m + math.sqrt(v) * points).sigmoid()).sum())
            value = float(sigmoid_average(torch.tensor(m).double(), torch.tensor(v).double()))
            assert value == pytest.approx(truth, rel=2e-6 if m < 0 else 1e-8)
    m = torch.tensor([-700.0, -40.0, 0.0, 40.0], dtype=torch.float64)
    assert torch.equal(sigmoid_average(m, torch.zeros_like(m)), m.sigmoid())
    assert float(sigmoid_average(torch.tensor(0.0), torch.tensor(1e6))) == 0.5


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_constants_and_common_variances_change_nothing(classes):
    mean, covariance = cases(classes, 4.0)
    shift = torch.randn(len(mean), classes, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected = link(mean, covariance)
    torch.testing.assert_close(link(mean + 17.0, covariance), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(link(mean, covariance + 100.0), expected, rtol=0, atol=1e-9)
    # More generally a common random shift that is correlated with the logits: V + a 1' + 1 a'.
    correlated = covariance + shift.unsqueeze(2) + shift.unsqueeze(1)
    torch.testing.assert_close(link(mean, correlated), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_softmax_is_the_limit(classes):
    mean, covariance = cases(classes, 1.0)
    torch.testing.assert_close(link(mean, 0 * covariance), mean.softmax(1), rtol=1e-12, atol=0)
    errors = [float((link(mean, s * covariance) - mean.softmax(1)).abs().max()) for s in (1e-2, 1e-4, 1e-6)]
    assert errors[0] > 1e-4 and errors[1] < 2e-2 * errors[0] and errors[2] < 2e-2 * errors[1]  # of first order in V


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0])
def test_error_bar_and_relabelling(classes, variance):
    """The largest error over classes is at most .02 on average; another order of the classes moves .03 at most."""
    mean, covariance = cases(classes, variance, 12)
    truth = monte_carlo(mean, covariance, 40_000 if classes < 100 else 8_000)
    result = link(mean, covariance)
    assert float((result - truth).abs().amax(1).mean()) < 0.02
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(1))
    relabelled = link(mean[:, order], covariance[:, order][:, :, order])
    assert float((relabelled - result[:, order]).abs().amax(1).mean()) < 0.03  # the difference of two such errors


def test_published_links_err_by_more():
    mean, covariance = cases(10, 10.0)
    variance, truth = covariance.diagonal(dim1=1, dim2=2), monte_carlo(mean, covariance)
    likelihood = mq.Categorical()
    by_probit = mq.predictive.links.probit(likelihood, mean, variance)
    by_bridge = mq.predictive.links.bridge(likelihood, mean, variance, covariance)
    for probs in (by_probit, by_bridge):
        assert float((probs - truth).abs().amax(1).mean()) > 0.1


def test_a_row_depends_on_no_other_row(monkeypatch):
    mean, covariance = cases(5, 3.0, 30)
    whole = link(mean, covariance)
    torch.testing.assert_close(torch.cat([link(mean[i : i + 1], covariance[i : i + 1]) for i in range(30)]), whole)
    monkeypatch.setattr("marquis.likelihoods.averages.ENTRIES", 7 * 512 * 5)
    torch.testing.assert_close(link(mean, covariance), whole)


def test_classes_per_pixel_and_joint_covariances():
    source = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 3, 2, 2, generator=source, dtype=torch.float64)  # three classes at four pixels
    root = torch.randn(24, 24, generator=source, dtype=torch.float64)
    joint = root @ root.mT / 4
    each = torch.stack([joint[:12, :12], joint[12:, 12:]])
    variance = each.diagonal(dim1=1, dim2=2).reshape(mean.shape)
    whole = mq.Categorical().predictive(mean, variance, joint).probs
    torch.testing.assert_close(mq.Categorical().predictive(mean, variance, each).probs, whole)
    for n in range(2):
        for i in range(2):
            for j in range(2):
                entries = [4 * c + 2 * i + j for c in range(3)]
                block = each[n][entries][:, entries]
                expected = softmax_average(mean[n, :, i, j][None], variance[n, :, i, j][None], block[None])[0]
                torch.testing.assert_close(whole[n, :, i, j], expected)
    last = mq.Categorical(dim=-1).predictive(mean.movedim(1, -1), variance.movedim(1, -1)).probs
    torch.testing.assert_close(last.movedim(-1, 1), mq.Categorical().predictive(mean, variance).probs)


def test_variances_alone_mean_independent_logits():
    mean, covariance = cases(4, 2.0)
    variance = covariance.diagonal(dim1=1, dim2=2)
    alone = mq.Categorical().predictive(mean, variance).probs
    assert float((alone - link(mean, torch.diag_embed(variance))).abs().max()) < 0.02  # other nodes, same integral
    assert float((alone - monte_carlo(mean, torch.diag_embed(variance))).abs().amax(1).mean()) < 0.01
    assert float((alone - link(mean, covariance)).abs().max()) > 0.02


def test_several_labels_per_input():
    mean, variance = torch.randn(6, 5), torch.rand(6, 5) * 9
    probs = mq.Bernoulli().predictive(mean, variance).probs
    nodes, weights = np.polynomial.hermite_e.hermegauss(96)
    logits = mean.double().unsqueeze(-1) + variance.double().sqrt().unsqueeze(-1) * torch.from_numpy(nodes)
    truth = (logits.sigmoid() * torch.from_numpy(weights / weights.sum())).sum(-1)
    torch.testing.assert_close(probs.double(), truth, rtol=0, atol=2e-5)


def test_the_default_of_a_network_is_its_posterior_averaged():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, dtype=torch.float64), torch.randint(4, (40,))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double().eval()
    la = mq.Laplace(model, "categorical", "full", prior=0.1).fit([(x, y)], progress=False)
    new = torch.randn(20, 3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        default = la.predict(new)
    truth = la.predict(new, link="mc", samples=20_000, generator=torch.Generator().manual_seed(0)).probs
    assert torch.equal(default.probs, la.predict(new, link="quadrature").probs)
    assert float((default.probs - truth).abs().amax(1).mean()) < 0.02
    for old in ("probit", "bridge"):
        with pytest.warns(UserWarning, match="quadrature"):
            probs = la.predict(new, link=old).probs
        assert float((probs - truth).abs().amax(1).mean()) > 0.03

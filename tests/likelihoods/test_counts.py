"""Poisson and negative-binomial counts, and preferences between two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import marquis as mq
from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import NegativeBinomial, Poisson, Preference
from marquis.testing import LikelihoodConformance
from marquis.testing.likelihoods import all_labels
from marquis.testing.tools import close, flat, seeded

R = 2.5


class TestPoisson(LikelihoodConformance):
    shapes = ((5,), (3, 4), (1, 1), (2, 1, 3, 2))
    small = (2, 1)
    extremes = False  # exp(1e4) is refused by validate

    def likelihood(self):
        return Poisson()

    def reference(self, f, y):
        return flat(torch.distributions.Poisson(f.exp()).log_prob(y)).sum(1)

    def support(self, f):
        values = torch.arange(150, dtype=f.dtype).reshape(-1, *[1] * f.ndim).expand(-1, *f.shape)
        return all_labels(values, torch.distributions.Poisson(f.exp()).log_prob(values).exp())


class TestNegativeBinomial(LikelihoodConformance):
    shapes = ((5,), (3, 4), (1, 1), (2, 1, 3, 2))
    small = (2, 1)
    extremes = False

    def likelihood(self):
        return NegativeBinomial(R)

    def outputs(self, shape, dtype=torch.float64, seed=1):
        return 0.5 * super().outputs(shape, dtype, seed)

    def reference(self, f, y):
        law = torch.distributions.NegativeBinomial(torch.full_like(f, R), logits=f - np.log(R))
        return flat(law.log_prob(y)).sum(1)

    def support(self, f):
        values = torch.arange(400, dtype=f.dtype).reshape(-1, *[1] * f.ndim).expand(-1, *f.shape)
        law = torch.distributions.NegativeBinomial(torch.full_like(f, R), logits=f - np.log(R))
        return all_labels(values, law.log_prob(values).exp())


class TestPreference(LikelihoodConformance):
    shapes = ((3, 2), (1, 2), (2, 2, 3))
    small = (2, 2)

    def likelihood(self):
        return Preference()

    def reference(self, f, y):
        first, second = f.unbind(1)
        return -flat(torch.nn.functional.softplus(-(first - second) * (1 - 2 * y))).sum(1)

    def support(self, f):
        values = torch.stack([torch.zeros_like(f[:, 0]), torch.ones_like(f[:, 0])]).long()
        first = (f[:, 0] - f[:, 1]).sigmoid()
        return all_labels(values, torch.stack([first, 1 - first]))

    def keep(self, f, y, chosen):
        return (f[..., chosen], y[..., chosen]) if y.ndim > 1 else (f, y)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(R)])
def test_moments_of_a_new_count_and_its_density_against_sums(likelihood):
    mean, variance = torch.tensor([[0.3, -1.0]]).double(), torch.tensor([[0.4, 0.9]]).double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    counts = torch.arange(2000, dtype=torch.float64)
    probabilities = torch.zeros(2000, 2, dtype=torch.float64)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        f = (mean + node * variance.sqrt()).expand(2000, 2)
        probabilities += weight * likelihood.entry_log_prob(f, counts[:, None].expand(2000, 2)).exp()
    rate, spread = likelihood.count_moments(mean, variance)
    expected = (counts[:, None] * probabilities).sum(0)
    close(rate[0], expected, rtol=1e-7)
    close(spread[0], (counts[:, None].square() * probabilities).sum(0) - expected**2, rtol=1e-6)
    prediction = mq.predictive.Prediction(mean, variance, likelihood=likelihood)
    close(prediction.log_prob(torch.tensor([[2.0, 1.0]]).double()), probabilities[[2, 1], [0, 1]].log().sum()[None])


def test_counts_through_the_front_door():
    torch.manual_seed(0)
    x = torch.randn(200, 1, dtype=torch.float64)
    y = torch.poisson((0.5 + x).exp(), generator=seeded())
    model = nn.Linear(1, 1).double().eval()
    with torch.no_grad():
        model.weight.fill_(1.0), model.bias.fill_(0.5)
    la = mq.Laplace(model, "poisson", "full", prior=1e-3).fit([(x, y)], progress=False)
    inputs = torch.cat([x, torch.ones_like(x)], 1)
    expected = inputs.mT @ (inputs * (0.5 + x).exp())
    close(la.curvature.to_dense(), expected)  # generalised linear model: X^T diag(mu) X
    assert la.log_evidence().isfinite() and la.tune("grid", [(x, y)], values=[0.01, 1.0]) is not None
    with pytest.raises(UnsupportedOperationError, match="link"):
        la.predict(x, link="probit")
    nb = mq.Laplace(model, NegativeBinomial(R), "full").fit([(x, y)], progress=False)
    mu = (0.5 + x).exp()
    close(nb.curvature.to_dense(), inputs.mT @ (inputs * R * mu / (R + mu)))


def test_what_scores_share_cancels_in_a_preference(tmp_path):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.reward = nn.Linear(2, 1)

        def forward(self, chosen, rejected):
            return torch.cat([self.reward(chosen), self.reward(rejected)], 1)

    torch.manual_seed(1)
    model = Pair().double().eval()
    pair = (torch.randn(9, 2).double(), torch.randn(9, 2).double())
    la = mq.Laplace(model, "preference", "full").fit([(pair, torch.zeros(9, dtype=torch.long))], progress=False)
    difference = pair[0] - pair[1]
    p = (model.reward(pair[0]) - model.reward(pair[1])).sigmoid().detach()
    close(la.curvature.to_dense()[:2, :2], difference.mT @ (difference * p * (1 - p)))
    assert la.curvature.to_dense()[2].abs().max() < 1e-12  # the bias cancels
    prediction = la.predict(pair)
    covariance = torch.linalg.inv(la.posterior.precision.to_dense())[:2, :2]
    variance = ((difference @ covariance) * difference).sum(1)
    logit = (model.reward(pair[0]) - model.reward(pair[1]))[:, 0].detach()
    nodes, weights = (torch.as_tensor(t) for t in np.polynomial.hermite_e.hermegauss(60))
    exact = ((logit[:, None] + variance.sqrt()[:, None] * nodes).sigmoid() * weights).sum(1) / weights.sum()
    close(prediction.probs[:, 0], exact, rtol=0, atol=1e-3)
    independent = prediction.variance.sum(1)  # what the scores share would count twice
    wrong = ((logit[:, None] + independent.sqrt()[:, None] * nodes).sigmoid() * weights).sum(1) / weights.sum()
    assert (prediction.probs[:, 0] - wrong).abs().max() > 0.005
    la.save(tmp_path / "preference.mq")
    close(mq.load(tmp_path / "preference.mq", model).predict(pair).probs, prediction.probs)


def test_labels_and_outputs_that_cannot_be_meant():
    f = torch.zeros(2, 1)
    for y in (torch.tensor([[-1.0], [0.0]]), torch.tensor([[0.5], [1.0]])):
        with pytest.raises(DataError, match="counts"):
            Poisson().validate(f, y)
    with pytest.raises(DataError, match="logarithms of rates"):
        Poisson().validate(f + 1e4)
    with pytest.raises(DataError, match="dispersion"):
        NegativeBinomial(0)
    with pytest.raises(DataError, match="two alternatives"):
        Preference().validate(torch.zeros(2, 3))

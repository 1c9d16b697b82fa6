"""The posterior temperature by unseen data: leave-one-out against refits, validation data, and what is refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis.errors import DataError, UnsupportedOperationError
from marquis.evidence.tuning_result import TuningWarning
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.leave_one_out import leave_one_out

BETA, DELTA = 2.0, 0.7


def ridge(x: Tensor, y: Tensor, likelihood: str = "gaussian", steps: int = 1) -> Tensor:
    """Weights `[O, D]` at the mode, one output, by Newton steps."""
    weights = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(steps if likelihood == "gaussian" else 60):
        f = x @ weights
        p = f.sigmoid()
        gradient = BETA * (f - y) if likelihood == "gaussian" else p - y
        curvature = torch.full_like(f, BETA) if likelihood == "gaussian" else p * (1 - p)
        hessian = x.mT @ (curvature[:, None] * x) + DELTA * torch.eye(x.shape[1], dtype=torch.float64)
        weights = weights - torch.linalg.solve(hessian, x.mT @ gradient + DELTA * weights)
    return weights


def linear(weights: Tensor) -> nn.Linear:
    model = nn.Linear(len(weights), 1, bias=False).double().eval()
    with torch.no_grad():
        model.weight.copy_(weights[None])
    return model


def problem(likelihood: str, n: int = 30) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=source, dtype=torch.float64)
    y = x[:, 0] - 0.5 * x[:, 1] + 0.5 * torch.randn(n, generator=source, dtype=torch.float64)
    return x, y if likelihood == "gaussian" else (y > 0).double()


def left_out(x: Tensor, y: Tensor, likelihood: str, structure: str) -> tuple[Tensor, Tensor]:
    model = linear(ridge(x, y, likelihood))
    kind = mq.Gaussian(BETA) if likelihood == "gaussian" else mq.Bernoulli()
    la = mq.Laplace(model, kind, structure, prior=DELTA).fit([(x, y[:, None])], progress=False)
    function = PosteriorFunction(model, la.posterior)
    parts = list(
        leave_one_out(function, la.posterior.precision, kind, 1.0, [(x[:17], y[:17, None]), (x[17:], y[17:, None])])
    )
    return torch.cat([part[0] for part in parts])[:, 0], torch.cat([part[2] for part in parts])[:, 0, 0]


@pytest.mark.parametrize("structure", ["full", "lowrank"])
def test_leave_one_out_is_a_refit_for_gaussian_noise(structure):
    x, y = problem("gaussian")
    mean, variance = left_out(x, y, "gaussian", structure)
    for n in range(len(x)):
        rest = torch.arange(len(x)) != n
        weights = ridge(x[rest], y[rest])
        precision = BETA * x[rest].mT @ x[rest] + DELTA * torch.eye(4, dtype=torch.float64)
        assert float(mean[n]) == pytest.approx(float(x[n] @ weights), rel=1e-8, abs=1e-10)
        assert float(variance[n]) == pytest.approx(float(x[n] @ torch.linalg.solve(precision, x[n])), rel=1e-8)


def test_leave_one_out_is_of_first_order_for_classes():
    x, y = problem("bernoulli", 60)
    mean, _ = left_out(x, y, "bernoulli", "full")
    inside = x @ ridge(x, y, "bernoulli")
    outside = torch.stack(
        [x[n] @ ridge(x[rest := torch.arange(len(x)) != n], y[rest], "bernoulli") for n in range(len(x))]
    )
    error, size = (mean - outside).abs().mean(), (inside - outside).abs().mean()
    assert 1e-6 < float(error) < 0.1 * float(size)


def test_leave_one_out_of_a_diagonal_takes_the_example_off_the_diagonal():
    """With one weight per example group the diagonal is the full matrix, and both ways must agree."""
    x = torch.eye(4, dtype=torch.float64).repeat(5, 1)
    y = torch.randn(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for diagonal, full in zip(left_out(x, y, "gaussian", "diagonal"), left_out(x, y, "gaussian", "full"), strict=True):
        torch.testing.assert_close(diagonal, full, rtol=1e-10, atol=0)
    dense, labels = problem("gaussian")
    _, variance = left_out(dense, labels, "gaussian", "diagonal")
    a = BETA * dense.square().sum(0) + DELTA
    expected = (dense.square() / (a - BETA * dense.square())).sum(1)
    torch.testing.assert_close(variance, expected, rtol=1e-10, atol=0)


def separable() -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]], nn.Module]:
    """Two well separated classes: the curvature almost vanishes, and the evidence leaves the posterior far too wide."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(100, 6) - 1.5, torch.randn(100, 6) + 1.5]).double()
    y = torch.cat([torch.zeros(100, 1), torch.ones(100, 1)]).double()
    order = torch.randperm(200)
    x, y = x[order], y[order]
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[:60]), y[:60]).backward()
        optimiser.step()
    return [(x[:60], y[:60])], [(x[60:130], y[60:130]), (x[130:], y[130:])], model.eval()


def test_validation_data_choose_the_temperature():
    train, unseen, model = separable()
    la = mq.Laplace(model, "bernoulli").fit(train, progress=False)
    before = float(torch.cat([la.predict(x).log_prob(y) for x, y in unseen]).mean())
    with pytest.raises(DataError, match="loo"):
        la.tune("loo", validation=unseen)
    tuned = la.tune(validation=unseen)
    held = tuned.held_out
    assert held.before == pytest.approx(before, rel=1e-10)
    assert la.posterior_temperature == held.posterior_temperature < 1
    after = float(torch.cat([la.predict(x).log_prob(y) for x, y in unseen]).mean())
    assert held.after == pytest.approx(after, rel=1e-6) and held.after == max(held.scores.values())
    assert held.scores[1.0] < after - 0.01  # tuning by the evidence alone would have been worse
    assert "before" in str(tuned) and "network alone" in str(tuned)
    plain = torch.cat([mq.Bernoulli().log_prob(model(x).detach(), y) for x, y in unseen]).mean()
    assert held.network == pytest.approx(float(plain), rel=1e-6)


def test_without_unseen_data_the_report_says_so():
    train, _, model = separable()
    la = mq.Laplace(model, "bernoulli").fit(train, progress=False)
    tuned = la.tune()
    assert la.posterior_temperature == 1 and tuned.held_out is None
    assert "not checked" in str(tuned)


def test_leave_one_out_is_refused_away_from_the_mode_and_for_kronecker():
    train, _, model = separable()
    la = mq.Laplace(model, "bernoulli", "full").fit(train, progress=False)
    precision = la.prior.precision.clone()
    with pytest.raises(UnsupportedOperationError, match="Newton decrement"):
        la.tune("loo")
    assert torch.equal(la.prior.precision, precision) and la.posterior_temperature == 1
    x, y = problem("gaussian")
    at_mode = linear(ridge(x, y))
    with pytest.raises(UnsupportedOperationError, match="full"):
        mq.Laplace(at_mode, mq.Gaussian(BETA), "kronecker", prior=DELTA).fit([(x, y[:, None])]).tune("loo")


def test_leave_one_out_at_the_mode():
    x, y = problem("gaussian")
    weights, precision, noise = ridge(x, y), 1.0, 1.0
    for _ in range(200):  # MacKay's updates to their fixed point, by hand
        a = noise * x.mT @ x + precision * torch.eye(4, dtype=torch.float64)
        weights = noise * torch.linalg.solve(a, x.mT @ y)
        gamma = 4 - precision * float(torch.linalg.inv(a).trace())
        precision = gamma / float(weights @ weights)
        noise = (len(x) - gamma) / float((y - x @ weights).square().sum())
    la = mq.Laplace(linear(weights), mq.Gaussian(noise), "full", prior=precision).fit([(x, y[:, None])])
    held = la.tune("loo").held_out
    assert held.by == "examples left out" and set(held.scores) == {0.01, 0.03, 0.1, 0.3, 1.0}
    total = 0.0
    for n in range(len(x)):
        rest = torch.arange(len(x)) != n
        a = noise * x[rest].mT @ x[rest] + precision * torch.eye(4, dtype=torch.float64)
        mean = noise * x[n] @ torch.linalg.solve(a, x[rest].mT @ y[rest])
        variance = x[n] @ torch.linalg.solve(a, x[n]) + 1 / noise
        total += float(torch.distributions.Normal(mean, variance.sqrt()).log_prob(y[n]))
    assert held.scores[1.0] == pytest.approx(total / len(x), rel=1e-3)


def test_fit_after_tune_starts_anew_and_says_so():
    x, y = problem("gaussian")
    la = mq.Laplace(linear(ridge(x, y)), "gaussian", "full").fit([(x, y[:, None])])
    fresh = la.predict(x).variance
    la.tune(validation=[(x[:5], y[:5, None])])
    with pytest.warns(TuningWarning, match="starts anew"):
        la.fit([(x, y[:, None])])
    assert float(la.likelihood.scalar_noise_precision) == 1 and la.posterior_temperature == 1
    torch.testing.assert_close(la.predict(x).variance, fresh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la.fit([(x, y[:, None])])

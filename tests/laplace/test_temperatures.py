"""The two temperatures of `Laplace` against dense formulas, their files, and laplace-torch's names."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis.errors import DataError, UnsupportedOperationError
from marquis.evidence import log_evidence

F64 = torch.float64


def data(n: int = 24) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator, dtype=F64)
    y = torch.stack([x.sum(1), x[:, 0].sin()], 1) + 0.1 * torch.randn(n, 2, generator=generator, dtype=F64)
    return [(x[:10], y[:10]), (x[10:], y[10:])]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


def fitted(structure: str = "full", **options: float) -> mq.Laplace:
    return mq.Laplace(network(), mq.Gaussian(4.0), structure, prior=2.0, **options).fit(data(), progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker", "block", "lowrank"])
def test_precision_and_predictions_at_both_temperatures(structure):
    x = torch.cat([x for x, _ in data()])
    plain, la = fitted(structure), fitted(structure, temperature=3.0, posterior_temperature=0.25)
    curvature = plain.curvature.to_dense()  # at noise precision 1
    expected = (4.0 * curvature / 3.0 + 2.0 * torch.eye(len(curvature), dtype=F64)) / 0.25
    torch.testing.assert_close(la.posterior.precision.to_dense(), expected, rtol=1e-9, atol=1e-9)
    cold = mq.Laplace(la.model, la.likelihood, structure, prior=2.0, temperature=3.0).fit(data(), progress=False)
    torch.testing.assert_close(la.predict(x).variance, 0.25 * cold.predict(x).variance, rtol=1e-8, atol=0)
    noise = torch.randn(5, cold.posterior.noise_dim, generator=torch.Generator().manual_seed(1), dtype=F64)
    for name, deviation in la.posterior.deviations_from(noise).items():
        torch.testing.assert_close(deviation, 0.5 * cold.posterior.deviations_from(noise)[name], rtol=1e-8, atol=1e-12)


def test_evidence_depends_on_the_likelihoods_temperature_only():
    assert float(fitted().log_evidence()) == float(fitted(posterior_temperature=0.1).log_evidence())
    assert float(fitted().log_evidence()) != float(fitted(temperature=0.1).log_evidence())
    a, b = fitted(), fitted(posterior_temperature=0.1)
    a.tune()
    b.tune()
    torch.testing.assert_close(a.prior.precision, b.prior.precision)  # type: ignore[union-attr]


def test_the_newton_step_does_not_depend_on_the_posterior_temperature():
    a, b = fitted().mean_shift(), fitted(posterior_temperature=0.1).mean_shift()
    for name, value in a.mean.items():
        torch.testing.assert_close(b.mean[name], value)
    one, other = fitted().check(), fitted(posterior_temperature=0.1).check()
    assert one.distance_to_mode == other.distance_to_mode and one.share_at_prior == other.share_at_prior


def test_both_temperatures_are_saved(tmp_path):
    la = fitted("kronecker", temperature=3.0, posterior_temperature=0.25)
    la.save(tmp_path / "file")
    loaded = mq.load(tmp_path / "file", la.model)
    assert (loaded.temperature, loaded.posterior_temperature) == (3.0, 0.25)
    torch.testing.assert_close(loaded.posterior.precision.to_dense(), la.posterior.precision.to_dense())


@pytest.mark.parametrize("name", ["temperature", "posterior_temperature"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_that_have_no_meaning_are_refused(name, value):
    with pytest.raises(DataError, match=name):
        mq.Laplace(network(), "gaussian", **{name: value})


def test_names_of_laplace_torch():
    la = fitted()
    assert float(la.log_marginal_likelihood()) == float(la.log_evidence())
    precision = torch.tensor(5.0, dtype=F64, requires_grad=True)
    sigma = torch.tensor(0.3, dtype=F64, requires_grad=True)
    value = la.log_marginal_likelihood(precision, sigma)
    expected = log_evidence(la.problem().with_hyper(torch.tensor([5.0], dtype=F64), 1 / 0.09))
    torch.testing.assert_close(value.detach(), expected)
    slopes = torch.autograd.grad(value, (precision, sigma))
    assert all(bool(slope.isfinite()) and float(slope) != 0 for slope in slopes)
    assert float(la.prior.precision[0]) == 2.0  # type: ignore[union-attr]
    noise = la.likelihood.scalar_noise_precision
    la.optimize_prior_precision()
    other = fitted()
    other.tune(noise=False)
    torch.testing.assert_close(la.prior.precision, other.prior.precision)  # type: ignore[union-attr]
    assert la.likelihood.scalar_noise_precision == noise
    la.optimize_prior_precision("gridsearch", data())
    other.tune("grid", data())
    torch.testing.assert_close(la.prior.precision, other.prior.precision)  # type: ignore[union-attr]
    with pytest.raises(UnsupportedOperationError, match="marglik"):
        la.optimize_prior_precision("margins")


@pytest.mark.parametrize("name", ["fit", "tune", "predict", "predict_loader"])
def test_options_are_in_the_signature(name):
    kinds = {parameter.kind for parameter in inspect.signature(getattr(mq.Laplace, name)).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_signatures_agree_with_what_they_pass_on():
    tune = set(inspect.signature(mq.Laplace.tune).parameters)
    module = inspect.unwrap(mq.evidence.tune).__globals__
    for method in (module[n] for n in ("by_evidence", "by_gradient", "adapted", "grid", "sampled")):
        assert set(inspect.signature(method).parameters) - {"problem"} <= tune
    passed_on = {"model", "loader", "likelihood", "structure", "estimator", "params", "parameters", "observer", "kind"}
    accumulate = set(inspect.signature(mq.curvature.accumulate).parameters) - passed_on
    assert accumulate <= set(inspect.signature(mq.Laplace.fit).parameters)


def test_an_option_of_another_method_is_refused_by_name():
    with pytest.raises(UnsupportedOperationError, match=r"'steps'.*tolerance"):
        fitted().tune("evidence", steps=3)

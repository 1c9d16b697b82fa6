"""MacKay's fixed points, the gradient, the grid (docs/method/evidence.md)."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from evidence_oracle import F64, Regression, batches, build, generator, randn
from torch import nn

from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.evidence import effective_parameters, log_evidence, tune
from marquis.evidence.gradient import ascend
from marquis.evidence.log_evidence import evidence_terms
from marquis.evidence.mackay import mackay
from marquis.likelihoods import Categorical, Gaussian
from marquis.priors import Prior, StructuredPrior
from marquis.structures import Diagonal, Full

TENSOR = Prior(groups="tensor")
GROUPED = Prior(groups={"slopes": "weight", "rest": "*"})


def network_problem(prior: Prior | None = None, structure: str = "kronecker", likelihood=None):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = randn(30, 2, seed=4)
    if likelihood is None:
        y = x @ randn(2, 2, seed=5) + 0.1 * randn(30, 2, seed=6)
        return build(model, batches(x, y), Gaussian(1.0), prior, structure)
    return build(model, batches(x, torch.randint(2, (30,), generator=generator())), likelihood, prior, structure)


def slopes(problem, noise: bool = True) -> float:
    """Largest derivative of the log evidence in the logarithm of a precision, at fixed weights."""
    leaf = problem.grouped_prior.precision.log().requires_grad_()
    beta = None if problem.noise is None or not noise else problem.noise.log().requires_grad_()
    value = log_evidence(problem.with_hyper(leaf.exp(), None if beta is None else beta.exp()))
    grads = torch.autograd.grad(value, [leaf] if beta is None else [leaf, beta])
    return max(float(g.abs().max()) for g in grads)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("prior", [Prior(), TENSOR, GROUPED], ids=["scalar", "tensor", "group"])
def test_practical_loop_ends_where_the_exact_evidence_is_stationary(outputs, prior):
    # Train (here: solve), update, repeat: the joint fixed point has zero gradient of the exact marginal likelihood.
    data = Regression(outputs=outputs)
    problem = data.problem(prior)
    bound = problem.grouped_prior
    precision, beta = bound.precision, torch.tensor(1.0, dtype=F64)
    for _ in range(200):
        theta = data.optimum(precision[bound.index], beta)
        sse = (data.labels - data.design @ theta).square().sum()
        trained = replace(problem, mean=theta, statistics=replace(problem.statistics, sse=sse))
        tuned = tune(trained.with_hyper(precision, beta), tolerance=1e-13, max_iterations=300)
        change = float((tuned.prior.precision / precision - 1).abs().max())
        precision, beta = tuned.prior.precision, tuned.likelihood.noise_precision
        if change < 1e-13:
            break
    logs, log_beta = precision.log().requires_grad_(), beta.log().requires_grad_()
    data.log_marginal(logs.exp()[bound.index], log_beta.exp()).backward()
    assert float(logs.grad.abs().max()) < 1e-8 and abs(float(log_beta.grad)) < 1e-8
    # Two-sided: N - gamma instead of N O - gamma would be far away for three outputs.
    gamma = float(tuned.effective_parameters.sum())
    theta = data.optimum(precision[bound.index], beta)
    sse = float((data.labels - data.design @ theta).square().sum())
    assert float(beta) == pytest.approx((23 * outputs - gamma) / sse, rel=1e-8)
    if outputs == 3:
        log_beta = torch.tensor(math.log((23 - gamma) / sse), dtype=F64, requires_grad=True)
        data.log_marginal(precision[bound.index], log_beta.exp()).backward()
        assert abs(float(log_beta.grad)) > 1


@pytest.mark.parametrize("structure", ["full", "block", "diagonal", "kronecker", "lowrank"])
@pytest.mark.parametrize("groups", ["scalar", "layer"])
def test_fixed_point_is_stationary_for_every_structure(structure, groups):
    problem = network_problem(Prior(groups=groups), structure)
    result = mackay(problem, tolerance=1e-11)
    assert result.converged and len(result.history) < 60
    assert slopes(result.problem) < 1e-8
    assert result.log_evidence > float(log_evidence(problem)) + 1
    torch.testing.assert_close(result.gamma, effective_parameters(result.problem))


def test_normalised_groups_and_classes():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()
    loader = batches(randn(30, 2, seed=4), torch.randint(3, (30,), generator=generator()))
    problem = build(model, loader, Categorical(), Prior(groups="normalised"))
    assert problem.grouped_prior.names == ("other", "0")
    tuned = tune(problem, tolerance=1e-11)
    assert tuned.converged and slopes(problem.with_hyper(tuned.prior.precision)) < 1e-8
    assert isinstance(tuned.likelihood, Categorical)


def test_temperature_enters_the_noise_update():
    problem = replace(network_problem(structure="full"), temperature=3.0)
    result = mackay(problem, tolerance=1e-12)
    assert result.converged and slopes(result.problem) < 1e-8


def test_default_tolerance_and_noise_off():
    problem = network_problem(Prior(groups="layer"))
    tuned = tune(problem)
    exact = tune(problem, tolerance=1e-10)
    assert tuned.converged
    torch.testing.assert_close(tuned.prior.precision, exact.prior.precision, rtol=2e-3, atol=0)
    kept = tune(problem, noise=False)
    assert float(kept.likelihood.noise_precision) == 1.0 != float(tuned.likelihood.noise_precision)
    assert slopes(problem.with_hyper(kept.prior.precision), noise=False) < 1e-2


@pytest.mark.parametrize("groups", ["scalar", "layer"])
def test_gradient_reaches_the_same_maximum(groups):
    problem = network_problem(Prior(groups=groups), "full")
    exact = mackay(problem, tolerance=1e-10)
    tuned = tune(problem, "gradient", steps=1000, tolerance=1e-5)
    assert tuned.converged
    torch.testing.assert_close(tuned.prior.precision, exact.problem.grouped_prior.precision, rtol=1e-4, atol=0)
    assert tuned.log_evidence == pytest.approx(exact.log_evidence, abs=1e-6)


def test_a_hyper_prior_is_part_of_what_is_maximised():
    """Gaussian over log precisions: at the result the sum's gradient vanishes, the evidence's alone does not."""
    problem = network_problem(Prior(groups="layer"), "full")
    centre, sharpness = 1.5, 4.0

    def log_prior(logs):
        return -0.5 * sharpness * (logs - centre).square().sum()

    plain = tune(problem, "gradient", steps=1000, tolerance=1e-5)
    tuned = tune(problem, "gradient", steps=1000, tolerance=1e-5, log_prior=log_prior)
    assert tuned.converged
    logs = tuned.prior.precision.double().log().requires_grad_()
    here = problem.with_hyper(logs.exp(), tuned.likelihood.noise_precision)
    value = log_evidence(here)
    (slope,) = torch.autograd.grad(value, logs)
    torch.testing.assert_close(slope, sharpness * (logs.detach() - centre), rtol=0, atol=1e-4)
    assert float(slope.abs().max()) > 0.01
    assert tuned.log_evidence == pytest.approx(float(value.detach()), abs=1e-8)  # the evidence itself is reported
    assert tuned.log_evidence < plain.log_evidence


def test_gradient_keeps_the_best_iterate():
    problem = network_problem(structure="diagonal")
    result = ascend(problem, learning_rate=3.0, steps=15)  # overshoots at once
    values = [step.log_evidence for step in result.history]
    assert result.log_evidence == max(values) and values[-1] < max(values) - 1e-6
    assert not result.converged
    assert float(log_evidence(result.problem)) == pytest.approx(result.log_evidence, rel=1e-12)
    assert any("slope" in note for note in result.notes)


def test_adam_takes_over_where_mackay_does_not_converge():
    problem = network_problem(Prior(groups="layer"), "full")
    tuned = tune(problem, max_iterations=1)
    assert "Adam" in tuned.method and any("did not converge" in note for note in tuned.notes)
    assert tuned.converged
    exact = mackay(problem, tolerance=1e-10)
    assert tuned.log_evidence == pytest.approx(exact.log_evidence, abs=1e-4)
    assert tuned.log_evidence >= max(step.log_evidence for step in tuned.history)


def test_more_effective_parameters_than_labels():
    # A diagonal counts every weight: with 4 labels and 20 well-determined weights, N O - gamma is negative.
    problem = network_problem(structure="diagonal")
    layout = problem.layout
    seen = replace(problem.statistics, n=4, observed=4, sse=torch.tensor(2.0, dtype=F64))
    few = replace(problem, curvature=Diagonal(layout, torch.full((layout.total,), 1e4, dtype=F64)), statistics=seen)
    tuned = tune(few)
    assert "Adam" in tuned.method
    assert math.isfinite(tuned.log_evidence) and tuned.log_evidence > float(log_evidence(few))
    assert 1e-8 <= float(tuned.likelihood.noise_precision) <= 1e8


def test_one_precision_per_weight_prunes_at_the_limit():
    problem = network_problem(Prior(groups="parameter"), "diagonal")
    mean = problem.mean.clone()
    mean[3] = 0.0
    problem = replace(problem, mean=mean)
    tuned = tune(problem, noise=False, tolerance=1e-9)
    assert float(tuned.prior.precision[3]) == pytest.approx(1e8, rel=1e-6)
    assert any("1e+08" in note and "0.weight[3]" in note for note in tuned.notes)
    # With a diagonal the optimum is known: alpha (h + alpha) = h / theta^2.
    alpha, h = tuned.prior.precision, problem.curvature.diagonal()
    rest = torch.arange(len(mean)) != 3
    torch.testing.assert_close((alpha * (h + alpha))[rest], (h / mean.square())[rest], rtol=1e-7, atol=0)


def test_a_group_that_the_data_do_not_see_stops_at_the_lower_limit():
    problem = network_problem(Prior(groups="layer"), "diagonal")
    values = problem.curvature.diagonal().clone()
    values[:18] = 0.0
    tuned = tune(replace(problem, curvature=Diagonal(problem.layout, values)))
    assert float(tuned.prior.precision[0]) == pytest.approx(1e-8, rel=1e-3)
    assert any("1e-08" in note for note in tuned.notes)


def test_earlier_posterior_leaves_only_the_noise():
    data = Regression(outputs=2)
    problem = data.at_optimum(Prior(0.7), 2.5)
    matrix = Full(problem.layout, 3 * torch.eye(10, dtype=F64))
    problem = replace(problem, prior=StructuredPrior(problem.layout, matrix, problem.prior.mean))
    tuned = tune(problem)
    beta = tuned.likelihood.noise_precision.log().requires_grad_()
    log_evidence(problem.with_hyper(None, beta.exp())).backward()
    assert abs(float(beta.grad)) < 1e-2 and tuned.prior is problem.prior
    with pytest.raises(UnsupportedOperationError, match="nothing to tune"):
        tune(problem, noise=False)
    with pytest.raises(UnsupportedOperationError, match="earlier posterior"):
        effective_parameters(problem)


def test_report_says_what_changed():
    problem = network_problem(Prior(groups="layer"))
    tuned = tune(problem)
    text = str(tuned)
    assert text == tuned.report
    assert "prior precision, 0" in text and "prior precision, 2" in text and "noise precision" in text
    line = next(line for line in text.splitlines() if line.startswith("prior precision, 2"))
    assert line.split()[-4:] == [
        "1",
        f"{float(tuned.prior.precision[1]):.4g}",
        "14",
        f"{tuned.effective_parameters[1]:.1f}",
    ]
    assert f"{float(tuned.effective_parameters.sum()):.1f}" in text
    assert len(tuned.history) >= 2 and float(tuned.history[0].precision[0]) == 1.0
    many = tune(network_problem(Prior(groups="parameter"), "diagonal"))
    assert "32 groups" in str(many) and " .. " in str(many)


def test_unknown_method_and_options():
    problem = network_problem()
    with pytest.raises(UnsupportedOperationError, match="'evidence', 'gradient', 'adapted', 'grid', 'sampled'"):
        tune(problem, "guess")
    with pytest.raises(UnsupportedOperationError, match="score="):
        tune(problem, "grid")
    with pytest.raises(DataError, match="positive"):
        tune(problem, tolerance=0.0)
    with pytest.raises(DataError, match="positive"):
        tune(problem, "gradient", steps=0)
    for method in ("adapted", "sampled"):
        with pytest.raises(DataError, match="needs the model"):
            tune(replace(problem, model=None), method)
        with pytest.raises(DataError, match="one-shot"):
            tune(replace(problem, loader=iter(problem.loader)), method)


# The grid


def test_grid_finds_the_maximum_of_the_score():
    problem = network_problem(Prior(groups="layer"))
    calls = []

    def score(prior, likelihood):
        calls.append(prior.precision.clone())
        return float(log_evidence(replace(problem, prior=prior, likelihood=likelihood)))

    tuned = tune(problem, "grid", score=score, values=[0.01, 0.1, 1.0, 10.0, 100.0])
    best = max(step.log_evidence for step in tuned.history)
    assert tuned.log_evidence == best == score(tuned.prior, tuned.likelihood)
    assert float(tuned.prior.precision[0]) == float(tuned.prior.precision[1])
    assert len(calls) == 7 and tuned.effective_parameters is not None
    assert "validation log density" in str(tuned)


def test_relative_grid_keeps_ratios():
    problem = network_problem(Prior({"0": 1.0, "2": 5.0}, groups="layer"))
    tuned = tune(
        problem, "grid", values=[0.1, 1.0, 10.0], relative=True, score=lambda p, _: -abs(float(p.precision[0]) - 1)
    )
    assert float(tuned.prior.precision[1] / tuned.prior.precision[0]) == pytest.approx(5.0)


def test_grid_refuses_a_flat_objective():
    problem = network_problem()
    mean_only = -1.2345  # what a score that looks at the mean alone returns, whatever the prior
    with pytest.raises(NumericalError, match="does not depend"):
        tune(problem, "grid", score=lambda prior, likelihood: mean_only)
    with pytest.raises(NumericalError, match="NaN"):
        tune(problem, "grid", score=lambda prior, likelihood: math.nan)
    with pytest.raises(DataError, match="two different"):
        tune(problem, "grid", score=lambda prior, likelihood: 0.0, values=[1.0])


def test_grid_warns_at_an_end_and_only_there():
    problem = network_problem()
    with pytest.warns(UserWarning, match="end of the grid"):
        tuned = tune(problem, "grid", score=lambda prior, _: float(prior.precision[0]))
    assert float(tuned.prior.precision[0]) == pytest.approx(1e4) and tuned.notes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = tune(problem, "grid", score=lambda prior, _: -abs(math.log10(float(prior.precision[0])) - 1))
    assert float(tuned.prior.precision[0]) == pytest.approx(10.0)
    assert not tuned.notes


def test_terms_move_as_they_should_along_the_grid():
    problem = network_problem(structure="full")
    low, high = (evidence_terms(problem.with_hyper(torch.tensor([v], dtype=F64))) for v in (0.1, 10.0))
    assert low.fit == high.fit and low.scatter < high.scatter and low.complexity > high.complexity

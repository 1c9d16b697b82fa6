"""The log evidence against exact marginal likelihoods (docs/method/evidence.md)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from evidence_oracle import F64, Regression, batches, build, generator, randn
from torch import Tensor, nn

from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.evidence import EvidenceProblem, Statistics, effective_parameters, log_evidence
from marquis.evidence.log_evidence import evidence_terms
from marquis.likelihoods import Bernoulli, Categorical, Gaussian
from marquis.priors import BoundPrior, Prior, StructuredPrior
from marquis.structures import Diagonal, Full, Layout

LAYERED = Prior({"weight": 0.7, "bias": 3.0}, groups="tensor")


def close(actual: Tensor | float, expected: Tensor | float, rtol: float = 1e-8) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), rtol=rtol, atol=1e-10)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("size", [23, 7])  # 23 data: 7 leaves a short last batch
@pytest.mark.parametrize("prior", [Prior(0.7), LAYERED, Prior(0.7, mean=0.4)], ids=["scalar", "tensor", "mean"])
@pytest.mark.parametrize("structure", ["full", "lowrank"])
def test_linear_regression_is_exact(outputs, size, prior, structure):
    data = Regression(outputs=outputs, size=size)
    problem = data.at_optimum(prior, beta=2.5, structure=structure)
    bound = problem.grouped_prior
    close(log_evidence(problem), data.log_marginal(bound.vector(), 2.5, bound.mean))


@pytest.mark.parametrize("outputs", [1, 3])
def test_kronecker_is_exact_for_one_gaussian_layer(outputs):
    data = Regression(outputs=outputs, bias=False)
    problem = data.at_optimum(Prior(0.7), beta=2.5, structure="kronecker")
    assert problem.curvature.kind == "kronecker"
    close(log_evidence(problem), data.log_marginal(problem.grouped_prior.vector(), 2.5))


def test_terms_add_up_and_the_weights_matter():
    problem = Regression(outputs=3).at_optimum(Prior(0.7), beta=2.5)
    terms = evidence_terms(problem)
    close(terms.fit - 0.5 * (terms.scatter + terms.complexity), log_evidence(problem))
    moved = replace(problem, mean=problem.mean * 1.1)
    assert log_evidence(moved) < log_evidence(problem) - 1e-3


def test_temperature_is_a_tempered_likelihood():
    # p(y|f)^(1/T) is a Gaussian of precision beta/T times a constant, so its integral is known.
    data, beta, temperature = Regression(outputs=3), 2.5, 4.0
    precision = torch.full((15,), 0.7, dtype=F64)
    data.place(data.optimum(precision, beta / temperature))
    problem = data.problem(Prior(0.7), beta, temperature=temperature)
    count = len(data.labels)
    constant = count / 2 * (math.log(beta / (2 * math.pi)) / temperature - math.log(beta / temperature / (2 * math.pi)))
    close(log_evidence(problem), data.log_marginal(precision, beta / temperature) + constant)


def test_gradient_is_half_gamma_minus_scatter():
    problem = Regression(outputs=3).problem(LAYERED, beta=2.5)  # at random weights: it need not be an optimum
    logs = problem.grouped_prior.precision.log().requires_grad_()
    log_beta = torch.tensor(math.log(2.5), dtype=F64, requires_grad=True)
    log_evidence(problem.with_hyper(logs.exp(), log_beta.exp())).backward()
    gamma = effective_parameters(problem)
    close(logs.grad, 0.5 * (gamma - problem.grouped_prior.precision * problem.grouped_prior.scatter(problem.mean)))
    seen = problem.statistics
    close(log_beta.grad, 0.5 * (seen.observed - gamma.sum() - 2.5 * seen.sse))


def test_diagonal_is_exact_for_orthogonal_features_and_not_otherwise():
    orthogonal = Regression(n=16, inputs=4, bias=False)
    x = 4 * torch.linalg.qr(orthogonal.x)[0]
    orthogonal.design, orthogonal.loader = x, batches(x, orthogonal.y)
    full = orthogonal.at_optimum(Prior(0.7), 2.5)
    close(log_evidence(orthogonal.problem(Prior(0.7), 2.5, "diagonal")), log_evidence(full))
    close(log_evidence(full), orthogonal.log_marginal(torch.full((4,), 0.7, dtype=F64), 2.5))

    correlated = Regression(n=16, inputs=3, seed=5)
    exact = log_evidence(correlated.at_optimum(Prior(0.7), 2.5))
    assert log_evidence(correlated.problem(Prior(0.7), 2.5, "diagonal")) < exact - 1e-3  # Hadamard's inequality


def test_low_rank_and_block_equal_full_on_a_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    loader = batches(randn(11, 2), torch.randint(3, (11,), generator=generator()))
    full = build(model, loader, Categorical(), Prior(groups="layer"))
    low = build(model, loader, Categorical(), Prior(groups="layer"), "lowrank")
    close(log_evidence(low), log_evidence(full))
    close(effective_parameters(low), effective_parameters(full))
    block = build(model, loader, Categorical(), Prior(groups="layer"), "block")
    dense, layer = full.curvature.to_dense(), torch.arange(full.layout.total) < 15
    dense = dense * (layer[:, None] == layer)
    close(log_evidence(block), log_evidence(replace(full, curvature=Full(full.layout, dense))))
    assert abs(log_evidence(block) - log_evidence(full)) > 1e-3


def test_invariance_to_a_linear_change_of_weights():
    problem = Regression(outputs=2).problem(Prior(0.7, mean=0.3), beta=2.5)
    change = randn(10, 10, seed=9) + 3 * torch.eye(10, dtype=F64)  # theta = R phi
    inverse = torch.linalg.inv(change)
    layout = problem.layout
    other = EvidenceProblem(
        Full(layout, change.T @ problem.curvature.to_dense() @ change),
        inverse @ problem.mean,
        StructuredPrior(layout, Full(layout, 0.7 * change.T @ change), inverse @ problem.prior.mean),
        problem.likelihood,
        problem.statistics,
    )
    close(log_evidence(other), log_evidence(problem))
    unchanged = replace(other, prior=problem.prior)
    assert abs(log_evidence(unchanged) - log_evidence(problem)) > 0.1


def test_an_earlier_posterior_as_prior_multiplies_evidences():
    # p(D1) p(D2 | D1) = p(D1, D2), exactly, at the optimum of all data for the second factor.
    data, beta = Regression(n=20, outputs=2), 2.5
    whole = data.at_optimum(Prior(0.7), beta)
    both, loader, design, labels = data.model, data.loader, data.design, data.labels
    halves = [slice(0, 8), slice(8, 20)]
    parts = [batches(data.x[s], data.y[s]) for s in halves]
    data.design, data.labels = design[:16], labels[:16]
    data.loader = parts[0]
    first = data.at_optimum(Prior(0.7), beta)
    posterior = first.prior.add_to(first.scaled_curvature())
    earlier = StructuredPrior(first.layout, posterior, first.mean)
    data.place(whole.mean)
    second = build(both, parts[1], Gaussian(beta), Prior(0.7))
    second = replace(second, prior=earlier)
    close(log_evidence(first) + log_evidence(second), log_evidence(whole))
    assert loader and abs(log_evidence(second) - log_evidence(replace(second, prior=whole.prior))) > 0.1


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_missing_labels_count_as_never_measured(structure):
    data = Regression(outputs=3)
    mask = torch.rand(23, 3, generator=generator(3)) < 0.7
    y = data.y.masked_fill(~mask, float("nan"))
    loader = [(x, t, m) for x, t, m in zip(data.x.split(7), y.split(7), mask.split(7), strict=True)]
    seen = mask.reshape(-1)
    data.design, data.labels = data.design[seen], data.labels[seen]
    precision = torch.full((15,), 0.7, dtype=F64)
    data.place(data.optimum(precision, 2.5))
    problem = build(data.model, loader, Gaussian(2.5), Prior(0.7), structure, mask_of=lambda batch: batch[2])
    assert problem.statistics.observed == int(seen.sum())
    if structure == "full":
        close(log_evidence(problem), data.log_marginal(precision, 2.5))
    else:
        close(problem.curvature.diagonal(), data.design.square().sum(0))


def logistic_error(n: int, seed: int) -> float:
    """|Laplace - grid| of the log evidence of logistic regression with two weights."""
    x = randn(n, 2, seed=seed)
    truth = randn(2, seed=seed + 100)
    y = torch.bernoulli(torch.sigmoid(x @ truth), generator=generator(seed + 200)).unsqueeze(1)
    model = nn.Linear(2, 1, bias=False).double()
    theta = torch.zeros(2, dtype=F64)
    for _ in range(30):  # Newton's method on the log joint
        p = torch.sigmoid(x @ theta)
        gradient = x.T @ (p - y[:, 0]) + theta
        theta = theta - torch.linalg.solve((x.T * (p * (1 - p))) @ x + torch.eye(2, dtype=F64), gradient)
    with torch.no_grad():
        model.weight.copy_(theta)
    problem = build(model, batches(x, y, 100), Bernoulli(), Prior(1.0))
    # A grid in the posterior's own coordinates: wide enough and fine enough for the trapezoid rule to be exact.
    root = torch.linalg.cholesky(torch.linalg.inv(problem.curvature.to_dense() + torch.eye(2, dtype=F64)))
    line = torch.linspace(-9, 9, 73, dtype=F64)
    grid = torch.cartesian_prod(line, line) @ root.T + theta
    logits = x @ grid.T
    log_joint = (y * logits - torch.nn.functional.softplus(logits)).sum(0) - 0.5 * grid.square().sum(1)
    cell = torch.log((line[1] - line[0]) ** 2 * root.diagonal().prod())
    exact = torch.logsumexp(log_joint, 0) + cell - math.log(2 * math.pi)
    return abs(float(log_evidence(problem) - exact))


def test_logistic_regression_is_right_up_to_one_over_n():
    worst = {n: max(logistic_error(n, seed) for seed in range(5)) for n in (10, 50, 200, 800)}
    assert worst[10] < 0.1
    assert worst[50] < 0.05
    assert worst[800] < 0.005
    assert worst[200] < 0.5 * worst[50] and worst[800] < 0.5 * worst[200]


@pytest.mark.parametrize("likelihood", [Gaussian(torch.tensor([1.0, 2.0], dtype=F64)), Bernoulli()])
def test_likelihoods_without_one_noise_precision_keep_their_own(likelihood):
    data = Regression(outputs=2)
    labels = data.y if isinstance(likelihood, Gaussian) else (data.y > 0).double()
    problem = build(data.model, batches(data.x, labels), likelihood)
    assert problem.noise is None and problem.statistics.sse is None
    expected = likelihood.log_prob(data.model(data.x), labels).sum()
    close(evidence_terms(problem).fit, expected.detach())


def test_float32_problem_gives_float64_value():
    data = Regression()
    exact = log_evidence(data.at_optimum(Prior(0.7), 2.5))
    single = build(data.model.float(), [(x.float(), y.float()) for x, y in data.loader], Gaussian(2.5), Prior(0.7))
    assert log_evidence(single).dtype == F64
    close(log_evidence(single), exact, rtol=1e-5)


def test_what_does_not_belong_together_is_refused():
    problem = Regression().problem()
    with pytest.raises(MarquisError, match="temperature"):
        replace(problem, temperature=0.0)
    with pytest.raises(DataError, match="sse"):
        replace(problem, statistics=Statistics(23, 23, log_likelihood=torch.tensor(0.0)))
    with pytest.raises(DataError, match="either"):
        Statistics(3, 3)
    with pytest.raises(DataError, match="NaN"):
        Statistics(3, 3, sse=torch.tensor(math.nan))
    with pytest.raises(UnsupportedOperationError, match="sampled"):
        log_evidence(replace(problem, curvature=None))
    with pytest.raises(MarquisError):
        layout = Layout({"other": (5,)})
        replace(problem, curvature=Diagonal(layout, torch.ones(5, dtype=F64)))
    with pytest.raises(DataError, match="labels"):
        Statistics.gather(Regression().model, [torch.zeros(3, 4, dtype=F64)], Gaussian())
    with pytest.raises(DataError, match="no batches"):
        Statistics.gather(Regression().model, [], Gaussian())


def test_nothing_is_changed():
    data = Regression()
    before = [p.clone() for p in data.model.parameters()]
    state = torch.random.get_rng_state()
    problem = data.problem()
    log_evidence(problem)
    assert all(torch.equal(a, b) for a, b in zip(before, data.model.parameters(), strict=True))
    assert torch.equal(state, torch.random.get_rng_state()) and data.model.training
    assert isinstance(problem.prior, BoundPrior)

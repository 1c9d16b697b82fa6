"""The adapted evidence: theta-star, the affine and the simplified model, scale invariance (docs/method/evidence.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from evidence_oracle import F64, Regression, batches, build, generator, randn
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call, jacrev

from marquis.errors import UnsupportedOperationError
from marquis.evidence import log_evidence, tune
from marquis.evidence.adapted import adapted, curvature_at, shifted_network
from marquis.evidence.linear_model import LinearModel
from marquis.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from marquis.priors import Prior

EXACT: dict[str, Any] = {"tolerance": 1e-10, "theta_tolerance": 1e-16, "max_iterations": 200}


def mlp(outputs: int = 2, seed: int = 1, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(2, 4), *([nn.LayerNorm(4, eps=0.0)] if norm else []), nn.Tanh(), nn.Linear(4, outputs)]
    return nn.Sequential(*layers).double()


def train(model: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood, steps: int = 10) -> nn.Module:
    """Some steps, far from a mode: enough for the features to carry signal."""
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        adam.zero_grad()
        (-likelihood.log_prob(model(x), y).mean()).backward()
        adam.step()
    return model


def regression_data(outputs: int = 2, n: int = 60) -> tuple[Tensor, Tensor]:
    x = randn(n, 2, seed=4)
    return x, 2 * torch.sin(1.5 * x) @ randn(2, outputs, seed=5) + 0.1 * randn(n, outputs, seed=6)


def regressor(outputs: int = 2, norm: bool = False) -> nn.Sequential:
    model = mlp(outputs, seed=3 if norm else 1, norm=norm)
    train(model, *regression_data(outputs), Gaussian(5.0))
    return model


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """`[N O, P]`."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    blocks = jacrev(lambda p: functional_call(model, p, (x,)))(params)
    return torch.cat([b.flatten(2).reshape(-1, params[n].numel()) for n, b in blocks.items()], dim=1)


def exact_evidence(model: nn.Module, x: Tensor, y: Tensor, simplified: bool):
    """The log marginal likelihood of the tangent linear model as a function of precisions [P] and noise."""
    j = jacobian(model, x)
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    offset = 0.0 if simplified else model(x).detach().reshape(-1) - j @ theta
    labels = y.reshape(-1) - offset

    def value(precision: Tensor, beta: Tensor) -> Tensor:
        covariance = (j / precision) @ j.T + torch.eye(len(labels), dtype=F64) / beta
        return MultivariateNormal(torch.zeros_like(labels), covariance).log_prob(labels)

    return value, j, labels


def slopes(evidence, tuned) -> Tensor:
    logs = tuned.prior.precision.log().requires_grad_()
    beta = tuned.likelihood.noise_precision.log().requires_grad_()
    evidence(logs.exp()[tuned.prior.index], beta.exp()).backward()
    return torch.cat([logs.grad, beta.grad[None]]).abs().max()


@pytest.mark.parametrize("groups", ["scalar", "tensor"])
def test_linear_model_from_a_wrong_point_finds_the_exact_maximum(groups):
    data = Regression(outputs=2, size=15)
    data.place(3 * randn(10, seed=8))
    problem = data.problem(Prior(groups=groups))
    tuned = adapted(problem, **EXACT)
    assert tuned.converged
    evidence = data.log_marginal
    assert slopes(evidence, tuned) < 1e-8
    vector, beta = tuned.prior.vector(), tuned.likelihood.noise_precision
    assert tuned.log_evidence == pytest.approx(float(evidence(vector, beta)), rel=1e-8)
    torch.testing.assert_close(tuned.theta_star, data.optimum(vector, beta), rtol=1e-7, atol=1e-9)
    for factor in (0.5, 2.0):  # a maximum, not only stationary
        assert evidence(vector * factor, beta) < evidence(vector, beta) > evidence(vector, beta * factor)
    # The naive evidence, at the wrong weights, ends elsewhere.
    naive = tune(problem, tolerance=1e-10)
    assert slopes(evidence, naive) > 0.5
    assert evidence(naive.prior.vector(), naive.likelihood.noise_precision) < tuned.log_evidence - 1


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("structure", ["full", "lowrank"])
def test_network_is_stationary_for_the_evidence_of_its_tangent_model(simplified, structure):
    model, (x, y) = regressor(), regression_data()
    problem = build(model, batches(x, y, 40), Gaussian(1.0), Prior(groups="layer"), structure)
    tuned = adapted(problem, simplified=simplified, **EXACT)
    evidence, j, labels = exact_evidence(model, x, y, simplified)
    assert tuned.converged and slopes(evidence, tuned) < 1e-8
    vector, beta = tuned.prior.vector(), tuned.likelihood.noise_precision
    assert tuned.log_evidence == pytest.approx(float(evidence(vector, beta)), rel=1e-8)
    expected = torch.linalg.solve(beta * j.T @ j + torch.diag(vector), beta * j.T @ labels)
    torch.testing.assert_close(tuned.theta_star, expected, rtol=1e-6, atol=1e-8)
    other, _, _ = exact_evidence(model, x, y, not simplified)
    assert slopes(other, tuned) > 1e-2  # the two models differ on this network


def test_simplified_is_the_affine_model_where_f_is_j_theta():
    # A dense output layer without bias after a normalised layer without affine part: f = J theta (Euler).
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(2, 5), nn.LayerNorm(5, eps=0.0, elementwise_affine=False), nn.Tanh(), nn.Linear(5, 2, bias=False)
    ).double()
    x, y = regression_data()
    train(model, x, y, Gaussian(5.0))
    j = jacobian(model, x)
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(j @ theta, model(x).detach().reshape(-1))
    problem = build(model, batches(x, y, 40), Gaussian(1.0), Prior(groups="normalised"))
    affine, simple = (adapted(problem, simplified=s, **EXACT) for s in (False, True))
    torch.testing.assert_close(affine.prior.precision, simple.prior.precision, rtol=1e-7, atol=0)
    assert affine.log_evidence == pytest.approx(simple.log_evidence, rel=1e-9)


def normalised_network(k: float) -> nn.Sequential:
    model = regressor(outputs=1, norm=True)
    with torch.no_grad():
        model[0].weight.mul_(k)
        model[0].bias.mul_(k)
    return model


def predictive_variance(k: float, groups: str) -> tuple[Tensor, Tensor]:
    model, (x, y) = normalised_network(k), regression_data(outputs=1)
    problem = build(model, batches(x, y, 40), Gaussian(1.0), Prior(groups=groups))
    tuned = adapted(problem, **EXACT)
    assert tuned.converged
    posterior = tuned.prior.add_to(problem.curvature * tuned.likelihood.noise_precision)
    test = jacobian(model, randn(9, 2, seed=20))
    return posterior.quadratic(test, diagonal_only=True), tuned.prior.precision


def test_proposition_3_scale_of_normalised_weights_does_not_matter():
    reference, precision = predictive_variance(1.0, "normalised")
    single, _ = predictive_variance(1.0, "scalar")
    for k in (0.1, 10.0):
        variance, scaled = predictive_variance(k, "normalised")
        torch.testing.assert_close(variance, reference, rtol=1e-8, atol=0)
        torch.testing.assert_close(scaled, precision / torch.tensor([1.0, k**2], dtype=F64), rtol=1e-7, atol=0)
        changed, _ = predictive_variance(k, "scalar")
        assert float((changed / single - 1).abs().max()) > 0.01  # one lambda for all: it does matter


@pytest.mark.parametrize("k", [0.1, 10.0])
def test_naive_evidence_of_a_normalised_network_depends_on_its_scale(k):
    x, y = regression_data(outputs=1)
    test = randn(9, 2, seed=20)
    variances = []
    for scale in (1.0, k):
        model = normalised_network(scale)
        problem = build(model, batches(x, y, 40), Gaussian(1.0), Prior())
        tuned = tune(problem, tolerance=1e-10)
        posterior = tuned.prior.add_to(problem.curvature * tuned.likelihood.noise_precision)
        variances.append(posterior.quadratic(jacobian(model, test), diagonal_only=True))
    assert float((variances[1] / variances[0] - 1).abs().max()) > 0.01


def class_problem(structure: str = "full", likelihood=None, batch: int = 40):
    model = mlp(outputs=3 if likelihood is None else 1)
    x = randn(60, 2, seed=4)
    y = (torch.sin(1.5 * x) @ randn(2, 3, seed=5) + 0.5 * randn(60, 3, seed=6)).argmax(1)
    if likelihood is not None:
        y = (y == 1).double().unsqueeze(1)
    groups = "layer" if likelihood is None else "scalar"
    train(model, x, y, likelihood or Categorical())
    loader = batches(x, y, batch)
    return model, x, y, build(model, loader, likelihood or Categorical(), Prior(groups=groups), structure)


@pytest.mark.parametrize(
    ("likelihood", "simplified", "hessian_at"),
    [
        (None, False, "linearisation"),
        (None, True, "linearisation"),
        (None, False, "theta_star"),
        (None, True, "theta_star"),
        (Bernoulli(), False, "linearisation"),
        (Bernoulli(), True, "theta_star"),
    ],
)
def test_classes_are_at_a_joint_fixed_point(likelihood, simplified, hessian_at):
    model, x, y, problem = class_problem(likelihood=likelihood)
    accuracy = 1e-8 if hessian_at == "linearisation" else 1e-6  # a curvature pass per alternation: fewer of them
    options = {**EXACT, "tolerance": accuracy, "theta_tolerance": 1e-14}
    tuned = adapted(problem, simplified=simplified, hessian_at=hessian_at, **options)
    assert tuned.converged
    j = jacobian(model, x)
    f, theta = model(x).detach(), problem.mean
    star = tuned.theta_star

    def h(weights: Tensor) -> Tensor:
        return (j @ weights).reshape(f.shape) + (0.0 if simplified else f - (j @ theta).reshape(f.shape))

    known = problem.likelihood
    leaf = star.clone().requires_grad_()
    loss = -known.log_prob(h(leaf), y).sum() + 0.5 * (tuned.prior.vector() * leaf.square()).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert float(gradient.abs().max()) < 1e-6
    at = f if hessian_at == "linearisation" else h(star)
    blocks = known.hessian(at)
    jn = j.reshape(len(x), -1, j.shape[1])
    matrix = torch.einsum("noi,nop,npj->ij", jn, blocks, jn)
    inverse = torch.linalg.inv(matrix + torch.diag(tuned.prior.vector()))
    gamma = 1 - tuned.prior.vector() * inverse.diagonal()
    sums = torch.zeros_like(tuned.prior.precision).index_add(0, tuned.prior.index, gamma)
    torch.testing.assert_close(tuned.effective_parameters, sums, rtol=1e-8, atol=0)
    torch.testing.assert_close(tuned.prior.precision, sums / tuned.prior.scatter(star), rtol=5 * accuracy, atol=0)
    naive = tune(problem, tolerance=1e-10)
    assert float((naive.prior.precision / tuned.prior.precision - 1).abs().max()) > 0.05


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker", "block", "lowrank"])
def test_curvature_at_theta_star(structure):
    model, x, _, problem = class_problem(structure)
    star = problem.mean + 0.5 * randn(problem.layout.total, seed=30)
    tangent = LinearModel(problem, "adapted")
    moved = curvature_at(tangent, problem, star, shifted_network(model))
    assert moved.kind == structure and moved.layout == problem.layout
    assert not torch.allclose(moved.diagonal(), problem.curvature.diagonal())
    back = curvature_at(tangent, problem, problem.mean, shifted_network(model))
    torch.testing.assert_close(back.to_dense(), problem.curvature.to_dense())
    if structure in ("full", "lowrank"):
        j = jacobian(model, x)
        h = model(x).detach() + (j @ (star - problem.mean)).reshape(-1, 3)
        jn = j.reshape(len(x), 3, -1)
        expected = torch.einsum("noi,nop,npj->ij", jn, Categorical().hessian(h), jn)
        torch.testing.assert_close(moved.to_dense(), expected)
    assert [type(m) for m in model] == [nn.Linear, nn.Tanh, nn.Linear] and type(model) is nn.Sequential


def test_approximate_structures_precondition_and_tune():
    _, _, _, full = class_problem("full")
    exact = adapted(full)
    for structure in ("diagonal", "kronecker"):
        problem = replace(full, curvature=class_problem(structure)[3].curvature)
        tuned = adapted(problem, tolerance=1e-2, theta_tolerance=1e-9)
        assert tuned.converged
        # theta-star is the linear model's own, whatever the structure: it solves the same convex problem.
        star = LinearModel(full, "adapted").optimum(
            tuned.prior.vector(), tuned.prior.mean, 1.0, full.mean, tolerance=1e-14
        )
        torch.testing.assert_close(star.theta, tuned.theta_star, rtol=1e-4, atol=1e-5)
        assert float((tuned.prior.precision / exact.prior.precision - 1).abs().max()) > 0.01


def test_dictionary_inputs_functions_and_masks():
    model, (x, y) = regressor(), regression_data()
    mask = torch.rand(60, 2, generator=generator(1)) < 0.8
    labels = y.masked_fill(~mask, float("nan"))

    def function(params: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
        return functional_call(model, params, (inputs["features"],))

    params = {name: p.detach() for name, p in model.named_parameters()}
    loader = [
        {"features": a, "y": b, "seen": m} for a, b, m in zip(x.split(7), labels.split(7), mask.split(7), strict=True)
    ]

    class Plain(list):
        def __getitem__(self, index):
            return ({"features": x[:7]},)  # what `build` traces with

    problem = build(
        function,
        Plain(loader),
        Gaussian(1.0),
        Prior(groups="layer"),
        params=params,
        mask_of=lambda batch: batch["seen"],
    )
    tuned = adapted(problem, **EXACT)
    j = jacobian(model, x)[mask.reshape(-1)]
    theta = problem.mean
    target = (y.reshape(-1) - model(x).detach().reshape(-1))[mask.reshape(-1)] + j @ theta
    beta, vector = tuned.likelihood.noise_precision, tuned.prior.vector()
    expected = torch.linalg.solve(beta * j.T @ j + torch.diag(vector), beta * j.T @ target)
    torch.testing.assert_close(tuned.theta_star, expected, rtol=1e-6, atol=1e-8)


def test_temperature_and_prior_mean():
    model, (x, y) = regressor(), regression_data()
    problem = build(model, batches(x, y, 40), Gaussian(2.0), Prior(1.5, mean=0.2), temperature=3.0)
    tuned = adapted(problem, noise=False, **EXACT)
    _, j, labels = exact_evidence(model, x, y, simplified=False)
    scale, vector = 2.0 / 3.0, tuned.prior.vector()
    matrix = scale * j.T @ j + torch.diag(vector)
    expected = torch.linalg.solve(matrix, scale * j.T @ labels + vector * 0.2)
    torch.testing.assert_close(tuned.theta_star, expected, rtol=1e-6, atol=1e-8)
    assert float(tuned.likelihood.noise_precision) == 2.0


def test_linearisation_point_is_the_mean_even_if_the_network_trained_on():
    model, (x, y) = regressor(), regression_data()
    problem = build(model, batches(x, y, 40), Gaussian(1.0))
    before = adapted(problem)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    after = adapted(problem)
    assert torch.equal(before.theta_star, after.theta_star)


def test_report_and_refusals():
    _, _, _, problem = class_problem()
    tuned = tune(problem, "adapted")
    text = str(tuned)
    assert "adapted evidence (affine model, Hessian at linearisation)" in text and "theta-star" in text
    assert tuned.log_evidence == tuned.history[-1].log_evidence
    values = [step.log_evidence for step in tuned.history]
    assert all(b >= a - 1e-6 for a, b in pairwise(values))  # both half-steps climb one function
    assert float(log_evidence(problem)) != tuned.log_evidence
    with pytest.raises(UnsupportedOperationError, match="'linearisation', 'theta_star'"):
        adapted(problem, hessian_at="somewhere")
    with pytest.raises(UnsupportedOperationError, match="no curvature"):
        adapted(replace(problem, curvature=None))

"""Baselines of `uci`: gradients and curvature against autograd, Hamiltonian Monte Carlo against known posteriors."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev

from marquis_experiments.linearised_laplace.hamiltonian import chain, split_r_hat
from marquis_experiments.linearised_laplace.uci import OneHiddenLayer
from marquis_experiments.linearised_laplace.uci_baselines import (
    Problem,
    Weights,
    compared_values,
    dropout,
    mean_field,
    mixture,
    outputs,
    precisions_of,
    weights_of,
)


def problem() -> tuple[Problem, Weights, OneHiddenLayer]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(40, 1, dtype=torch.float64, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = OneHiddenLayer(3, 4).double()
    names = [name for name, _ in network.named_parameters()]
    precisions = {name: 0.5 + number for number, name in enumerate(names)}
    return Problem(x, y, precisions_of(precisions, 3), 2.5), weights_of(network), network


def test_function_gradient_and_curvature_are_those_of_the_network():
    of, weights, network = problem()
    torch.testing.assert_close(outputs(weights, of.x), network(of.x))
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    decay = torch.stack([(of.precision[name] * weight.square()).sum() for name, weight in leaves.items()]).sum()
    expected = -0.5 * of.noise * (of.y - outputs(leaves, of.x)).square().sum() - 0.5 * decay
    value, gradient = of.log_density(weights)
    torch.testing.assert_close(value, expected.detach())
    for name, slope in zip(leaves, torch.autograd.grad(expected, list(leaves.values())), strict=True):
        torch.testing.assert_close(gradient[name], slope, rtol=1e-9, atol=1e-10)
    # The network's own prior, by its own names, is the one that the tensors got.
    named = dict(network.named_parameters())
    by_name = sum((0.5 + n) * float(weight.detach().square().sum()) for n, weight in enumerate(named.values()))
    torch.testing.assert_close(float(decay.detach()), by_name)
    jacobians = jacrev(lambda one: outputs(one, of.x)[:, 0])(weights)
    jacobian = torch.cat([jacobians[name].flatten(1) for name in weights], 1)
    prior = of.flat({name: of.precision[name].expand_as(weight) for name, weight in weights.items()})
    torch.testing.assert_close(of.curvature(weights), of.noise * jacobian.T @ jacobian + prior.diag())


def test_hamiltonian_samples_have_the_moments_of_a_gaussian():
    root = torch.tensor([[1.0, 0.0], [1.5, 0.5]], dtype=torch.float64)
    covariance, mean = root @ root.T, torch.tensor([2.0, -1.0], dtype=torch.float64)
    precision = covariance.inverse()

    def density(position: Tensor) -> tuple[Tensor, Tensor]:
        slope = -precision @ (position - mean)
        return 0.5 * slope @ (position - mean), slope

    # A mass matrix that is not the precision, so that acceptance and adaptation matter.
    generator = torch.Generator().manual_seed(0)
    options = {"warm_up": 200, "kept": 4000, "steps": (4, 12)}
    one = chain(density, torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64), generator, **options)
    assert 0.6 < one.acceptance < 0.97
    torch.testing.assert_close(one.positions.mean(0), mean, atol=0.1, rtol=0)
    torch.testing.assert_close(one.positions.T.cov(), covariance, atol=0.25, rtol=0)
    assert float(split_r_hat(one.positions[None]).max()) < 1.02


def test_hamiltonian_rejects_what_it_should():
    # The target is flat on [0, 1] and impossible elsewhere: without rejection the chain would leave.
    def density(position: Tensor) -> tuple[Tensor, Tensor]:
        inside = bool((position > 0).all() & (position < 1).all())
        return torch.tensor(0.0 if inside else -math.inf, dtype=torch.float64), torch.zeros_like(position)

    start, mass = torch.full((1,), 0.5, dtype=torch.float64), torch.eye(1, dtype=torch.float64)
    one = chain(density, start, mass, torch.Generator().manual_seed(1), warm_up=50, kept=2000, steps=(1, 3))
    assert bool((one.positions > 0).all() & (one.positions < 1).all())
    assert abs(float(one.positions.mean()) - 0.5) < 0.1 and one.acceptance < 1


def test_r_hat_sees_chains_that_disagree():
    generator = torch.Generator().manual_seed(0)
    chains = torch.randn(2, 400, 1, dtype=torch.float64, generator=generator)
    assert float(split_r_hat(chains)) < 1.02
    assert float(split_r_hat(chains + torch.tensor([0.0, 2.0], dtype=torch.float64)[:, None, None])) > 1.3


def test_mixture_of_one_network_is_its_gaussian_and_samples_differ():
    of, weights, _ = problem()
    single = torch.distributions.Normal(outputs(weights, of.x), of.noise**-0.5).log_prob(of.y).mean()
    assert abs(mixture([weights], of.x, of.y, of.noise) - float(single)) < 1e-12
    for method in (mean_field, dropout):
        networks = method(of, weights, 0, 20, 30)  # dropout keeps all four units in most of them
        assert list(networks[0]) == ["w", "b", "v", "c"] and networks[0]["w"].shape == weights["w"].shape
        assert any(not torch.equal(networks[0]["v"], one["v"]) for one in networks)


def test_a_chain_that_did_not_converge_takes_no_part():
    row = {"linearised": -1.0, "mean_field": -2.0, "dropout": -0.5, "ensemble": -1.5, "hmc": -1.05, "cpu_seconds": 60.0}
    rows = [
        {**row, "name": "boston", "kind": kind, "fold": 0, "hmc_not_converged": 0.0 if kind == "gap" else 0.5}
        for kind in ("standard", "gap")
    ]
    settings = {"standard": {"boston": 8}, "gap": {"boston": 8}, "baseline_folds": 2}
    found = compared_values(rows, settings)
    assert found["holds"] == {"mean_field": "yes", "dropout": "no", "ensemble": "yes", "hmc": "no"}
    assert found["table"]["boston, standard"]["to_hmc"] == "–"
    assert found["table"]["boston, gap"]["to_hmc"] == "0.05" and found["converged"] == 1
    assert found["decided"] and not compared_values(rows[:1], settings)["decided"]
    assert found["missing"] == "boston gap 1, boston standard 1"
    rows[0]["hmc_not_converged"] = 0.0
    assert compared_values(rows, settings)["holds"]["hmc"] == "yes"

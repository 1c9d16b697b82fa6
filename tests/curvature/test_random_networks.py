"""Random networks x structures x likelihoods x chunkings against the dense oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import assert_matches, assert_structure, built, dense_ggn, double, greedy_bottlenecks, rows
from random_networks import Tied, Twice, networks
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from marquis.curvature.backward import walk
from networks import Net

LIKELIHOODS: list[Any] = ["gaussian", "bernoulli", "categorical", mq.Gaussian(2.0)]


def assert_same_or_zero(ours: Tensor, expected: Tensor) -> None:
    if float(expected.abs().max()) < 1e-14:  # a dead network
        assert float(ours.abs().max()) < 1e-12
    else:
        assert_matches(ours, expected)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from(LIKELIHOODS), st.integers(1, 3), st.integers(0, 3), st.integers(0, 10**6))
def test_every_structure_and_estimator(
    network: tuple[nn.Sequential, tuple[int, ...]], likelihood: Any, batch: int, mode: int, seed: int
) -> None:
    made, shape = network
    model = built(made, seed)
    x = double(batch, *shape, seed=seed + 1)
    oracle = dense_ggn(model, x, likelihood)
    named = dict(model.named_parameters())
    with pytest.MonkeyPatch.context() as patch:
        if mode % 2:
            patch.setattr(walk.BackwardWalk, "_columns_per_chunk", lambda self, root, steps: 1 + seed % 3)
        if mode // 2:
            patch.setattr(walk, "choose_bottlenecks", greedy_bottlenecks)
        for structure in ("diagonal", "block", "full", "lowrank"):
            ours = ggn(model, x, likelihood, structure)
            if float(oracle.abs().max()) < 1e-14:
                assert float(ours.to_dense().abs().max()) < 1e-12
            else:
                assert_structure(ours, structure, oracle, named)
        check_sketched(model, x, likelihood, seed)
        check_kronecker(model, x, likelihood, oracle)
        check_mixed(model, x, likelihood, oracle)


def check_sketched(model: nn.Module, x: Tensor, likelihood: Any, seed: int) -> None:
    """The same signs, through a dense Jacobian."""
    f, jacobian = rows(model, x)
    resolved = mq.likelihoods.as_likelihood(likelihood).resolve(f)
    shape = (2, f.shape[0], *resolved.root_shape(f))
    draws = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    columns = resolved.apply_sqrt(f, draws.double() * 2 - 1) / 2**0.5
    gradients = torch.einsum("kno,nop->knp", columns.flatten(2), jacobian)
    expected = torch.einsum("knp,knq->pq", gradients, gradients)
    for structure in ("diagonal", "full"):
        generator = torch.Generator().manual_seed(seed)
        ours = ggn(model, x, likelihood, structure, "sketched", probes=2, generator=generator).to_dense()
        assert_same_or_zero(ours, expected if structure == "full" else expected.diagonal().diag())


def check_kronecker(model: nn.Module, x: Tensor, likelihood: Any, oracle: Tensor) -> None:
    """Refused for tied weights; otherwise exact where it must be: biases, norms, and dense layers of one datum."""
    if any(isinstance(module, (Twice, Tied)) for module in model.modules()):
        with pytest.raises(mq.UnsupportedOperationError, match="used 2 times"):
            ggn(model, x, likelihood, "kronecker")
        return
    dense = ggn(model, x, likelihood, "kronecker").to_dense()
    scale = float(oracle.abs().max()) or 1.0
    start = 0
    for name, p in model.named_parameters():
        span = slice(start, start + p.numel())
        start += p.numel()
        owner = model.get_submodule(name.rpartition(".")[0])
        mine, exact = dense[span, span], oracle[span, span]
        if not isinstance(owner, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            mine, exact = mine.diagonal(), exact.diagonal()
        elif not name.endswith("bias") and not (isinstance(owner, nn.Linear) and len(x) == 1):
            mine = exact  # a weight whose Kronecker block is an approximation
        assert float((mine - exact).abs().max()) < 1e-8 * scale
        outside = dense[span].clone()
        outside[:, span] = 0
        assert float(outside.abs().max()) == 0


def check_mixed(model: nn.Module, x: Tensor, likelihood: Any, oracle: Tensor) -> None:
    ours = ggn(model, x, likelihood, "diagonal", "mixed", width_limit=10**9).diagonal()
    assert_same_or_zero(ours, oracle.diagonal())


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(0, 10**6))
def test_random_subsets(network: tuple[nn.Sequential, tuple[int, ...]], seed: int) -> None:
    """Any choice of parameters gives the sub-block, whatever else is left out."""
    made, shape = network
    model = built(Net(lambda m, x: m.body(x), body=made), seed)
    x = double(2, *shape, seed=seed + 1)
    oracle = dense_ggn(model, x)
    generator = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters())
    chosen = [name for name in named if torch.rand((), generator=generator) < 0.4] or [next(iter(named))]
    mask = torch.cat([torch.full((p.numel(),), name in chosen) for name, p in named.items()])
    expected = oracle[mask][:, mask]
    assert_same_or_zero(ggn(model, x, "gaussian", "full", parameters=chosen).to_dense(), expected)
    assert_same_or_zero(ggn(model, x, "gaussian", parameters=chosen).diagonal(), expected.diagonal())

"""Every rule of the squared pass against the dense squared Jacobian of its operation.

The operation acts on x + p with a bare parameter p of one sample's shape, and nothing follows it, so the curvature at
its output is diagonal and the rule must give sum_n (J_n²)ᵀ m_n exactly, for p (the input rule) and for the
operation's own parameters.
"""

from __future__ import annotations

import functools

import pytest
import torch
from squared_cases import CASES, IMAGE, Probe, randomised
from squared_oracle import approximate, approximate_with_kept_values, assert_same, exact, network_of
from torch import Tensor, nn

from marquis.curvature.graph.network import Network
from marquis.curvature.ops.registry import OPERATIONS, register


@functools.cache
def probe(case: str) -> tuple[Probe, Tensor, Network]:
    torch.manual_seed(0)
    make, shape = CASES[case]
    op = make()
    model = Probe(randomised(op) if isinstance(op, nn.Module) else op, shape).double().eval()
    x = torch.randn(3, *shape, dtype=torch.float64)
    return model, x, network_of(model, x)


@pytest.mark.parametrize("case", CASES)
def test_rule_is_the_squared_jacobian(case: str) -> None:
    model, x, network = probe(case)
    for batch in (x, x[:1]) if network.fixed_batch is None else (x,):
        oracle = exact(model, batch)
        assert_same(approximate(network, model, batch), oracle)
        assert_same(approximate_with_kept_values(network, model, batch), oracle)


def test_a_reflecting_convolution_keeps_its_own_rule() -> None:
    """Its padding repeats entries within one window, so only the input rule becomes approximate."""
    torch.manual_seed(0)
    model = Probe(nn.Conv2d(4, 2, 3, padding=2, padding_mode="reflect"), IMAGE).double()
    x = torch.randn(3, *IMAGE, dtype=torch.float64)
    ours, oracle = approximate(network_of(model, x), model, x), exact(model, x)
    assert float(((ours.pop("p") - oracle["p"]) / oracle.pop("p")).abs().max()) > 1e-3
    assert_same(ours, oracle)


def test_embedding_adds_up_per_row_and_treats_the_padding_row_as_constant() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=2), nn.Flatten(), nn.Linear(12, 2)).double()
    tokens = torch.tensor([[0, 1, 1, 5], [2, 3, 0, 4], [4, 4, 4, 2]])
    ours = approximate(network_of(model, tokens), model, tokens)
    m = 0.1 + torch.rand(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    at_tokens = (m @ model[2].weight.detach() ** 2).reshape(3, 4, 3)
    expected = torch.zeros(6, 3, dtype=torch.float64)
    for n in range(3):
        for position in range(4):
            if tokens[n, position] != 2:
                expected[tokens[n, position]] += at_tokens[n, position]
    torch.testing.assert_close(ours["0.weight"], expected, rtol=1e-12, atol=0)


def test_decomposed_batch_norm() -> None:
    """An in-place operation on a view makes capture decompose the graph, which renames batch norm."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.randn(4, 5))
            self.norm = randomised(nn.BatchNorm1d(4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x + self.p)
            y[:, :2].mul_(3.0)
            return y

    model, x = Net().double().eval(), torch.randn(3, 4, 5, dtype=torch.float64)
    network = network_of(model, x)
    assert "_native_batch_norm_legit_no_training" in {step.name for step in network.steps}
    assert_same(approximate(network, model, x), exact(model, x))


SQUARED = {name: entry.squared for name, entry in OPERATIONS.items() if entry.squared is not None}


def test_no_rule_goes_untested() -> None:
    tested = {step.name for case in CASES for step in probe(case)[2].steps}
    elsewhere = {"embedding", "_native_batch_norm_legit_no_training"}
    assert set(SQUARED) - tested - elsewhere == set()


def test_every_rule_has_a_note_for_the_support_table() -> None:
    assert all(rule.note for rule in SQUARED.values())
    assert SQUARED["linear"].parameters and not SQUARED["tanh"].parameters
    assert all(entry.gradient for entry in OPERATIONS.values() if entry.layer)


def test_an_operation_is_registered_once() -> None:
    with pytest.raises(ValueError, match="`linear` is registered twice"):
        register("linear")

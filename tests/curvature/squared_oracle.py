"""Dense oracles for the squared pass: jacobians by autograd, without any rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from marquis.curvature.graph.capture import capture
from marquis.curvature.graph.network import Network
from marquis.curvature.squared.schedule import schedule_of
from marquis.curvature.squared.squared import squared_forward, squared_pass

RTOL = 1e-8


def network_of(model: nn.Module, x: Any) -> Network:
    return capture(model, dict(model.named_parameters()), x)


def random_start(output: Tensor, seed: int = 1) -> Tensor:
    """A positive m at the output, different in every entry."""
    generator = torch.Generator().manual_seed(seed)
    return 0.1 + torch.rand(output.shape, dtype=output.dtype, generator=generator)


def approximate(
    network: Network, model: nn.Module, x: Any, selected: Any = None, start: Any = None
) -> dict[str, Tensor]:
    """The squared pass after its own lean forward, whose stand-ins are NaN wherever a rule may not look."""
    params = dict(model.named_parameters())
    names = list(params) if selected is None else selected
    values = network.bind(params, x)
    output = squared_forward(network, values, names)
    m = random_start(output) if start is None else start(output)
    return squared_pass(network, values, m, names)


def needed_values(network: Network, selected: Iterable[str]) -> frozenset[int]:
    """The step results that `squared_pass` needs, for `network.forward(values, keep=...)`."""
    schedule = schedule_of(network, selected)
    return schedule.read | schedule.shaped


def approximate_with_kept_values(network: Network, model: nn.Module, x: Any) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    values = network.bind(params, x)
    with torch.no_grad():
        extra = schedule_of(network, params).with_extra
        output = network.forward(values, keep=needed_values(network, params), with_extra=extra)
    return squared_pass(network, values, random_start(output), params)


def exact(model: nn.Module, x: Tensor, start: Any = None) -> dict[str, Tensor]:
    """sum_n sum_o m[n, o] (d f[n, o] / d theta)², by one dense Jacobian."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    output = model(x).detach()
    m = random_start(output) if start is None else start(output)
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(params)
    return {
        name: (j.square() * m.reshape([*m.shape, *[1] * params[name].dim()])).sum(tuple(range(m.dim())))
        for name, j in jacobian.items()
    }


def assert_same(ours: dict[str, Tensor], oracle: dict[str, Tensor]) -> None:
    assert set(ours) == set(oracle)
    for name, expected in oracle.items():
        assert ours[name].shape == expected.shape, name
        scale = float(expected.abs().max())
        assert scale > 0, f"{name}: an oracle of zeros tests nothing"
        torch.testing.assert_close(
            ours[name], expected, rtol=RTOL, atol=RTOL * scale, msg=lambda s, n=name: f"{n}: {s}"
        )

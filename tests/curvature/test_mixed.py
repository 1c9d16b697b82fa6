"""The mixed estimator (docs/method/curvature.md): exact without a limit, approximate at zero."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch
from oracle import assert_matches, built, double
from torch import Tensor, nn

from marquis.curvature import ggn
from networks import LeNet, Net, UNet, dense_autoencoder


def diagonal(model: nn.Module, x: Tensor, estimator: str, likelihood: str = "gaussian", **options: float) -> Tensor:
    return ggn(model, x, likelihood, "diagonal", estimator, **options).diagonal()  # type: ignore[arg-type]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "autoencoder": (lambda: dense_autoencoder((8, 6, 2, 6, 8)), lambda b: double(b, 8)),
    "lenet": (LeNet, lambda b: double(b, 1, 8, 8)),
    "u-net": (UNet, lambda b: double(b, 1, 4, 4)),
    "tanh before pooling": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)),
        lambda b: double(b, 1, 4, 4),
    ),
    "residual": (
        lambda: Net(
            lambda m, x: m.head(m.a(x) + torch.tanh(m.b(m.a(x)))),
            a=nn.Linear(4, 5), b=nn.Linear(5, 5), head=nn.Linear(5, 3),
        ),
        lambda b: double(b, 4),
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2), nn.Linear(2, 5)),
        lambda b: double(b, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("name", MODELS)
def test_without_a_limit_exact_and_at_zero_approximate(name: str, likelihood: str) -> None:
    make, data = MODELS[name]
    model = built(make())
    if likelihood == "categorical" and name == "u-net":
        likelihood = "bernoulli"
    for batch in (3, 1):
        x = data(batch)
        exact, approximate = (diagonal(model, x, estimator, likelihood) for estimator in ("exact", "approximate"))
        assert float((exact - approximate).abs().max() / exact.abs().max()) > 1e-4, "the two ends must differ"
        assert_matches(diagonal(model, x, "mixed", likelihood, width_limit=inf), exact)
        assert_matches(diagonal(model, x, "mixed", likelihood, width_limit=10**9), exact)
        assert_matches(diagonal(model, x, "mixed", likelihood, width_limit=0), approximate)


def m_with_limit(model: nn.Sequential, x: Tensor, limit: int) -> Tensor:
    """The rule, densely, for a chain of layers: M whole at tensors of at most `limit` entries, else its diagonal."""
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for sample in x.split(1):
        inputs = [sample]
        for layer in model:
            inputs.append(layer(inputs[-1]).detach())
        m = torch.eye(inputs[-1].numel(), dtype=x.dtype)
        for index in reversed(range(len(model))):
            before = inputs[index].requires_grad_()
            after = model[index](before).flatten()
            if after.numel() > limit:
                m = m.diagonal().diag()
            own = list(model[index].named_parameters())
            leaves = [before, *(p for _, p in own)]
            table = [torch.autograd.grad(entry, leaves, retain_graph=True) for entry in after]
            by_input, *by_parameter = (torch.stack([row[i].flatten() for row in table]) for i in range(len(leaves)))
            for (name, p), j in zip(own, by_parameter, strict=True):
                totals[f"{index}.{name}"] += torch.einsum("op,oq,qp->p", j, m, j).view(p.shape)
            m = by_input.t() @ m @ by_input
    return torch.cat([total.flatten() for total in totals.values()]).detach()


def test_full_m_behind_the_bottleneck() -> None:
    """50-20-3-20-50 with a limit of 20: everything below the output is whole."""
    model = built(dense_autoencoder((50, 20, 3, 20, 50)))
    assert isinstance(model, nn.Sequential)
    x = double(2, 50)
    ours = diagonal(model, x, "mixed", width_limit=20)
    assert_matches(ours, m_with_limit(model, x, 20))
    exact, approximate = diagonal(model, x, "exact"), diagonal(model, x, "approximate")
    assert_matches(ours, exact)  # the output Hessian is diagonal here, so nothing is lost at the wide output
    assert float((approximate - exact).abs().max() / exact.abs().max()) > 1e-2


@pytest.mark.parametrize("limit", [1, 3, 5, 7, 10, 12])
def test_any_limit_follows_the_rule(limit: int) -> None:
    model = built(
        nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3), nn.Linear(3, 12), nn.Sigmoid(), nn.Linear(12, 5))
    )
    assert isinstance(model, nn.Sequential)
    for x in (double(3, 4), double(1, 4)):
        assert_matches(diagonal(model, x, "mixed", width_limit=limit), m_with_limit(model, x, limit))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.GELU])
def test_an_activation_before_pooling_is_differentiated_once(activation: type[nn.Module]) -> None:
    """The pooled tensor is narrow, the activation before it wide: its derivative must not enter twice."""
    model = built(
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), activation(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    )
    assert isinstance(model, nn.Sequential)
    for x in (double(3, 1, 4, 4), double(1, 1, 4, 4)):
        for limit in (8, 16, 32):
            assert_matches(diagonal(model, x, "mixed", width_limit=limit), m_with_limit(model, x, limit))

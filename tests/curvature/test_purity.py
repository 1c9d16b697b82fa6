"""A curvature call leaves no trace: parameters, buffers, gradients, flags, attributes, random state, default dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import assert_matches, built, dense_ggn, double
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import empirical_fisher, fisher, ggn
from networks import LeNet, Net, TiedAutoencoder, Transformer

MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "lenet with norms": (
        lambda: nn.Sequential(LeNet(), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 3)), double(3, 1, 8, 8),
    ),
    "transformer": (Transformer, torch.randint(0, 6, (3, 4), generator=torch.Generator().manual_seed(0))),
    "tied": (TiedAutoencoder, double(3, 5)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), double(3, 3)),
    "writes a buffer": (lambda: Counting(), double(3, 3)),
}  # fmt: skip


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


def snapshot(model: nn.Module, x: Any) -> dict[str, Any]:
    """Everything about a model, its input and torch that a call could change."""
    return {
        "values": {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())},
        "identity": [id(t) for t in (*model.parameters(), *model.buffers())],
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "requires": [p.requires_grad for p in model.parameters()],
        "leaf": [p.is_leaf for p in model.parameters()],
        "training": [m.training for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()],
        "x": x.clone(),
        "x requires": x.requires_grad,
        "rng": torch.get_rng_state(),
        "dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


def calls(model: nn.Module, x: Any) -> dict[str, Callable[[], Any]]:
    generator = torch.Generator().manual_seed(0)
    y = torch.zeros(3, dtype=torch.long)
    made: dict[str, Callable[[], Any]] = {
        f"{structure} {estimator}": (
            lambda s=structure, e=estimator: ggn(model, x, "categorical", s, e, generator=generator)
        )
        for structure in ("diagonal", "kronecker", "block", "full", "lowrank")
        for estimator in ("exact", "sketched")
        if structure != "kronecker" or not isinstance(model, TiedAutoencoder)
    }
    made["fisher"] = lambda: fisher(model, x, "categorical", generator=generator)
    made["empirical"] = lambda: empirical_fisher(model, x, y, "categorical")
    made["subset"] = lambda: ggn(model, x, "categorical", parameters=[next(iter(dict(model.named_parameters())))])
    return made


@pytest.mark.parametrize("name", MODELS)
def test_nothing_changes(name: str) -> None:
    make, x = MODELS[name]
    model = built(make())
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    list(model.parameters())[-1].requires_grad_(False)
    before = snapshot(model, x)
    for what, call in calls(model, x).items():
        call()
        after = snapshot(model, x)
        for key, value in before.items():
            assert same(value, after[key]), f"{what} changed {key}"


@pytest.mark.parametrize("estimator", ["approximate", "mixed"])
def test_nothing_changes_by_the_diagonal_estimators(estimator: str) -> None:
    model, x = built(nn.Sequential(LeNet(), nn.BatchNorm1d(4), nn.Linear(4, 3))), double(3, 1, 8, 8)
    before = snapshot(model, x)
    ggn(model, x, "categorical", "diagonal", estimator)
    after = snapshot(model, x)
    assert all(same(value, after[key]) for key, value in before.items())


def test_a_refusal_changes_nothing_either() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))).train()
    x = double(3, 3)
    before = snapshot(model, x)
    with pytest.raises(mq.UnsupportedOperationError):
        ggn(model, x, "gaussian")
    after = snapshot(model, x)
    assert all(same(value, after[key]) for key, value in before.items())


def plain() -> nn.Module:
    """Operations with hand-written rules, and others that go through local autograd."""
    return built(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Softmax(-1), nn.Linear(4, 2)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("estimator", ["exact", "approximate", "mixed"])
def test_the_caller_s_mode_does_not_matter(mode: Any, estimator: str) -> None:
    x = double(3, 3)
    model = built(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)))
    expected = ggn(model, x, "bernoulli", "diagonal", estimator).diagonal()
    fresh = copy.deepcopy(model)
    with mode():
        inner = ggn(fresh, x.clone(), "bernoulli", "diagonal", estimator).diagonal()
    assert torch.equal(inner, expected)
    assert not inner.requires_grad and not inner.is_inference()


def test_local_autograd_works_under_inference_mode() -> None:
    model, x = plain(), double(3, 3)
    oracle = dense_ggn(model, x)
    with torch.inference_mode():
        made_inside = x.clone()
        assert_matches(ggn(model, made_inside, "gaussian", "full").to_dense(), oracle)
    assert_matches(ggn(model, made_inside, "gaussian", "full").to_dense(), oracle)


def test_an_input_that_requires_a_gradient() -> None:
    model, x = plain(), double(3, 3)
    expected = ggn(model, x, "gaussian").diagonal()
    ours = ggn(model, x.clone().requires_grad_(), "gaussian").diagonal()
    assert torch.equal(ours, expected) and not ours.requires_grad


def test_other_values_for_the_parameters() -> None:
    model, x = plain(), double(3, 3)
    other = {name: 1.3 * p.detach() for name, p in model.named_parameters()}
    ours = ggn(model, x, "gaussian", "full", params=other).to_dense()
    changed = copy.deepcopy(model)
    changed.load_state_dict(other)
    assert_matches(ours, dense_ggn(changed, x))


def test_default_dtype_of_the_user() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = Net(lambda m, x: m.l(x), l=nn.Linear(3, 2)).float()
        ours = ggn(model, double(3, 3).float(), "gaussian").diagonal()
    finally:
        torch.set_default_dtype(torch.float32)
    assert ours.dtype == torch.float32

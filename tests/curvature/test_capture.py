"""A captured network is remembered, and forgotten as soon as anything that the model reads has changed."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import assert_matches, built, dense_ggn, double
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from marquis.curvature.graph import cache
from marquis.curvature.graph.cache import network_of
from networks import LeNet, Net, Transformer


class Changeable(nn.Module):
    """Everything that a forward may read besides its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.register_buffer("shift", torch.ones(4))
        self.function = torch.tanh
        self.power = 1
        self.settings = {"scale": 1.0, "nested": [1.0, (2.0,)]}
        self.constant = torch.ones((), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.function(self.first(x)) ** self.power + self.shift
        h = self.drop(h) * self.settings["scale"] * self.settings["nested"][1][0] * self.constant
        return self.last(h)


def diagonal(model: Any, x: Any, **options: Any) -> Tensor:
    return ggn(model, x, "gaussian", **options).diagonal()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a function": lambda m: setattr(m, "function", torch.sin),
    "a lambda": lambda m: setattr(m, "function", lambda t: 0.5 * t.square()),
    "a number": lambda m: setattr(m, "power", 2),
    "a dictionary": lambda m: m.settings.update(scale=3.0),
    "a nested tuple": lambda m: m.settings["nested"].__setitem__(1, (5.0,)),
    "a constant in place": lambda m: m.constant.fill_(4.0),
    "another constant": lambda m: setattr(m, "constant", torch.full((), 5.0, dtype=torch.float64)),
    "a buffer in place": lambda m: m.shift.fill_(-3.0),
    "another buffer": lambda m: setattr(m, "shift", torch.full((4,), 7.0, dtype=torch.float64)),
    "weights in place": lambda m: m.first.weight.data.mul_(2.0),
    "another layer": lambda m: setattr(m, "last", built(nn.Linear(4, 3), seed=5)),
    "a layer of the same shape": lambda m: setattr(m, "first", built(nn.Linear(3, 4), seed=5)),
    "another kind of layer": lambda m: setattr(m, "drop", nn.GELU()),
    "a forward hook": lambda m: m.first.register_forward_hook(lambda _, inputs, output: 2 * output),
    "a hook before": lambda m: m.last.register_forward_pre_hook(lambda _, inputs: (3 * inputs[0],)),
    "another forward": lambda m: setattr(m, "forward", lambda x: m.last(m.first(x))),
    "a tied bias": lambda m: setattr(m.first, "bias", m.last.register_parameter("extra", m.first.bias) or m.first.bias),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_first_call_is_seen(change: str) -> None:
    model, x = built(Changeable()), double(3, 3)
    before = diagonal(model, x)
    assert_matches(before, dense_ggn(model, x).diagonal())
    CHANGES[change](model)
    after = diagonal(model, x)
    assert_matches(after, dense_ggn(model, x).diagonal())


def test_one_hook_after_another() -> None:
    """A new function may sit at the address of the old one."""
    model, x = built(Changeable()), double(3, 3)
    for factor in (2, 3, 4):
        handle = model.first.register_forward_hook(lambda _, inputs, output, factor=factor: factor * output)
        assert_matches(diagonal(model, x), dense_ggn(model, x).diagonal())
        handle.remove()


def test_back_to_training_is_refused_also_through_a_function() -> None:
    model, x = built(Changeable()), double(3, 3)
    params = dict(model.named_parameters())

    def function(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (x,))

    assert_matches(diagonal(model, x), diagonal(function, x, params=params))
    model.train()
    with pytest.raises(mq.UnsupportedOperationError, match="module 'drop' is in training mode"):
        diagonal(model, x)
    with pytest.raises(mq.UnsupportedOperationError, match="training mode"):
        diagonal(function, x, params=params)
    model.eval()
    assert_matches(diagonal(model, x), diagonal(function, x, params=params))


def test_what_a_function_reads_is_watched() -> None:
    settings, params, x = {"scale": 1.0}, {"w": double(2, 3)}, double(3, 3)

    def function(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return settings["scale"] * torch.tanh(x @ p["w"].t())

    one = diagonal(function, x, params=params)
    settings["scale"] = 3.0
    assert_matches(diagonal(function, x, params=params), 9 * one)

    def scaled(scale: float, p: dict[str, Tensor], x: Tensor) -> Tensor:
        return scale * torch.tanh(x @ p["w"].t())

    for scale in (1.0, 2.0):
        assert_matches(diagonal(functools.partial(scaled, scale), x, params=params), scale**2 * one)


def test_nothing_is_captured_twice_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[int] = []
    original = cache.capture
    monkeypatch.setattr(cache, "capture", lambda *a: captures.append(1) or original(*a))
    for model, x in ((built(LeNet()), double(5, 1, 8, 8)), (built(Transformer()), torch.arange(20).view(5, 4) % 6)):
        captures.clear()
        for size in (3, 1, 5):
            for structure in ("diagonal", "full"):
                ggn(model, x[:size], "categorical", structure)
        ggn(model, x, "categorical", "diagonal", "sketched")
        assert len(captures) == 1


def test_what_changes_nothing_is_not_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[int] = []
    original = cache.capture
    monkeypatch.setattr(cache, "capture", lambda *a: captures.append(1) or original(*a))
    model, x = built(Changeable()), double(3, 3)
    model.settings["kept"] = {10**6, "a"}
    diagonal(model, x)
    model.settings = {**model.settings, "kept": {int("1000000"), "a"}}  # equal, but other objects
    model.first.weight = nn.Parameter(double(4, 3, seed=9))
    model.train().eval()
    assert_matches(diagonal(model, x), dense_ggn(model, x).diagonal())
    assert len(captures) == 1
    model.settings["kept"] = {10**6, "b"}
    model.power = 1.0  # equal to 1, but of another type
    diagonal(model, x)
    assert len(captures) == 2


@pytest.mark.parametrize("estimator", ["exact", "sketched", "approximate", "mixed"])
def test_the_memory_does_not_keep_a_model_alive(estimator: str) -> None:
    model = built(nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)))
    model[0].register_forward_hook(lambda _, inputs, output: output if not model.training else 2 * output)  # noqa: F821
    ggn(model, double(3, 1, 4, 4), "gaussian", "diagonal", estimator)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_a_batch_of_one_first_and_larger_ones_later() -> None:
    """Where the batch lies in each tensor is decided at capture, and has to hold for every size."""
    model = built(Transformer(at=-1))
    tokens = torch.randint(0, 6, (5, 4), generator=torch.Generator().manual_seed(0))
    for size in (1, 5, 2, 3):
        assert_matches(diagonal(model, tokens[:size]), dense_ggn(model, tokens[:size]).diagonal())


def test_a_forward_that_is_tied_to_one_batch_size() -> None:
    model = built(Net(lambda m, x: m.l(torch.stack([row.tanh() for row in x])), l=nn.Linear(3, 2)))
    for size in (4, 2, 3):
        x = double(size, 3)
        assert_matches(diagonal(model, x), dense_ggn(model, x).diagonal())


def test_steps_know_their_module() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2))))
    network = network_of(model, dict(model.named_parameters()), double(3, 3))
    assert [(step.name, step.path) for step in network.steps] == [("linear", "0"), ("tanh", "1.0"), ("linear", "1.1")]


def test_a_parameter_of_two_modules_is_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    built(model)
    x = double(3, 3)
    network = network_of(model, dict(model.named_parameters()), x)
    assert set(network.parameters) == {"0.weight", "0.bias", "2.bias"}
    assert_matches(diagonal(model, x), dense_ggn(model, x).diagonal())
    assert_matches(ggn(model, x, "gaussian", "full").to_dense(), dense_ggn(model, x))

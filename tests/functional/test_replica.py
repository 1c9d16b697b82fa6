"""Networks run with other weights, from many threads, while the module itself is never written to."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from marquis.errors import UnsupportedOperationError
from marquis.functional.call import call_module, plain_attention
from marquis.functional.replica import replicate

THREADS, CALLS = 8, 40


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 12), nn.Tanh(),
        nn.Linear(12, 3),
    ).eval()  # fmt: skip


class Indirect(nn.Module):
    """Reaches its layers by attributes that are no submodules."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        calls: dict[str, Any] = {
            "list": [self.layer],
            "dict": {"a": (self.layer,)},
            "method": self._run,
            "partial": functools.partial(Indirect._run, self),
            "closure": lambda x: self.layer(x),
            "default": lambda x, layer=self.layer: layer(x),
            "helper": SimpleNamespace(owner=self),
            "patched": None,
        }
        self.how = how
        object.__setattr__(self, "reference", calls[how])
        if how == "patched":
            self.forward = lambda x: 2 * self.layer(x)

    def _run(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "list":
            return self.reference[0](x)
        if self.how == "dict":
            return self.reference["a"][0](x)
        return self.reference.owner.layer(x) if self.how == "helper" else self.reference(x)


def other_weights(model: nn.Module, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in model.named_parameters()}


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that a call could leave changed, by identity."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for table in (vars(module), module._parameters, module._buffers, module._modules, module._forward_hooks):
            state |= {f"{path}/{len(state)}/{name}": value for name, value in table.items()}
    return state


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(after[key] is value for key, value in before.items())


@pytest.mark.parametrize("how", ["list", "dict", "method", "partial", "closure", "default", "helper", "patched"])
def test_attributes_that_refer_to_layers_refer_to_the_replica(how):
    model, x = Indirect(how), torch.randn(4, 3)
    weights, before = other_weights(model, 1), snapshot(model)
    expected = x @ weights["layer.weight"].T + weights["layer.bias"]
    torch.testing.assert_close(call_module(model, weights, (x,)), 2 * expected if how == "patched" else expected)
    assert same(before, snapshot(model))


@pytest.mark.parametrize(
    "build",
    [
        lenet,
        lambda: nn.LSTM(3, 4, 2),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        lambda: weight_norm(nn.Linear(3, 4)),
        lambda: nn.utils.weight_norm(nn.Linear(3, 4)),
        lambda: nn.utils.spectral_norm(nn.Linear(3, 4)).eval(),
        lambda: nn.ModuleDict({"a": (shared := nn.Linear(3, 3)), "b": nn.Sequential(shared, shared)})["b"],
    ],
    ids=["convolutions", "lstm", "attention", "weight norm", "weight norm hooks", "spectral norm", "module twice"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_as_functional_call(build: Callable[[], nn.Module]):
    model = build()
    shapes = {nn.LSTM: (5, 2, 3), nn.TransformerEncoderLayer: (2, 5, 8)}
    x = torch.randn(shapes.get(type(model), (2, 1, 8, 8) if len(list(model.modules())) > 5 else (2, 3)))
    weights = other_weights(model, 2)
    expected = torch.func.functional_call(model, weights, (x,))
    torch.testing.assert_close(call_module(model, weights, (x,)), expected)


def test_tied_tensors_are_replaced_everywhere_by_their_first_name():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    w, x = torch.randn(3, 3), torch.randn(2, 3)
    torch.testing.assert_close(call_module(model, {"0.weight": w}, (x,)), x @ w.T @ w.T)


def test_attributes_written_in_forward_stay_with_the_replica():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls, self.last = nn.Linear(2, 2), 0, None
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls, self.last, self.seen = self.calls + 1, x, self.seen + 1
            return self.layer(x)

    model = Counting()
    before = snapshot(model)
    call_module(model, other_weights(model, 0), (torch.randn(1, 2),))
    assert same(before, snapshot(model)) and model.calls == 0


def test_a_changed_attribute_or_structure_counts_at_the_next_call():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.1)), -torch.ones(1, 3)
    weights = {"0.weight": torch.eye(3), "0.bias": torch.zeros(3)}
    torch.testing.assert_close(call_module(model, weights, (x,)), 0.1 * x)
    model[1].negative_slope = 0.5
    torch.testing.assert_close(call_module(model, weights, (x,)), 0.5 * x)
    model.append(nn.Hardtanh())
    model[2].register_forward_hook(lambda _, __, output: 3 * output)
    torch.testing.assert_close(call_module(model, weights, (x,)), 1.5 * x)


def test_threads_do_not_see_each_others_weights():
    model, x = lenet(), torch.randn(16, 1, 8, 8)
    before = snapshot(model)
    states = [other_weights(model, seed) for seed in range(THREADS * CALLS)]
    with torch.no_grad():
        expected = [call_module(model, state, (x,)) for state in states]
    barrier = threading.Barrier(THREADS)

    def work(thread: int) -> list[Tensor]:
        barrier.wait()
        with torch.no_grad():
            return [call_module(model, state, (x,)) for state in states[thread::THREADS]]

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(work, range(THREADS)))
    for thread, own in enumerate(answers):
        for answer, serial in zip(own, expected[thread::THREADS], strict=True):
            torch.testing.assert_close(answer, serial, rtol=0, atol=0)
    assert same(before, snapshot(model))
    assert all(isinstance(p, nn.Parameter) for m in model.modules() for p in m._parameters.values() if p is not None)


def test_the_module_is_untouched_when_forward_raises():
    model = lenet()
    before = snapshot(model)
    with pytest.raises(RuntimeError):
        call_module(model, other_weights(model, 0), (torch.randn(2, 1, 9, 9, 9, 9),))
    assert same(before, snapshot(model))


def test_observers_are_told_and_leave_no_hook():
    model, x = lenet(), torch.randn(2, 1, 8, 8)
    before, seen = snapshot(model), []
    weights = other_weights(model, 0)
    output = call_module(model, weights, (x,), observers={model[5]: lambda args, out: seen.append((args[0], out))})
    ((features, hidden),) = seen
    torch.testing.assert_close(hidden, features @ weights["5.weight"].T + weights["5.bias"])
    torch.testing.assert_close(output, hidden.tanh() @ weights["7.weight"].T + weights["7.bias"])
    assert same(before, snapshot(model))


def test_compiled_modules_run_what_they_wrap():
    model, x = nn.Linear(3, 2), torch.randn(2, 3)
    weights = other_weights(model, 0)
    torch.testing.assert_close(call_module(torch.compile(model), weights, (x,)), call_module(model, weights, (x,)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused():
    with pytest.raises(UnsupportedOperationError, match=r"'0' is TorchScript"):
        replicate(nn.Sequential(torch.jit.script(nn.Linear(2, 2))), {})


def test_attention_switch_of_several_threads_is_put_back():
    inside, leave = threading.Barrier(2), threading.Event()

    def hold() -> None:
        with plain_attention():
            inside.wait()
            leave.wait()

    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    other = threading.Thread(target=hold)
    other.start()
    inside.wait()
    with plain_attention():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert not torch.backends.mha.get_fastpath_enabled() and not torch.backends.cuda.flash_sdp_enabled()
    leave.set()
    other.join()
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()) == before

"""Calls from eight threads: the serial answers, everything as it was afterwards, other threads' messages not lost."""

from __future__ import annotations

import io
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from helpers.threads import THREADS, in_threads
from marquis.autoencoders import KINDS, ModelSpec, fit_in_memory
from marquis.functional.quiet import quiet
from marquis.variational.base import evaluation_mode


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def inputs(seed: int, *shape: int) -> Tensor:
    return torch.randn(6, *shape, generator=torch.Generator().manual_seed(seed))


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything that a call must leave alone: which tensors, their values and versions, flags, hooks, attributes."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held: dict[str, Any] = {n: (id(t), type(t), t._version, t.detach().clone(), t.grad) for n, t in tensors.items()}
    for path, part in module.named_modules():
        held[f"module {path}"] = (id(part), part.training, sorted(vars(part)), len(part._forward_hooks))
    return held


def assert_untouched(module: nn.Module, before: dict[str, Any]) -> None:
    after = state_of(module)
    assert after.keys() == before.keys()
    for name, value in before.items():
        for one, two in zip(value, after[name], strict=True):
            assert torch.equal(one, two) if isinstance(one, Tensor) else one == two, name


class Net(nn.Module):
    """Code of the user's own, so that graph and model are compared at every call; refuses a batch of five."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        if x.shape[0] == 5:
            raise RuntimeError("in the middle")
        return x


def laplace() -> mq.Laplace:
    labels = torch.randint(3, (6,), generator=generator())
    model = Net().eval()
    return mq.Laplace(model, "categorical").fit([(inputs(i, 4), labels) for i in range(3)], progress=False)


LAPLACE: dict[str, Callable[[mq.Laplace, Tensor], Tensor]] = {
    "ggn": lambda la, x: mq.curvature.ggn(la.model, x, "categorical").diagonal(),
    "predict": lambda la, x: la.predict(x).probs,  # type: ignore[dict-item,return-value]
    "sample": lambda la, x: la.sample(2, generator())["layers.3.weight"],
}


def check_laplace(name: str, rounds: int) -> None:
    la, call = laplace(), LAPLACE[name]
    before = state_of(la.model)  # type: ignore[arg-type]
    expected = [call(la, inputs(seed, 4)) for seed in range(THREADS)]

    def work(thread: int) -> list[Tensor]:
        answers = []
        for number in range(rounds):
            if number % 7 == 3 and name != "sample":
                with pytest.raises((mq.MarquisError, RuntimeError)):
                    call(la, inputs(thread, 4)[:5])
            answers.append(call(la, inputs(thread, 4)))
        return answers

    for thread, answers in enumerate(in_threads(work)):
        assert all(torch.equal(answer, expected[thread]) for answer in answers)
    assert_untouched(la.model, before)  # type: ignore[arg-type]


def autoencoder(kind: str) -> Any:
    model = ModelSpec(kind, (5,), 2, width=0.05).build(0)
    rows = torch.randn(40, 5, generator=generator())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), 20)
    fit_in_memory(model, rows, max_epochs=2, batch_size=20)
    return ModelSpec(kind, (5,), 2, width=0.05).finish(model, loader, seed=0)


AUTOENCODER: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "encode": lambda model, x: model.encode(x, 3, generator=generator()).mean,
    "decode": lambda model, x: model.decode(x[:, :2], 3, generator=generator()).mean,
    "reconstruct": lambda model, x: model.reconstruct(x, 3, generator=generator()).variance,
}


def check_autoencoder(kind: str, rounds: int) -> None:
    model = autoencoder(kind).train()  # calls evaluate in evaluation mode and restore the flags
    for name, call in AUTOENCODER.items():
        expected = [call(model, inputs(seed, 5)) for seed in range(THREADS)]
        before = state_of(model)

        def work(thread: int, call: Any = call) -> list[Tensor]:
            answers = []
            for number in range(rounds):
                if number % 7 == 3:
                    with pytest.raises(mq.MarquisError):
                        call(model, inputs(thread, 1))
                answers.append(call(model, inputs(thread, 5)))
            return answers

        for thread, answers in enumerate(in_threads(work)):
            for answer in answers:
                assert torch.equal(answer, expected[thread]), (kind, name)
        assert_untouched(model, before)


@pytest.mark.parametrize("name", LAPLACE)
def test_laplace_in_threads(name):
    check_laplace(name, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_autoencoders_in_threads(kind):
    check_autoencoder(kind, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAPLACE)
def test_a_thousand_calls_of_laplace(name):
    check_laplace(name, 125)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_calls_of_autoencoders(kind):
    check_autoencoder(kind, 125)


def test_evaluation_mode_is_shared_by_threads():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    inner, inside, leave = model[1], threading.Event(), threading.Event()

    def stay() -> bool:
        with evaluation_mode(inner):
            inside.set()
            leave.wait(10)
            return inner.training or inner[0].training  # type: ignore[index]

    with ThreadPoolExecutor(1) as pool:
        with evaluation_mode(model):
            staying = pool.submit(stay)
            inside.wait(10)
        assert model.training and not inner.training
        leave.set()
        assert not staying.result()
    assert all(part.training for part in model.modules())


def test_messages_of_other_threads_are_not_lost(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    inside, leave = threading.Event(), threading.Event()

    def silent() -> None:
        with quiet():
            inside.set()
            leave.wait(10)
            warnings.warn("ours", stacklevel=1)
            print("ours", file=sys.stderr)

    with warnings.catch_warnings(record=True) as seen, ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("always")
        working = pool.submit(silent)
        inside.wait(10)
        warnings.warn("theirs", stacklevel=1)
        print("theirs", file=sys.stderr)
        leave.set()
        working.result()
        warnings.warn("afterwards", stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["theirs", "afterwards"]
    assert stream.getvalue() == "theirs\n" and sys.stderr is stream

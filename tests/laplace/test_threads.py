"""Eight threads that share a network and its posterior get the serial answers, and leave the network as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from helpers.threads import THREADS, in_threads

ROUNDS = 16


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 6), nn.Tanh(), nn.Linear(6, 3)
    ).eval()


def inputs(seed: int) -> Tensor:
    return torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(seed))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def fitted(model: nn.Module, **options: Any) -> mq.Laplace:
    labels = torch.randint(3, (6,), generator=generator())
    return mq.Laplace(model, "categorical", **options).fit([(inputs(i), labels) for i in range(3)], progress=False)


CALLS: dict[str, Callable[[mq.Laplace, Tensor], Tensor]] = {
    "linearised": lambda la, x: la.predict(x).probs,
    "samples": lambda la, x: la.predict(x, "linearised-samples", samples=3, generator=generator()).variance,
    "sampled": lambda la, x: la.predict(x, "sampled", samples=3, generator=generator()).variance,
    "layer": lambda la, x: la.predict(x, at="4").variance,
    "weights": lambda la, x: la.sample(2, generator())["4.weight"],
    "ggn": lambda la, x: mq.curvature.ggn(la.model, x, "categorical").diagonal(),
    "approximate": lambda la, x: mq.curvature.ggn(la.model, x, "categorical", estimator="approximate").diagonal(),
}  # type: ignore[dict-item]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_threads_get_the_serial_answers(call):
    model = network()
    la = fitted(model, structure="kronecker")
    before = {name: value for name, value in model.named_parameters()}
    expected = [call(la, inputs(seed)) for seed in range(THREADS)]
    for thread, answers in enumerate(in_threads(lambda t: [call(la, inputs(t)) for _ in range(ROUNDS)])):
        for answer in answers:
            torch.testing.assert_close(answer, expected[thread], rtol=0, atol=0)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    assert all(isinstance(p, nn.Parameter) for p in after.values())


@pytest.mark.parametrize("parameters", ["all", "last-layer"])
def test_threads_that_come_first_share_one_posterior(parameters):
    la, x = fitted(network(), parameters=parameters), inputs(0)
    expected = fitted(network(), parameters=parameters).predict(x).probs
    for probs in in_threads(lambda _: la.predict(x).probs):
        torch.testing.assert_close(probs, expected)


def test_threads_that_capture_a_network_for_the_first_time():
    for seed in range(3):
        model, x = network(), inputs(seed)
        expected = mq.curvature.ggn(network(), x, "categorical").diagonal()
        for diagonal in in_threads(lambda _, m=model, x=x: mq.curvature.ggn(m, x, "categorical").diagonal()):
            torch.testing.assert_close(diagonal, expected)
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_a_call_that_fails_in_one_thread_harms_no_other():
    model = network()
    la, x = fitted(model), inputs(0)
    expected = la.predict(x).probs

    def work(thread: int) -> Tensor | None:
        if thread % 2:
            with pytest.raises((mq.MarquisError, RuntimeError)):
                la.predict(torch.randn(2, 1, 2, 2))
            return None
        return la.predict(x).probs

    for probs in in_threads(work):
        if probs is not None:
            torch.testing.assert_close(probs, expected, rtol=0, atol=0)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())

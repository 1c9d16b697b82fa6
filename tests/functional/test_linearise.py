"""Many steps along a network's tangent: traced once or differentiated each time, it is the same map."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, linearize
from torch.utils.checkpoint import checkpoint

from helpers.autoencoder_models import EXACT, NoTangent, data, generator
from marquis.autoencoders import ModelSpec, fit_posthoc, linearised
from marquis.errors import UnsupportedOperationError
from marquis.functional.linearise import WORTH_TRACING, Linearisation


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.MaxPool2d(2), nn.Upsample(scale_factor=2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 5)).double().eval()


def function_of(model):
    return lambda weights, x: functional_call(model, weights, (x,))


def dense(weights, x):
    return x.flatten(1) @ weights["w"]


def steps(at, count):
    source = generator(1)
    draw = {"dtype": torch.float64, "generator": source}
    return [{name: torch.randn(value.shape, **draw) for name, value in at.items()} for _ in range(count)]


class TestTracing:
    def test_the_same_map(self):
        model = network()
        at = {name: value.detach() for name, value in model.named_parameters()}
        function, x, traced, plain = function_of(model), data(4), Linearisation(at, WORTH_TRACING), Linearisation(at, 1)
        for step in steps(at, 3):
            torch.testing.assert_close(traced.along(function, x, step), plain.along(function, x, step), **EXACT)
        assert traced._traced is not None and plain._traced is None
        linear = traced._traced
        traced.along(function, x, step)
        assert traced._traced is linear  # once for all steps
        other = data(4, seed=7)
        torch.testing.assert_close(traced.along(function, other, step), plain.along(function, other, step), **EXACT)
        assert traced._traced is not linear

    def test_inputs_that_alternate_are_traced_once(self, monkeypatch):
        model, traces = network(), []
        at = {name: value.detach() for name, value in model.named_parameters()}
        module = sys.modules[Linearisation.__module__]
        whole = module.linearize
        monkeypatch.setattr(module, "linearize", lambda *what: traces.append(1) or whole(*what))
        function, tangent, plain = function_of(model), Linearisation(at, WORTH_TRACING), Linearisation(at, 1)
        inputs = data(4), data(5, seed=7)
        for step in steps(at, 3):
            for x in inputs:
                torch.testing.assert_close(tangent.along(function, x, step), plain.along(function, x, step), **EXACT)
        assert len(traces) == 1 and tangent._traced is None
        again = Linearisation(at, WORTH_TRACING)
        for x in inputs:
            for step in steps(at, 3):
                again.along(function, x, step)
        assert len(traces) == 3  # once for each, since each was of use

    def test_what_cannot_be_traced_is_differentiated(self):
        def bent(weights, x):
            y = x.flatten(1) @ weights["w"]
            return y if float(y.sum()) > 0 else 2 * y  # looks at a value, which no trace can keep

        at = {"w": torch.ones(16, 2, dtype=torch.float64)}
        tangent, x = Linearisation(at, WORTH_TRACING), data(3)
        for step in steps(at, 2):
            torch.testing.assert_close(tangent.along(bent, x, step), x.flatten(1) @ (at["w"] + step["w"]), **EXACT)
        assert not tangent._tracing

    @pytest.mark.parametrize("kept", [1.0, 0.99])
    def test_a_trace_that_lost_something_is_not_used(self, kept, monkeypatch):
        def lossy(whole, at):
            value, linear = linearize(whole, at)
            return value, lambda step: kept * linear(step)

        monkeypatch.setattr(sys.modules[Linearisation.__module__], "linearize", lossy)
        at = {"w": torch.ones(16, 2, dtype=torch.float64)}
        tangent, x = Linearisation(at, WORTH_TRACING), data(3)
        for step in steps(at, 3):
            expected = x.flatten(1) @ (at["w"] + step["w"])
            torch.testing.assert_close(tangent.along(dense, x, step), expected, **EXACT)
        assert (tangent._traced is not None) == tangent._tracing == (kept == 1.0)

    def test_several_outputs(self):
        at = {"w": torch.ones(16, 2, dtype=torch.float64)}
        (step,), x = steps(at, 1), data(3)

        def two(weights, x):
            y = x.flatten(1) @ weights["w"]
            return y, y.square()

        y = x.flatten(1) @ at["w"]
        change = x.flatten(1) @ step["w"]
        for tangent in (Linearisation(at, 1), Linearisation(at, WORTH_TRACING)):
            result = tangent.along(two, x, step)
            torch.testing.assert_close(result, (y + change, y.square() + 2 * y * change), **EXACT)


class Residual(nn.Module):
    """Writes into an activation that the derivative needs."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        y = self.outer(self.inner(x.flatten(1)).tanh())
        y += x.flatten(1)
        return y.tanh()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(4, 3, batch_first=True)

    def forward(self, x):
        return self.cell(x.flatten(1).unflatten(1, (4, 4)))[0]


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)) + torch.randn(len(x), 5, dtype=x.dtype)


def in_place(activation):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), activation, nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("made", "traced"),
    [
        (Residual, True),
        (lambda: in_place(nn.LeakyReLU(0.2, inplace=True)), True),
        (lambda: in_place(nn.SiLU(inplace=True)), True),
        (Recurrent, False),
    ],
    ids=["residual", "leaky", "silu", "recurrent"],
)
def test_every_step_of_a_network_that_writes_in_place(made, traced):
    """A trace of it may be right the first time only."""
    torch.manual_seed(0)
    model = made().double().eval()
    at = {name: value.detach() for name, value in model.named_parameters()}
    tangent, x, function = Linearisation(at, WORTH_TRACING), data(3), function_of(model)
    mean, jacobian = function(at, x), jacrev(lambda weights: function(weights, x))(at)
    for step in steps(at, 5):
        moved = sum((j.flatten(mean.dim()) @ step[name].flatten() for name, j in jacobian.items()))
        torch.testing.assert_close(tangent.along(function, x, step), mean + moved, **EXACT)
    assert (tangent._traced is not None) == traced


def test_noise_of_the_network_itself_is_not_frozen():
    torch.manual_seed(0)
    model, x = Noisy(16, 5).double(), data(3)
    at = {name: value.detach() for name, value in model.named_parameters()}
    still = {name: torch.zeros_like(value) for name, value in at.items()}
    tangent = Linearisation(at, WORTH_TRACING)
    first, second = (tangent.along(function_of(model), x, still) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_traced_function_is_asked_for_not_only_its_input():
    at, x = {"w": torch.ones(16, 2, dtype=torch.float64)}, data(3)
    tangent, (step,) = Linearisation(at, WORTH_TRACING), steps(at, 1)
    plain = x.flatten(1) @ (at["w"] + step["w"])
    torch.testing.assert_close(tangent.along(dense, x, step), plain, **EXACT)
    assert tangent._traced is not None
    torch.testing.assert_close(tangent.along(lambda w, x: 2 * dense(w, x), x, step), 2 * plain, **EXACT)


@pytest.mark.parametrize("method", ["encode", "reconstruct"])
def test_few_draws_and_many_are_of_the_same_distribution(method):
    spec = ModelSpec("ae", (1, 8, 8), 2, width=0.25)
    plain = spec.build(0).double()
    x = torch.rand(40, 1, 8, 8, dtype=torch.float64, generator=generator())
    model = linearised(fit_posthoc(plain, [x], progress=False))
    many = getattr(model, method)(x[:3], WORTH_TRACING, generator=generator(2), keep=True)
    few = getattr(model, method)(x[:3], 2, generator=generator(2), keep=True)
    torch.testing.assert_close(many.samples[:2], few.samples, **EXACT)
    assert model(x).grad_fn is not None and not many.samples.requires_grad


def test_refused_with_many_draws_as_with_few():
    def outside_of_torch(y):
        return torch.from_numpy(2 * y.detach().numpy())

    def of_the_old_style(y):
        return checkpoint(torch.tanh, y, use_reentrant=True)

    at = {"w": torch.ones(16, 2, dtype=torch.float64)}
    for layer in (NoTangent.apply, outside_of_torch, of_the_old_style):  # the latter two a trace takes for constant
        for count in (1, WORTH_TRACING):
            with pytest.raises(UnsupportedOperationError, match="forward-mode derivative"):
                Linearisation(at, count).along(lambda w, x, layer=layer: layer(dense(w, x)), data(3), at)

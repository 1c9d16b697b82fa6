"""Networks for which a number would come out that means nothing: refused by name at every door, or right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import accumulate, ggn, hessian, operator, plan
from marquis.errors import MarquisError

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
START = {"likelihood": "gaussian", "num_data": 6}

DOORS: dict[str, Callable[[Any], Any]] = {
    "ggn": lambda model: ggn(model, X, "gaussian").diagonal(),
    "kronecker": lambda model: ggn(model, X, "gaussian", "kronecker", "sketched").diagonal(),
    "plan": lambda model: plan(model, X, "gaussian"),
    "accumulate": lambda model: accumulate(model, [(X, Y)], "gaussian", progress=False).diagonal(),
    "operator": lambda model: operator(model, [(X, Y)], "gaussian"),
    "hessian": lambda model: hessian(model, X, Y, "gaussian"),
    "kernel": lambda model: mq.kernel(model, 1.0)(X),
    "fit": lambda model: mq.Laplace(model, "gaussian", "diagonal").fit([(X, Y)], progress=False),
    "step": lambda model: mq.OnlineLaplace(model, **START).step(X, Y),
    "train": lambda model: mq.evidence.train(model, [(X, Y)], "gaussian", epochs=1, burn_in=0, every=1, progress=False),
    "null space": lambda model: mq.scores.null_space(model, [(X, Y)], "gaussian").sample(1),
    "lanczos": lambda model: mq.scores.sketched_lanczos(model, [(X, Y)], "gaussian", steps=3),
    "swag": lambda model: mq.subnetwork.swag_variance(model, [(X, Y)], mq.Gaussian(), ["layer.weight"], epochs=2),
    "variational": lambda model: mq.variational.VariationalLaplace(model, **START).step(X, Y),
    "mean field": lambda model: mq.variational.MeanFieldVI(model, **START).step(X, Y),
    "map": lambda model: mq.variational.MAP(model, **START).step(X, Y),
}
BY_GRAPH = ("ggn", "kronecker", "plan", "accumulate", "fit", "step")
BY_JACOBIAN = ("operator", "hessian", "kernel", "null space")


class Odd(nn.Module):
    """Runs a function of its layer and the inputs."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(3, 2), function
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer, x)


def under_no_grad(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)


def refused(door: str, words: str, model: nn.Module) -> None:
    with pytest.raises(MarquisError, match=words):
        DOORS[door](model)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("function", [under_no_grad, lambda layer, x: layer(x).detach()], ids=["no_grad", "detach"])
def test_outputs_without_derivative(door, function):
    """Every weight looked certain: curvature and variances were 0, and training learnt nothing from the data."""
    refused(door, "no derivative in any parameter", Odd(function))


@pytest.mark.parametrize("door", DOORS)
def test_networks_that_leave_torch(door):
    words = "could not be captured" if door in BY_GRAPH else "no derivative in any parameter"
    refused(door, words, Odd(lambda layer, x: torch.as_tensor(np.tanh(layer(x).detach().numpy()))))


def fourier(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.fft(layer(x)))


@pytest.mark.parametrize("door", [door for door in BY_GRAPH if door not in ("fit", "step")])
def test_complex_numbers_that_depend_on_weights(door):
    """Their gradient was dropped: the curvature was 0, silently."""
    refused(door, r"fft_fft.*gives complex numbers that depend on parameters.*curvature\.operator", Odd(fourier))


def test_complex_numbers_where_they_are_right():
    weights = Odd(lambda layer, x: x @ torch.fft.irfft(torch.fft.rfft(layer.weight) * 2.0, n=3).T)
    inputs = Odd(lambda layer, x: layer(torch.view_as_real(torch.fft.fft(x))[..., 0]))
    for model in (weights, inputs):
        names = ["layer.weight"]
        product = operator(model, [(X, Y)], "gaussian", parameters=names)
        dense = torch.stack([product @ column for column in torch.eye(6)])
        diagonal = ggn(model, X, "gaussian", parameters=names).diagonal()
        torch.testing.assert_close(diagonal, dense.diagonal(), rtol=1e-5, atol=1e-5)
    assert float((operator(Odd(fourier), [(X, Y)], "gaussian") @ torch.ones(8)).abs().max()) > 1


@pytest.mark.parametrize("door", DOORS)
def test_outputs_in_a_list_of_one(door):
    DOORS[door](Odd(lambda layer, x: [layer(x)]))
    diagonal = ggn(Odd(lambda layer, x: (layer(x),)), X, "gaussian").diagonal()
    torch.testing.assert_close(diagonal, ggn(Odd(lambda layer, x: layer(x)), X, "gaussian").diagonal())


@pytest.mark.parametrize("door", DOORS)
def test_several_outputs(door):
    refused(door, "returns a tuple|returns 2 tensors", Odd(lambda layer, x: (layer(x), x)))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.LazyLinear(2), r"has no shape yet.*model\(x\)"),
        (lambda: nn.Linear(3, 2, device="meta"), "has no values.*load the weights"),
        (lambda: nn.Linear(3, 2, dtype=torch.complex64), "is complex; write it as two real"),
    ],
    ids=["lazy", "meta", "complex"],
)
def test_parameters_without_real_values(door, layer, words):
    model = Odd(lambda layer, x: layer(x))
    model.layer = layer().eval()
    refused(door, words, model)


@pytest.mark.parametrize("door", BY_GRAPH)
def test_networks_that_write_to_their_weights(door):
    def forward(layer: Any, x: Tensor) -> Tensor:
        outputs = layer(x.tanh()) @ layer.weight
        with torch.no_grad():
            layer.weight.mul_(1.0)
        return outputs

    refused(door, "in place|another output", Odd(forward))


@pytest.mark.parametrize("door", [*BY_GRAPH, *BY_JACOBIAN])
def test_samples_that_influence_each_other(door):
    refused(door, "influence each other|rest of its batch", Odd(lambda layer, x: layer(x - x.mean(0))))


@pytest.mark.parametrize("door", [*BY_GRAPH, *BY_JACOBIAN])
def test_random_outputs(door):
    refused(door, "random|differ", Odd(lambda layer, x: layer(x) * torch.rand(2)))


@pytest.mark.parametrize("kept", ["outputs", "losses"])
def test_null_spaces_of_what_is_not_finite_or_does_not_fit(kept):
    model = Odd(lambda layer, x: layer(x))
    with pytest.raises(MarquisError, match="cannot take x of shape"):
        mq.scores.null_space(model, [(X, Y), (X[:, :2], Y)], "gaussian", kept).sample(1)
    with torch.no_grad():
        model.layer.weight[0, 0] = float("nan")
    with pytest.raises(MarquisError, match="NaN or infinite outputs"):
        mq.scores.null_space(model, [(X, Y)], "gaussian", kept).sample(1)

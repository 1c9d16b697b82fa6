"""Covariances of the linearised network without Jacobians, against dense Jacobians and a dense inverse in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from marquis.curvature import ggn
from marquis.curvature.factors.quadratic_forms import quadratic_forms
from marquis.curvature.output_covariance import output_covariance
from marquis.functional.function import NetworkFunction
from marquis.functional.jacobian import jacobian
from marquis.posterior import Posterior
from marquis.predictive import linearised as linearised_module
from marquis.predictive import predict
from marquis.structures import Structure


class Tokens(nn.Module):
    """Embedding with padding and repeated tokens, attention, layer norm, a linear layer over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6, padding_idx=0)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(x).mean(1)


class Tied(nn.Module):
    """One weight used twice, once transposed, and a bare scale."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(5, 5), nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x)) * self.scale
        return torch.tanh(self.inner(h)) @ self.inner.weight


def images(n: int) -> Tensor:
    return torch.rand(n, 2, 6, 6)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], tuple[str, ...]]] = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)),
        lambda n: torch.randn(n, 4),
        ("diagonal", "kronecker"),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, stride=2),
            nn.Tanh(),
            nn.Conv2d(4, 6, 3, padding=2, groups=2, dilation=2),
            nn.GELU(),
            nn.Conv2d(6, 2, 2, bias=False),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(2, 3),
        ),
        images,
        ("diagonal", "kronecker"),
    ),
    "image output": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(3, 2, 2, stride=2),
            nn.Tanh(),
            nn.Conv2d(2, 1, 3),
        ),
        images,
        ("diagonal", "kronecker"),
    ),
    "overlapping image output": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.Tanh(), nn.ConvTranspose2d(4, 2, 4, 2, 1, groups=2)),
        images,
        ("diagonal", "kronecker"),
    ),
    "normalised image": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)),
        images,
        ("diagonal", "kronecker"),
    ),
    "tokens": (
        Tokens,
        lambda n: torch.tensor([[1, 2, 1, 0], [3, 3, 3, 6], [0, 5, 4, 5]])[:n],
        ("diagonal", "kronecker"),
    ),
    "tied": (Tied, lambda n: torch.randn(n, 5), ("diagonal",)),
}
CASES = [(name, structure) for name, (_, _, structures) in NETWORKS.items() for structure in structures]


def problem(name: str, structure: str, n: int) -> tuple[nn.Module, Tensor, Structure]:
    torch.manual_seed(0)
    make, inputs, _ = NETWORKS[name]
    model = make().double().eval()
    x = inputs(3)
    x = x.double() if x.is_floating_point() else x
    precision = ggn(model, x, "gaussian", structure) * 2.0
    priors = {key: 0.5 + 0.1 * i for i, key in enumerate(precision.layout.names)}
    return model, x[:n], precision.add_diagonal(priors)


def dense(model: nn.Module, x: Tensor, precision: Structure) -> Tensor:
    rows = jacobian(NetworkFunction.copy_of(model), x)
    return rows @ torch.linalg.inv(precision.to_dense()) @ rows.mT


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("name", "structure"), CASES)
def test_covariances_and_variances_match_dense_jacobians(name: str, structure: str, n: int) -> None:
    model, x, precision = problem(name, structure, n)
    forms = quadratic_forms(precision)
    assert forms is not None
    expected = dense(model, x, precision)
    params = dict(model.named_parameters())
    outputs, covariance = output_covariance(model, params, x, forms, whole=True)
    torch.testing.assert_close(outputs, model(x).detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(covariance, expected, rtol=1e-9, atol=1e-12)
    for limit in (None, 1):  # one sample and as few columns as possible at a time
        _, variance = output_covariance(model, params, x, forms, whole=False, limit=limit)
        torch.testing.assert_close(variance, expected.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "full", "block", "lowrank"])
def test_predict_agrees_with_the_jacobian_path(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = problem("convolutions", "diagonal", 3)
    precision = ggn(model, x, "gaussian", structure).add_diagonal(1.0)
    posterior = Posterior(precision.layout, dict(model.named_parameters()), precision)
    fast = predict(posterior, model, x)
    monkeypatch.setattr(linearised_module, "_forms", lambda function: None)
    slow = predict(posterior, model, x)
    torch.testing.assert_close(fast.covariance, slow.covariance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fast.variance, slow.variance, rtol=1e-9, atol=1e-12)


def test_some_parameters_and_a_wider_precision() -> None:
    """A posterior over one layer in float64 for a network in float32; the others stay fixed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    x = torch.randn(5, 4)
    precision = ggn(model, x, "gaussian", "kronecker", parameters="0.*").to(torch.float64).add_diagonal(1.0)
    forms = quadratic_forms(precision)
    assert forms is not None
    _, covariance = output_covariance(model, dict(model.named_parameters()), x, forms, whole=True)
    rows = jacobian(NetworkFunction.copy_of(model, parameters="0.*"), x).double()
    assert covariance.dtype == torch.float64
    torch.testing.assert_close(
        covariance, rows @ torch.linalg.inv(precision.to_dense()) @ rows.mT, rtol=1e-5, atol=1e-6
    )


def test_outputs_that_depend_on_no_random_weight_have_no_variance() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Split().double().eval()
    x = torch.rand(2, 3, dtype=torch.float64)
    precision = ggn(model, x, "gaussian", "diagonal", parameters="unused.*").add_diagonal(1.0)
    forms = quadratic_forms(precision)
    assert forms is not None
    for whole in (True, False):
        _, moments = output_covariance(model, dict(model.named_parameters()), x, forms, whole=whole)
        assert moments.shape == ((2, 2, 2) if whole else (2, 2))
        assert not moments.any()


def test_no_tensor_is_as_large_as_a_jacobian() -> None:
    """Ten outputs of a thousand inputs into a wide layer: the Jacobian of one sample is never made."""
    from marquis.curvature.planning.memory import AllocationMeter

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 200), nn.Tanh(), nn.Linear(200, 10)).eval()
    x = torch.randn(4, 1000)
    precision = ggn(model, x, "gaussian", "kronecker").add_diagonal(1.0)
    forms = quadratic_forms(precision)
    assert forms is not None
    params = dict(model.named_parameters())
    output_covariance(model, params, x, forms, whole=True)
    with AllocationMeter() as meter:
        output_covariance(model, params, x, forms, whole=True)
    assert meter.peak < 10 * 1000 * 200 * 4  # bytes of the Jacobian of a single sample

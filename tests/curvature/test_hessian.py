"""The true Hessian against `torch.func.hessian`, and its relation to the GGN (docs/method/curvature.md), in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import marquis as mq
from marquis.curvature.hessian import hessian
from marquis.curvature.linop.operator import operator
from marquis.errors import DataError, MemoryBudgetError, UnsupportedOperationError
from marquis.structures import Diagonal, Full

Loss = Callable[[Tensor, Tensor], Tensor]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def build(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


def mlp(outputs: int = 3) -> nn.Module:
    return build(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)))


def conv(outputs: int = 3) -> nn.Module:
    return build(lambda: nn.Sequential(nn.Conv2d(1, 2, 2, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(32, outputs)))


def oracle(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Dense Hessian of the summed loss, and its residual term `Σ r_no ∇² f_o`, both by `torch.func`."""
    own = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [p.numel() for p in own.values()]

    def outputs(theta: Tensor) -> Tensor:
        parts = zip(own.items(), theta.split(sizes), strict=True)
        return functional_call(model, {name: part.reshape(p.shape) for (name, p), part in parts}, (x,))

    theta = torch.cat([p.reshape(-1) for p in own.values()])
    total = torch.func.hessian(lambda t: loss(outputs(t), y))(theta)
    residual = torch.func.grad(loss)(outputs(theta), y)
    dropped = torch.func.hessian(lambda t: (residual * outputs(t)).sum())(theta)
    return total, dropped


def gaussian_loss(f: Tensor, y: Tensor) -> Tensor:
    return 0.5 * ((f - y) ** 2).sum()


def bernoulli_loss(f: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(f, y, reduction="sum")


def categorical_loss(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y, reduction="sum")


LOSSES: dict[str, Loss] = {
    "gaussian": gaussian_loss,
    "bernoulli": bernoulli_loss,
    "categorical": categorical_loss,
}


def labels(name: str, count: int, seed: int = 2) -> Tensor:
    if name == "categorical":
        return torch.randint(3, (count,), generator=torch.Generator().manual_seed(seed))
    y = randn(count, 3, seed=seed)
    return (y > 0).double() if name == "bernoulli" else y


def data(network: str, count: int = 6) -> tuple[nn.Module, Tensor]:
    return (mlp(), randn(count, 4, seed=1)) if network == "mlp" else (conv(), randn(count, 1, 3, 3, seed=1))


def close(actual: Tensor, expected: Tensor, relative: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=relative * float(expected.abs().max()))


@pytest.mark.parametrize("network", ["mlp", "conv"])
@pytest.mark.parametrize("name", LOSSES)
def test_full_and_diagonal_match_torch(name: str, network: str):
    model, x = data(network)
    y = labels(name, len(x))
    dense, _ = oracle(model, x, y, LOSSES[name])
    full = hessian(model, x, y, name, "full")
    assert isinstance(full, Full)
    close(full.to_dense(), dense)
    diagonal = hessian(model, x, y, name)
    assert isinstance(diagonal, Diagonal)
    close(diagonal.diagonal(), dense.diagonal())
    assert full.layout.names == tuple(name for name, _ in model.named_parameters())


def test_heteroscedastic_has_its_true_hessian_not_its_fisher():
    model, x, y = mlp(4), randn(6, 4, seed=1), randn(6, 2, seed=2)

    def loss(f: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = f.chunk(2, dim=1)
        return 0.5 * (log_variance + (y - mean) ** 2 * torch.exp(-log_variance)).sum()

    close(hessian(model, x, y, mq.Heteroscedastic(), "full").to_dense(), oracle(model, x, y, loss)[0])


# ---- Hessian = GGN + residual term


@pytest.mark.parametrize("network", ["mlp", "conv"])
@pytest.mark.parametrize("name", LOSSES)
def test_hessian_is_ggn_plus_the_residual_term_which_matters(name: str, network: str):
    model, x = data(network)
    y = labels(name, len(x))
    ggn = operator(model, [(x, y)], name).to_dense()
    dropped = oracle(model, x, y, LOSSES[name])[1]
    full = hessian(model, x, y, name, "full").to_dense()
    close(full, ggn + dropped)
    assert dropped.norm() > 1e-2 * full.norm()


@pytest.mark.parametrize("name", LOSSES)
def test_hessian_equals_ggn_where_the_model_is_linear_in_its_parameters(name: str):
    def polynomial(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.cat([x, x**2, x**3], dim=1) @ p["w"] + p["b"]

    params, x = {"w": randn(6, 3, seed=3), "b": randn(3, seed=4)}, randn(5, 2, seed=5)
    y = labels(name, 5)
    full = hessian(polynomial, x, y, name, "full", params=params).to_dense()
    close(full, operator(polynomial, [x], name, params=params).to_dense())
    # The last layer of a nonlinear network is linear in its own parameters.
    model, x = data("mlp")
    y = labels(name, len(x))
    last = hessian(model, x, y, name, "full", parameters="2.*").to_dense()
    close(last, operator(model, [x], name, parameters="2.*").to_dense())


def test_hessian_equals_ggn_without_residuals():
    model, x = data("mlp")
    y = model(x).detach()
    ggn = operator(model, [x], "gaussian").to_dense()
    close(hessian(model, x, y, "gaussian", "full").to_dense(), ggn)
    shifted = hessian(model, x, y + 0.1, "gaussian", "full").to_dense()
    assert (shifted - ggn).norm() > 1e-3 * ggn.norm()


# ---- options


@pytest.mark.parametrize("vectors_per_pass", [1, 5, 1000])
def test_vectors_per_pass_do_not_matter(vectors_per_pass: int):
    model, x = data("mlp")
    y = labels("categorical", len(x))
    full = hessian(model, x, y, "categorical", "full", vectors_per_pass=vectors_per_pass)
    close(full.to_dense(), oracle(model, x, y, categorical_loss)[0])
    diagonal = hessian(model, x, y, "categorical", vectors_per_pass=vectors_per_pass)
    close(diagonal.diagonal(), full.to_dense().diagonal())


def test_a_subset_is_a_block():
    model, x = data("mlp")
    y = labels("categorical", len(x))
    full = hessian(model, x, y, "categorical", "full").to_dense()
    first = hessian(model, x, y, "categorical", "full", parameters="0.*")
    close(first.to_dense(), full[:25, :25])
    bias = hessian(model, x, y, "categorical", parameters=["0.bias"])
    close(bias.diagonal(), full.diagonal()[20:25])


def test_batches_add_up():
    model, x = data("mlp")
    y = labels("categorical", len(x))
    whole = hessian(model, x, y, "categorical", "full").to_dense()
    parts = sum(hessian(model, x[i : i + 1], y[i : i + 1], "categorical", "full").to_dense() for i in range(len(x)))
    assert isinstance(parts, Tensor)
    close(parts, whole, 1e-12)


def test_other_values_for_a_modules_parameters():
    model, x = data("mlp")
    other = mlp()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    y = labels("categorical", len(x))
    values = dict(other.named_parameters())
    here = hessian(model, x, y, "categorical", "full", params=values).to_dense()
    assert torch.equal(here, hessian(other, x, y, "categorical", "full").to_dense())


def test_nothing_is_mutated():
    model, x = data("conv")
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with torch.no_grad():
        result = hessian(model, x, labels("gaussian", len(x)), "gaussian")
    assert not result.diagonal().requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_misuse_is_explained():
    model, x = data("mlp")
    y = labels("gaussian", len(x))
    with pytest.raises(UnsupportedOperationError, match="kronecker"):
        hessian(model, x, y, "gaussian", "kronecker")
    with pytest.raises(DataError, match="labels"):
        hessian(model, x, None, "gaussian")
    with pytest.raises(DataError, match="y holds"):
        hessian(model, x, y / 0, "gaussian")
    with pytest.raises(DataError, match="x holds"):
        hessian(model, x / 0, y, "gaussian")
    with pytest.raises(DataError, match="shape"):
        hessian(model, x, y[:, :1], "gaussian")
    with pytest.raises(DataError, match="empty"):
        hessian(model, x[:0], y[:0], "gaussian")
    with pytest.raises(DataError, match="vectors_per_pass"):
        hessian(model, x, y, "gaussian", vectors_per_pass=0)
    with pytest.raises(MemoryBudgetError, match="10251"):
        hessian(nn.Linear(200, 51).double(), randn(2, 200), randn(2, 51), "gaussian", "full")
    with pytest.raises(UnsupportedOperationError, match="Dropout"):
        hessian(nn.Sequential(model, nn.Dropout()), x, y, "gaussian")


def test_inference_mode_of_the_caller_changes_nothing() -> None:
    """Autograd has to work although the caller, and the tensors it made, are under `torch.inference_mode()`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double().eval()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randint(0, 2, (5,))
    expected = hessian(model, x, y, "categorical", "full").to_dense()
    with torch.inference_mode():
        result = hessian(model, x.clone(), y.clone(), "categorical", "full").to_dense()
        products = operator(model, [(x.clone(), y.clone())], "categorical", kind="hessian").to_dense()
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(products, expected, rtol=1e-10, atol=1e-12)

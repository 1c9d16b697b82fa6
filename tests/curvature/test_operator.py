"""Products over a loader against dense matrices from `torch.func`, in float64."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import marquis as mq
from helpers.processes import in_processes
from marquis.curvature.linop.operator import CurvatureOperator, operator
from marquis.errors import DataError, MemoryBudgetError, ModelMismatchError, NumericalError, UnsupportedOperationError
from marquis.functional.selection import SelectionError
from marquis.structures import Diagonal

N = 20


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def build(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network in float64 whose weights do not depend on (or change) the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double().eval()


def mlp(outputs: int = 3) -> nn.Module:
    return build(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)))


def conv(outputs: int = 3) -> nn.Module:
    return build(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.AvgPool2d(2, padding=1),
            nn.Flatten(),
            nn.Linear(16, outputs),
        )
    )


def segmenter() -> nn.Module:
    return build(lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Softplus(), nn.Conv2d(3, 3, 1)))


def batches(x: Tensor, y: Tensor | None, size: int) -> list[Any]:
    if y is None:
        return list(x.split(size))
    return list(zip(x.split(size), y.split(size), strict=True))


# ---- the dense oracle: nothing here goes through the code under test


def flat(model: nn.Module, names: list[str] | None = None) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The chosen parameters as one vector, and the outputs as a function of that vector."""
    own = {name: p.detach() for name, p in model.named_parameters()}
    names = list(own) if names is None else names
    vector = torch.cat([own[name].reshape(-1) for name in names])

    def outputs(theta: Tensor, x: Tensor) -> Tensor:
        parts = theta.split([own[name].numel() for name in names])
        chosen = {name: part.reshape(own[name].shape) for name, part in zip(names, parts, strict=True)}
        return functional_call(model, {**own, **chosen}, (x,))

    return vector, outputs


def jacobian(model: nn.Module, x: Tensor, names: list[str] | None = None) -> Tensor:
    """`[N, O, P]`."""
    theta, outputs = flat(model, names)
    full = torch.func.jacrev(outputs)(theta, x)
    return full.reshape(x.shape[0], -1, theta.numel())


def negative_log_likelihood(name: str, f: Tensor, y: Tensor) -> Tensor:
    """Summed over everything, written without the library."""
    if name == "gaussian":
        return 1.25 * ((f - y) ** 2).sum()
    if name == "gaussian-matrix":
        return 0.5 * torch.einsum("no,op,np->", f - y, MATRIX, f - y)
    if name == "bernoulli":
        return F.binary_cross_entropy_with_logits(f, y, reduction="sum")
    if name in ("categorical", "pixels"):
        return F.cross_entropy(f, y, reduction="sum")
    mean, log_variance = f.chunk(2, dim=1)
    return 0.5 * (log_variance + (y - mean) ** 2 * torch.exp(-log_variance)).sum()


def dense_ggn(case: Case) -> Tensor:
    f = case.model(case.x).detach()
    J = jacobian(case.model, case.x)
    if case.name == "heteroscedastic":
        s = f.chunk(2, dim=1)[1]
        L = torch.diag_embed(torch.cat([torch.exp(-s), torch.full_like(s, 0.5)], dim=1))
    else:
        L = torch.stack(
            [
                torch.func.hessian(lambda out, y=y: negative_log_likelihood(case.name, out[None], y[None]))(out)
                for out, y in zip(f, case.y, strict=True)
            ]
        )
        L = L.reshape(len(f), f[0].numel(), f[0].numel())
    return torch.einsum("nop,noq,nqr->pr", J, L, J)


def dense_hessian(case: Case) -> Tensor:
    theta, outputs = flat(case.model)
    return torch.func.hessian(lambda t: negative_log_likelihood(case.name, outputs(t, case.x), case.y))(theta)


def dense_empirical_fisher(case: Case) -> Tensor:
    theta, outputs = flat(case.model)
    per_datum = torch.stack(
        [
            torch.func.grad(
                lambda t, i=i: negative_log_likelihood(case.name, outputs(t, case.x[i : i + 1]), case.y[i : i + 1])
            )(theta)
            for i in range(len(case.x))
        ]
    )
    return per_datum.T @ per_datum


MATRIX = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.5, 0.3], [0.1, 0.3, 1.0]], dtype=torch.float64)


class Case:
    """A model, data and a likelihood, by name."""

    def __init__(self, name: str, network: str = "mlp", size: int = N) -> None:
        self.name = name
        self.x = randn(size, 4, seed=1) if network == "mlp" else randn(size, 2, 5, 5, seed=1)
        if name == "pixels":
            self.x = randn(size, 2, 3, 2, seed=1)
            self.model = segmenter()
            self.y = torch.randint(3, (size, 3, 2), generator=generator(2))
            self.likelihood: Any = mq.Categorical(dim=1)
            return
        outputs = 4 if name == "heteroscedastic" else 3
        self.model = mlp(outputs) if network == "mlp" else conv(outputs)
        self.y = randn(size, 3, seed=2)
        if name == "gaussian":
            self.likelihood = mq.Gaussian(2.5)
        elif name == "gaussian-matrix":
            self.likelihood = mq.Gaussian(precision_matrix=MATRIX)
        elif name == "bernoulli":
            self.likelihood = "bernoulli"
            self.y = (self.y > 0).double()
        elif name == "categorical":
            self.likelihood = "categorical"
            self.y = torch.randint(3, (size,), generator=generator(2))
        else:
            self.likelihood = mq.Heteroscedastic()
            self.y = randn(size, 2, seed=2)

    def operator(self, kind: str = "ggn", batch: int = 7, **options: Any) -> CurvatureOperator:
        options.setdefault("vectors_per_pass", 64)  # networks here are tiny
        return operator(self.model, batches(self.x, self.y, batch), self.likelihood, kind, **options)


CASES = [
    ("gaussian", "mlp"),
    ("gaussian-matrix", "mlp"),
    ("bernoulli", "mlp"),
    ("categorical", "mlp"),
    ("heteroscedastic", "mlp"),
    ("gaussian", "conv"),
    ("categorical", "conv"),
    ("pixels", "conv"),
]
DENSE = {"ggn": dense_ggn, "hessian": dense_hessian, "empirical-fisher": dense_empirical_fisher}


def close(actual: Tensor, expected: Tensor, relative: float = 1e-10) -> None:
    """Relative to the largest entry, as a matrix has entries that vanish."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=relative * float(expected.abs().max()))


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize(("name", "network"), CASES)
def test_products_match_the_dense_matrix(name: str, network: str, kind: str):
    case = Case(name, network)
    dense = DENSE[kind](case)
    op = case.operator(kind)
    assert op.shape == dense.shape
    assert op.num_data == N
    v = randn(5, op.size, seed=3)
    close(op @ v, v @ dense)
    close(op.to_dense(), dense)


@pytest.mark.parametrize(("name", "network"), CASES)
def test_fisher_matches_its_own_labels(name: str, network: str):
    case = Case(name, network)
    op = case.operator("fisher", generator=generator(5))
    columns = []
    for index, x in enumerate(case.x.split(7)):
        f = case.model(x).detach()
        r = op.likelihood.fisher_column(f, op._label_generator(index)).flatten(start_dim=1)
        columns.append(torch.einsum("nop,no->np", jacobian(case.model, x), r))
    g = torch.cat(columns)
    close(op.to_dense(), g.T @ g)
    assert torch.linalg.matrix_rank(op.to_dense()) <= N


def test_fisher_is_a_fixed_matrix_that_depends_on_the_seed_only():
    case = Case("categorical")
    first = case.operator("fisher", generator=generator(1))
    dense = first.to_dense()
    torch.rand(3)  # the global generator moves on; the matrix does not
    assert torch.equal(first.to_dense(), dense)
    assert torch.equal(case.operator("fisher", generator=generator(1)).to_dense(), dense)
    assert not torch.allclose(case.operator("fisher", generator=generator(2)).to_dense(), dense)


def test_labels_of_two_batches_with_the_same_data_differ():
    case = Case("gaussian", size=4)
    op = operator(case.model, [case.x, case.x], case.likelihood, "fisher", generator=generator(3))
    assert torch.linalg.matrix_rank(op.to_dense()) == 8  # rank 4 if the noise were repeated


@pytest.mark.parametrize("name", ["bernoulli", "categorical"])
def test_empirical_fisher_averaged_over_the_models_own_labels_is_the_ggn(name: str):
    case = Case(name, size=3)
    case.model = mlp(1) if name == "bernoulli" else case.model
    f = case.model(case.x).detach()
    probs = torch.cat([1 - f.sigmoid(), f.sigmoid()], dim=1) if name == "bernoulli" else f.softmax(dim=1)
    expected = 0
    for label in range(probs.shape[1]):
        for n in range(3):
            y = torch.full((1, 1), float(label)).double() if name == "bernoulli" else torch.tensor([label])
            op = operator(case.model, [(case.x[n : n + 1], y)], name, "empirical-fisher", check=False)
            expected = expected + probs[n, label] * op.to_dense()
    assert isinstance(expected, Tensor)
    close(operator(case.model, [case.x], name).to_dense(), expected)


def test_empirical_fisher_is_another_matrix_than_the_ggn():
    case = Case("categorical")
    ggn, empirical = case.operator().to_dense(), case.operator("empirical-fisher").to_dense()
    assert (ggn - empirical).norm() > 0.05 * ggn.norm()


# ---- sums, shapes, subsets


@pytest.mark.parametrize("kind", DENSE)
def test_batch_sizes_do_not_matter(kind: str):
    case = Case("categorical")
    v = randn(2, case.operator(check=False).size, seed=3)
    whole = case.operator(kind, batch=N) @ v
    for size in (1, 7):
        torch.testing.assert_close(case.operator(kind, batch=size) @ v, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("vectors_per_pass", [1, 3, 64])
def test_vectors_per_pass_do_not_matter(vectors_per_pass: int):
    case = Case("categorical", "conv")
    for kind in ("ggn", "hessian", "fisher"):
        op = case.operator(kind, generator=generator(1), vectors_per_pass=vectors_per_pass)
        v = randn(2, 2, op.size, seed=3)
        one_by_one = torch.stack([op @ row for row in v.reshape(4, -1)]).reshape(v.shape)
        torch.testing.assert_close(op @ v, one_by_one, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("2.*", ["2.weight", "2.bias"]),
        (["0.bias"], ["0.bias"]),
        (["2.weight", "0.bias"], ["0.bias", "2.weight"]),  # in the model's order
        (lambda name, tensor: tensor.ndim == 1, ["0.bias", "2.bias"]),
    ],
)
def test_a_subset_of_parameters_is_a_block_of_the_matrix(parameters: Any, names: list[str]):
    case = Case("categorical")
    op = case.operator(parameters=parameters)
    assert list(op.layout.names) == names
    J = jacobian(case.model, case.x, names)
    p = case.model(case.x).detach().softmax(dim=1)
    L = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    close(op.to_dense(), torch.einsum("nop,noq,nqr->pr", J, L, J))


def test_frozen_parameters_are_left_out():
    case = Case("gaussian")
    case.model[0].weight.requires_grad_(False)  # pyright: ignore
    assert "0.weight" not in case.operator().layout.names
    assert case.operator(parameters=["0.weight"]).layout.names == ("0.weight",)


def test_a_parameter_without_influence_has_zero_curvature():
    class WithSpare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(2))
            self.used = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = build(WithSpare)
    for kind in ("ggn", "hessian", "fisher"):
        op = operator(model, [(randn(5, 4), randn(5, 1, seed=1))], "gaussian", kind)
        assert torch.equal((op @ torch.ones(3, op.size).double())[:, :2], torch.zeros(3, 2).double())


def test_tied_weights_count_once_with_their_cross_terms():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(4, 2, bias=False)
            self.decoder = nn.Linear(2, 4, bias=False)
            self.decoder.weight = nn.Parameter(torch.zeros(4, 2))
            self.again = self.encoder

        def forward(self, x: Tensor) -> Tensor:
            code = torch.tanh(self.encoder(x))
            return self.again(F.linear(code, self.encoder.weight.T) + self.decoder(code))

    model, x = build(Tied), randn(6, 4)
    op = operator(model, [x], "gaussian")
    J = jacobian(model, x)
    assert op.layout.names == ("encoder.weight", "decoder.weight")
    close(op.to_dense(), torch.einsum("nop,noq->pq", J, J))


def test_a_function_with_parameters_and_structured_inputs():
    params = {"w": randn(3, 2, seed=4), "b": randn(2, seed=5)}

    def function(p: dict[str, Tensor], x: dict[str, Tensor]) -> Tensor:
        return torch.sin(x["left"] @ p["w"] + p["b"]) * x["right"]

    left, right = randn(5, 3, seed=6), randn(5, 2, seed=7)
    loader = [{"left": left[:2], "right": right[:2]}, {"left": left[2:], "right": right[2:]}]
    op = operator(function, loader, "gaussian", params=params)
    J = torch.func.jacrev(function)(params, {"left": left, "right": right})
    J = torch.cat([J["w"].reshape(5, 2, 6), J["b"]], dim=2)
    close(op.to_dense(), torch.einsum("nop,noq->pq", J, J))
    assert not any(p.requires_grad for p in params.values())


def test_several_inputs_and_dictionaries_reach_a_module():
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a) * b

    model, a, b, y = build(TwoInputs), randn(5, 3), randn(5, 2, seed=1), randn(5, 2, seed=2)
    as_tuple = operator(model, [((a, b), y)], "gaussian", "hessian")
    as_dict = operator(model, [{"b": b, "a": a, "labels": y}], "gaussian", "hessian")
    assert torch.equal(as_tuple.to_dense(), as_dict.to_dense())


def test_attention_layers_can_be_differentiated_twice():
    layer = build(lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True))
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2).double()).eval()
    x = randn(3, 3, 4)
    J = jacobian(model, x)
    for vectors_per_pass in (1, 64):
        op = operator(model, [x], "gaussian", vectors_per_pass=vectors_per_pass)
        close(op.to_dense(), torch.einsum("nop,noq->pq", J, J))


def test_recurrent_layers():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 2, batch_first=True), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    model, x = build(Recurrent), randn(4, 3, 3)
    J = jacobian(model, x)
    close(operator(model, [x], "gaussian").to_dense(), torch.einsum("nop,noq->pq", J, J))


def test_outputs_without_a_feature_dimension():
    model = build(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))
    x, y = randn(6, 4), randn(6, seed=1)
    J = jacobian(model, x)
    close(operator(model, [x], "gaussian").to_dense(), torch.einsum("nop,noq->pq", J, J))
    r = (model(x) - y).detach()
    g = J[:, 0] * r[:, None]
    close(operator(model, [(x, y)], "gaussian", "empirical-fisher").to_dense(), g.T @ g)


def test_dtype_converts_model_and_data_and_the_default_keeps_them():
    case = Case("categorical")
    single = copy.deepcopy(case.model).float()
    loader = batches(case.x.float(), case.y, 7)
    low = operator(single, loader, "categorical")
    assert low.dtype == torch.float32
    high = operator(single, loader, "categorical", dtype=torch.float64)
    assert high.dtype == torch.float64
    v = randn(high.size)
    torch.testing.assert_close((low @ v.float()).double(), high @ v, rtol=1e-4, atol=1e-4)
    assert (low @ v).dtype == torch.float32


# ---- algebra and the iterative methods on real curvature


def test_sums_and_multiples():
    case = Case("categorical")
    ggn, hessian = case.operator(), case.operator("hessian")
    v = randn(3, ggn.size)
    close((2 * ggn + hessian * 0.5) @ v, 2 * (ggn @ v) + 0.5 * (hessian @ v))
    with pytest.raises(ModelMismatchError):
        _ = ggn + case.operator(parameters="0.*")
    with pytest.raises(TypeError):
        _ = ggn + 1  # pyright: ignore
    with pytest.raises(TypeError):
        _ = ggn * ggn  # pyright: ignore


def test_solve_with_scalar_and_per_parameter_shift():
    case = Case("categorical")
    op, dense = case.operator(), dense_ggn(case)
    v = randn(2, 3, op.size)
    for shift in (0.7, torch.linspace(0.1, 3, op.size).double()):
        matrix = dense + torch.diag(torch.as_tensor(shift, dtype=torch.float64).expand(op.size))
        expected = torch.linalg.solve(matrix, v.reshape(6, -1).T).T.reshape(v.shape)
        close(op.solve(v, shift=shift, tol=1e-12), expected, 1e-9)


def test_preconditioned_solve_is_the_same_solution():
    case = Case("categorical")
    op = case.operator()
    v = randn(op.size)
    diagonal = dense_ggn(case).diagonal() + 0.1

    structure = Diagonal(op.layout, diagonal)
    expected = op.solve(v, shift=0.1, tol=1e-12)
    close(op.solve(v, shift=0.1, tol=1e-12, preconditioner=structure), expected, 1e-9)
    close(op.solve(v, shift=0.1, tol=1e-12, preconditioner=lambda r: r / diagonal), expected, 1e-9)
    for rank in (5, 10_000):  # more than there are parameters: the matrix itself
        approximation = op.nystrom(rank, generator=torch.Generator().manual_seed(0))
        close(op.solve(v, shift=0.1, tol=1e-12, preconditioner=approximation.preconditioner(0.1)), expected, 1e-9)
    close((approximation.vectors.T * approximation.values) @ approximation.vectors, op.to_dense(), 1e-8)
    op.solve(v, shift=0.1, tol=1e-6, max_iterations=2, preconditioner=approximation.preconditioner(0.1))
    with pytest.raises(NumericalError, match="iterations"):
        op.solve(v, shift=0.1, tol=1e-6, max_iterations=2)


def test_solve_refuses_what_it_cannot_do():
    case = Case("categorical")
    op = case.operator(batch=N)
    with pytest.raises(NumericalError):  # singular: N (C - 1) = 40 < P = 43
        op.solve(randn(op.size))
    with pytest.raises(NumericalError, match="after 1 iterations"):
        op.solve(randn(op.size), shift=0.1, max_iterations=1)
    with pytest.raises(DataError, match="shift"):
        op.solve(randn(op.size), shift=-1.0)
    with pytest.raises(DataError, match="shift"):
        op.solve(randn(op.size), shift=torch.ones(3))


def test_trace_diagonal_and_logdet_with_exact_probes():
    case = Case("categorical")
    op, dense = case.operator(batch=N), dense_ggn(case)
    probes = op.size**0.5 * torch.eye(op.size, dtype=torch.float64)
    close(op.trace(probes).value, dense.trace())
    close(op.diagonal(probes).value, dense.diagonal())
    for shift in (0.3, torch.linspace(0.1, 3, op.size).double()):
        matrix = dense + torch.diag(torch.as_tensor(shift, dtype=torch.float64).expand(op.size))
        estimate = op.logdet(probes, steps=op.size, shift=shift)
        close(estimate.value, torch.linalg.slogdet(matrix)[1], 1e-9)
    close(op.spectrum(op.size, probes).integrate(torch.square).value, (dense @ dense).trace(), 1e-9)


def test_random_probes_are_seeded_and_report_their_error():
    op = Case("categorical").operator()
    estimate = op.trace(50, generator=generator(1))
    again = op.trace(50, generator=generator(1))
    assert float(estimate) == float(again)
    exact = dense_ggn(Case("categorical")).trace()
    assert abs(float(estimate) - float(exact)) < 5 * float(estimate.standard_error)
    assert 0 < float(estimate.standard_error) < 0.2 * float(exact)


def test_logdet_refuses_a_singular_matrix_and_a_shift_that_is_too_small():
    case = Case("categorical")
    with pytest.raises(NumericalError, match="shift"):
        case.operator(batch=N).logdet(steps=100, generator=generator(1))
    assert torch.linalg.eigvalsh(dense_hessian(case))[0] < -0.01
    with pytest.raises(NumericalError, match="shift"):
        case.operator("hessian", batch=N).logdet(steps=100, shift=1e-6, generator=generator(1))
    with pytest.raises(DataError, match="shift"):
        case.operator().logdet(shift=torch.zeros(43))


def test_top_eigenvalues():
    case = Case("categorical")
    op = case.operator()
    values, vectors = op.eigsh_top(3, generator=generator(1))
    close(values, torch.linalg.eigvalsh(dense_ggn(case)).flip(0)[:3])
    close(op @ vectors, values[:, None] * vectors, 1e-7)
    with pytest.raises(DataError, match="eigenvalues"):
        op.eigsh_top(0)


def test_as_scipy():
    sparse = pytest.importorskip("scipy.sparse.linalg")
    case = Case("categorical")
    dense = dense_ggn(case)
    scipy_operator = case.operator().as_scipy()
    top = sparse.eigsh(scipy_operator, k=2, return_eigenvectors=False, v0=randn(dense.shape[0]).numpy())
    close(torch.as_tensor(top.copy()), torch.linalg.eigvalsh(dense)[-2:])
    columns = randn(dense.shape[0], 3)
    close(torch.as_tensor(scipy_operator @ columns.numpy()), dense @ columns)


# ---- nothing of the user's changes


def test_nothing_is_mutated():
    case = Case("categorical", "conv")
    model = case.model
    model[1].weight.requires_grad_(False)  # pyright: ignore
    before = copy.deepcopy(model.state_dict())
    flags = [p.requires_grad for p in model.parameters()]
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=7, shuffle=True)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        state = torch.get_rng_state()
        for kind in ("ggn", "hessian", "fisher", "empirical-fisher"):
            chosen = DataLoader(loader.dataset, batch_size=7) if kind == "fisher" else loader
            op = operator(model, chosen, "categorical", kind, generator=generator(1))
            op.trace(2, generator=generator(1))
            op.solve(torch.ones(op.size), shift=100.0, tol=1e-2) if kind != "hessian" else None
        assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert not any(module.training for module in model.modules())


def test_a_forward_that_writes_into_a_buffer_touches_neither_model_nor_matrix():
    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return self.layer(x) * self.calls.item()

    model, x = build(Counting), randn(6, 4)
    op = operator(model, list(x.split(2)), "gaussian")
    assert model.calls == 0
    J = jacobian(build(lambda: nn.Linear(4, 2)), x)
    close(op.to_dense(), torch.einsum("nop,noq->pq", J, J))


def test_the_matrix_stays_when_the_model_trains_on():
    case = Case("gaussian")
    op = case.operator()
    v = randn(op.size)
    before = op @ v
    with torch.no_grad():
        case.model[0].weight.add_(1.0)  # pyright: ignore
    assert torch.equal(op @ v, before)


def test_gradient_mode_around_the_call_does_not_matter():
    case = Case("gaussian")
    with torch.no_grad():
        op = case.operator()
        quiet = op @ torch.ones(op.size).double()
    with torch.inference_mode():
        inside = case.operator() @ torch.ones(op.size).double()
    loud = op @ torch.ones(op.size).double()
    assert torch.equal(quiet, loud)
    assert torch.equal(inside, loud)
    assert not loud.requires_grad


# ---- refusals


def test_train_mode_batch_norm_is_refused_by_name():
    model = conv().train()
    with pytest.raises(UnsupportedOperationError, match=r"'1' \(BatchNorm2d\)"):
        operator(model, [randn(4, 2, 5, 5)], "gaussian")
    without_statistics = build(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)))
    with pytest.raises(UnsupportedOperationError, match=r"'1' \(BatchNorm1d\)"):
        operator(without_statistics, [randn(4, 4)], "gaussian")


def test_dropout_is_refused_by_name_and_found_where_it_has_none():
    model = build(lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))).train()
    with pytest.raises(UnsupportedOperationError, match=r"'1' \(Dropout\)"):
        operator(model, [randn(4, 4)], "gaussian")
    operator(model.eval(), [randn(4, 4)], "gaussian")

    def noisy(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.dropout(x @ p["w"], 0.5)

    with pytest.raises(UnsupportedOperationError, match="differ"):
        operator(noisy, [randn(4, 4)], "gaussian", params={"w": randn(4, 3)})


def test_data_that_influence_each_other_are_refused():
    def batch_statistics(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.batch_norm(x @ p["w"], None, None, training=True)

    with pytest.raises(UnsupportedOperationError, match="rest of its batch"):
        operator(batch_statistics, [randn(8, 4)], "gaussian", params={"w": randn(4, 3)})

    def one_batch_size_only(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return x.reshape(8, 4) @ p["w"]

    operator(one_batch_size_only, [randn(8, 4)], "gaussian", params={"w": randn(4, 3)})


def test_loaders_that_cannot_be_iterated_again():
    model, x = mlp(), randn(4, 4)
    with pytest.raises(DataError, match="one-shot"):
        operator(model, iter([x]), "gaussian")
    with pytest.raises(DataError, match="one-shot"):
        operator(model, (batch for batch in [x]), "gaussian")

    class Once:
        def __init__(self) -> None:
            self.source = iter([x])

        def __iter__(self) -> Iterator[Tensor]:
            yield from self.source

    with pytest.raises(DataError, match="no batches"):
        operator(model, Once(), "gaussian")

    class Shrinking:
        length = 3

        def __iter__(self) -> Iterator[Tensor]:
            self.length -= 1
            yield from [x] * (self.length + 1)

    with pytest.raises(DataError, match="in this pass"):
        operator(model, Shrinking(), "gaussian")


def test_shuffling_is_fine_for_a_sum_and_refused_where_it_changes_it():
    case = Case("categorical")
    data = TensorDataset(case.x, case.y)
    shuffled = DataLoader(data, batch_size=7, shuffle=True, generator=generator(1))
    close(operator(case.model, shuffled, "categorical").to_dense(), dense_ggn(case))
    dropping = DataLoader(data, batch_size=7, shuffle=True, drop_last=True, generator=generator(1))
    with pytest.raises(UnsupportedOperationError, match="drop_last"):
        operator(case.model, dropping, "categorical")
    with pytest.raises(UnsupportedOperationError, match="fisher"):
        operator(case.model, shuffled, "categorical", "fisher", generator=generator(1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_data_is_named(bad: float):
    model, x = mlp(), randn(4, 4)
    spoilt = x.clone()
    spoilt[2, 1] = bad
    with pytest.raises(DataError, match="x holds 1 NaN or infinite"):
        operator(model, [x, spoilt], "gaussian")
    labels = torch.zeros(4, 3).double()
    labels[0, 0] = bad
    with pytest.raises(DataError, match="y holds 1 NaN or infinite"):
        operator(model, [(x, labels)], "gaussian", "hessian")
    with torch.no_grad():
        model[0].weight[0, 0] = bad  # pyright: ignore
        model[2].weight[:] = bad  # pyright: ignore
    with pytest.raises(DataError, match="NaN or infinite outputs"):
        operator(model, [x], "gaussian")


def test_other_misuse_is_explained():
    case = Case("categorical")
    with pytest.raises(UnsupportedOperationError, match="kind='gnn'"):
        case.operator("gnn")
    with pytest.raises(DataError, match="no batches"):
        operator(case.model, [], "categorical")
    with pytest.raises(DataError, match="no labels"):
        operator(case.model, [case.x], "categorical", "hessian")
    with pytest.raises(DataError, match="between 0 and 2"):
        operator(case.model, [(case.x, case.y + 1)], "categorical", "hessian")
    with pytest.raises(DataError, match="3 items"):
        operator(case.model, [(case.x, case.y, case.y)], "categorical")
    with pytest.raises(DataError, match="last dimension"):
        _ = case.operator() @ torch.ones(3)
    with pytest.raises(SelectionError, match=r"0\.weight"):
        case.operator(parameters=["0.wieght"])
    with pytest.raises(DataError, match="vectors_per_pass"):
        case.operator(vectors_per_pass=0)
    with pytest.raises(DataError, match="probes"):
        case.operator().trace(0)
    turned = nn.Sequential(nn.Linear(4, 3), nn.Flatten(0), nn.Unflatten(0, (3, -1))).double()
    with pytest.raises(DataError, match="dimension 0"):
        operator(turned, [case.x], "gaussian")
    big = operator(nn.Linear(200, 51).double(), [randn(1, 200)], "gaussian", check=False)
    with pytest.raises(MemoryBudgetError, match="10251"):
        big.to_dense()


def test_a_module_that_returns_several_outputs_is_refused():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    with pytest.raises(UnsupportedOperationError, match="returns a tuple"):
        operator(build(Two), [randn(3, 4)], "gaussian")


@pytest.mark.parametrize("progress", [True, False])
def test_progress_shows_the_pass_on_a_terminal(progress: bool, monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("marquis.progress.PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    Case("gaussian").operator(progress=progress)
    assert ("ggn product" in sys.stderr.getvalue()) == progress  # type: ignore[attr-defined]


# ---- several processes


def _share(rank: int, folder: str) -> None:
    """What each process does; its results go into a file."""
    case = Case("categorical")
    rows = slice(0, 13) if rank == 0 else slice(13, N)
    loader = batches(case.x[rows], case.y[rows], 5)
    op = operator(case.model, loader, "categorical")
    v = randn(2, op.size, seed=3)
    fisher = operator(case.model, [case.x[:4]], "gaussian", "fisher", generator=generator(0))
    result = {
        "product": op @ v,
        "trace": op.trace(4, generator=generator(rank)).value,  # the probes are the first process's
        "alone": operator(case.model, loader, "categorical", distributed=False) @ v,
        "fisher rank": torch.linalg.matrix_rank(fisher.to_dense()),
        "message": "",
    }
    try:  # one process's bad data must not leave the other waiting
        operator(case.model, [case.x[:2] * (float("nan") if rank == 1 else 1.0)], "categorical")
    except DataError as error:
        result["message"] = str(error)
    torch.save(result, f"{folder}/{rank}.pt")


def test_two_processes_sum_their_shares(tmp_path: Path):
    in_processes(_share, tmp_path)
    case = Case("categorical")
    op = case.operator(batch=N)
    expected = op @ randn(2, op.size, seed=3)
    result = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for one in result:
        torch.testing.assert_close(one["product"], expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(one["trace"], op.trace(4, generator=generator(0)).value, rtol=1e-10, atol=0)
        assert not torch.allclose(one["alone"], expected)
        assert one["fisher rank"] == 8  # same data and seed in both processes, other labels
    assert "process 1 failed on its share of the data" in result[0]["message"]
    assert all("NaN" in one["message"] for one in result)  # the cause reaches the process whose data were fine

"""The exact GGN of whole networks against dense Jacobians: every structure, every likelihood, free-form networks."""

# ruff: noqa: E501 (tables: one case per line)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import RTOL, assert_matches, assert_structure, built, dense_ggn, double, rows
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from marquis.curvature.backward import walk
from networks import LeNet, Net, Residual, TiedAutoencoder, TiedLanguageModel, UNet

STRUCTURES = ("diagonal", "block", "full", "lowrank")


def one_column_at_a_time(self: walk.BackwardWalk, root: object, steps: object) -> int:
    return 1


def assert_exact(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, batches: list[Any], likelihood: Any = "gaussian", **options: Any
) -> None:
    """Every structure, with the engine's chunks and with the smallest."""
    named = dict(model.named_parameters())
    oracles = [dense_ggn(model, x, likelihood, **options) for x in batches]
    for structures in (STRUCTURES, ("diagonal", "full")):
        for x, oracle in zip(batches, oracles, strict=True):
            for structure in structures:
                assert_structure(ggn(model, x, likelihood, structure, **options), structure, oracle, named)
        monkeypatch.setattr(walk.BackwardWalk, "_columns_per_chunk", one_column_at_a_time)


def test_the_oracle_itself() -> None:
    """Rows by plain autograd are the Jacobian by torch.func.jacrev."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = double(3, 3)
    params = {name: p.detach() for name, p in model.named_parameters()}
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(params)
    expected = torch.cat([j.flatten(2) for j in jacobian.values()], 2)
    assert_matches(rows(model, x)[1], expected)


# --- networks ---------------------------------------------------------------------------------------------------------


def pooled(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A value that is pooled and also used otherwise, so that signs and factors show."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.c(x)
        return m.d(F.max_pool2d(function(h), 2)) + F.avg_pool2d(h, 2)

    return Net(forward, c=nn.Conv2d(1, 2, 3, padding=1), d=nn.Conv2d(2, 2, 1))


def quiet_branch(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.l(x))
    with torch.no_grad():
        gate = 2 * h.sigmoid()
    return m.k(h * gate + h.detach())


def overwritten(m: Any, x: Tensor) -> Tensor:
    h = m.l(x).clone()
    h[:, :2].mul_(3.0)
    return m.k(torch.tanh(h))


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def two_layers(function: Callable[..., Tensor], width: int = 4, second: int | None = None) -> Callable[[], nn.Module]:
    return lambda: Net(function, l=nn.Linear(3, width), k=nn.Linear(second or width, 2))


def picture(batch: int) -> Tensor:
    return double(batch, 1, 4, 4)


def vector(batch: int) -> Tensor:
    return double(batch, 3)


def sequence(batch: int) -> Tensor:
    return double(batch, 2, 3)


CONV = (nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 3, padding=1))
UP = nn.Upsample

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "residual, in place, used twice": (Residual, lambda b: double(b, 4)),
    "tied autoencoder": (TiedAutoencoder, lambda b: double(b, 5)),
    "tied embedding": (TiedLanguageModel, lambda b: torch.tensor([[1, 2], [2, 2], [4, 0]])[:b]),
    "u-net": (UNet, picture),
    "lenet": (LeNet, lambda b: double(b, 1, 8, 8)),
    "batch norm at the end": (sequential(*CONV, nn.BatchNorm2d(3)), picture),
    "upsampling at the end": (sequential(*CONV, UP(scale_factor=2)), picture),
    "pooling at the end": (sequential(*CONV, nn.MaxPool2d(2)), picture),
    "activation and pooling at the end": (sequential(*CONV, nn.Tanh(), nn.MaxPool2d(2)), picture),
    "upsampling to any size": (sequential(nn.Conv2d(1, 2, 2), UP(size=(7, 5)), nn.Conv2d(2, 1, 2)), picture),
    "upsampling by 2.1": (sequential(nn.Conv2d(1, 2, 2), UP(scale_factor=2.1), nn.Conv2d(2, 1, 2)), picture),
    "bilinear": (sequential(nn.Conv2d(1, 2, 2), UP(scale_factor=2, mode="bilinear"), nn.Conv2d(2, 1, 2)), picture),
    "adaptive pooling": (sequential(nn.Conv2d(1, 2, 2), nn.AdaptiveAvgPool2d(2), nn.Conv2d(2, 1, 2)), picture),
    "pixel shuffle": (sequential(nn.Conv2d(1, 4, 2), nn.PixelShuffle(2), nn.Conv2d(1, 1, 2)), picture),
    "flattened picture": (sequential(*CONV, nn.Flatten(), nn.Sigmoid()), picture),
    "pooled sum with itself": (lambda: pooled(lambda h: h + h), picture),
    "pooled difference": (lambda: pooled(lambda h: torch.sub(torch.ones(1, dtype=h.dtype), h)), picture),
    "pooled weighted sum": (lambda: pooled(lambda h: torch.add(torch.ones(1, dtype=h.dtype), h, alpha=2)), picture),
    "pooled square": (lambda: pooled(lambda h: h * h), picture),
    "pooled silu by hand": (lambda: pooled(lambda h: h * torch.sigmoid(h)), picture),
    "pooled twice, overlapping": (lambda: pooled(lambda h: F.max_pool2d(torch.tanh(h), 3, 1, 1)), picture),
    "pooled clamp": (lambda: pooled(lambda h: h.clamp(-0.2, 0.2)), picture),
    "no_grad and detach": (two_layers(quiet_branch), vector),
    "in place on a view": (two_layers(overwritten), vector),
    "gated halves": (two_layers(lambda m, x: m.k(torch.mul(*m.l(x).chunk(2, -1)).tanh()), 4, 2), vector),
    "slices": (two_layers(lambda m, x: m.k(m.l(x)[:, 1:3] * m.l(x)[:, :2] + m.l(x)[:, -1:]), 4, 2), vector),
    "fancy index": (two_layers(lambda m, x: m.k(m.l(x)[:, [0, 2, 2]]), 4, 3), vector),
    "where": (two_layers(lambda m, x: m.k(torch.where(m.l(x) > 0, m.l(x), 0.3 * m.l(x).square()))), vector),
    "normalised": (two_layers(lambda m, x: m.k(F.normalize(m.l(x), dim=-1))), vector),
    "one number out": (two_layers(lambda m, x: m.k(torch.tanh(m.l(x)))[:, 0]), vector),
    "unbind": (two_layers(lambda m, x: m.k(sum(m.l(x).unbind(1)))), sequence),
    "reshaped with the batch size": (
        two_layers(lambda m, x: m.k(m.l(x).reshape(x.shape[0], -1)), 4, 8), sequence,
    ),
    "batch merged with positions": (
        two_layers(lambda m, x: m.k(torch.tanh(m.l(x.reshape(-1, 3)))).reshape(-1, 2, 2)[:, 1]), sequence,
    ),
    "hypernetwork": (
        lambda: Net(lambda m, x: torch.bmm(m.l(x).view(-1, 2, 4), torch.tanh(m.k(x))[:, :, None])[..., 0],
                    l=nn.Linear(3, 8), k=nn.Linear(3, 4)), vector,
    ),
    "hypernetwork through matmul": (
        lambda: Net(lambda m, x: (m.l(x).view(-1, 2, 4) @ torch.tanh(m.k(x))[:, :, None]).flatten(1),
                    l=nn.Linear(3, 8), k=nn.Linear(3, 4)), vector,
    ),
    "two inputs": (
        lambda: Net(lambda m, a, c: m.l(a) * m.k(c), l=nn.Linear(3, 2), k=nn.Linear(2, 2)),
        lambda b: (double(b, 3), double(b, 2)),
    ),
    "dictionary": (
        lambda: Net(lambda m, a, c: m.l(a) + torch.tanh(m.k(c)), l=nn.Linear(3, 2), k=nn.Linear(2, 2)),
        lambda b: {"a": double(b, 3), "c": double(b, 2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, data = NETWORKS[name]
    assert_exact(monkeypatch, built(make()), [data(3), data(1)])


def test_a_function_with_parameters() -> None:
    params = {"w": double(2, 3), "b": double(2, seed=1), "unused": double(2, seed=2)}

    def function(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(x @ p["w"].t()) * p["b"]

    oracle = dense_ggn(function, double(3, 3), "bernoulli", params=params)
    for structure in STRUCTURES:
        ours = ggn(function, double(3, 3), "bernoulli", structure, params=params)
        assert_structure(ours, structure, oracle, {name: p for name, p in params.items()})
        assert float(ours.to_dense()[-2:].abs().max()) == 0


# --- likelihoods ------------------------------------------------------------------------------------------------------


class Poisson:
    """A user's own likelihood: only what the protocol asks for."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return (y * f - f.exp() - torch.lgamma(y + 1)).flatten(1).sum(1)

    def hessian_sqrt(self, f: Tensor) -> Tensor:
        outputs = f[0].numel()
        eye = torch.eye(outputs, dtype=f.dtype).reshape(outputs, 1, *f.shape[1:])
        return eye * (0.5 * f).exp()

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(f.detach().exp(), generator)

    def predictive(self, mean: Tensor, variance: Tensor) -> Tensor:
        return mean + variance


def precision() -> Tensor:
    root = double(3, 3)
    return root @ root.t() + torch.eye(3, dtype=torch.float64)


DENSE = sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
EVEN = sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
SOME = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1]], dtype=torch.bool)
PIXELS = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)) > 0.4

LIKELIHOODS: dict[str, tuple[Any, Callable[[], nn.Module], Callable[[int], Any], Tensor | None]] = {
    "gaussian": (mq.Gaussian(2.5), DENSE, vector, None),
    "gaussian, masked": (mq.Gaussian(2.5), DENSE, vector, SOME),
    "gaussian per output": (mq.Gaussian(torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)), DENSE, vector, None),
    "gaussian, full precision": (mq.Gaussian(precision_matrix=precision()), DENSE, vector, None),
    "bernoulli": ("bernoulli", DENSE, vector, None),
    "bernoulli, masked": ("bernoulli", DENSE, vector, SOME),
    "categorical": ("categorical", DENSE, vector, None),
    "categorical, masked": ("categorical", DENSE, vector, torch.tensor([True, False, True])),
    "heteroscedastic": ("heteroscedastic", EVEN, vector, None),
    "one's own": (Poisson(), DENSE, vector, None),
    "pixels": ("gaussian", sequential(*CONV), picture, None),
    "pixels, masked": ("gaussian", sequential(*CONV), picture, PIXELS[:, None]),
    "bernoulli pixels": ("bernoulli", sequential(*CONV), picture, None),
    "classes per pixel": (mq.Categorical(dim=1), sequential(*CONV), picture, None),
    "classes per pixel, masked": (mq.Categorical(dim=1), sequential(*CONV), picture, PIXELS),
    "classes per pixel, upsampled": (mq.Categorical(dim=1), sequential(*CONV, UP(scale_factor=2)), picture, None),
    "classes last": (
        mq.Categorical(dim=-1), lambda: Net(lambda m, x: m.c(x).movedim(1, -1), c=nn.Conv2d(1, 3, 2)), picture, None,
    ),
    "classes per position": (mq.Categorical(dim=-1), DENSE, sequence, None),
    "heteroscedastic pixels": (
        "heteroscedastic", sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 4, 3, padding=1)), picture, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood, make, data, mask = LIKELIHOODS[name]
    model = built(make())
    assert_exact(monkeypatch, model, [data(3)], likelihood, mask=mask)
    one = None if mask is None else mask[:1]
    monkeypatch.undo()
    assert_exact(monkeypatch, model, [data(3)[:1]], likelihood, mask=one)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "categorical"])
def test_linear_in_the_parameters_the_hessian_is_the_ggn(likelihood: str) -> None:
    model = built(nn.Linear(4, 3))
    features = double(5, 2)
    x = torch.cat([features, features.square()], 1)  # polynomial features
    labels = {
        "gaussian": double(5, 3, seed=4),
        "bernoulli": (double(5, 3, seed=4) > 0).double(),
        "categorical": torch.tensor([0, 2, 1, 1, 0]),
    }[likelihood]
    assert_matches(ggn(model, x, likelihood, "full").to_dense(), hessian_of_the_loss(model, x, labels, likelihood))


def test_without_residuals_the_hessian_is_the_ggn_and_with_them_it_is_not() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = double(5, 3)
    ours = ggn(model, x, "gaussian", "full").to_dense()
    assert_matches(ours, hessian_of_the_loss(model, x, model(x).detach(), "gaussian"))
    off = hessian_of_the_loss(model, x, model(x).detach() + 1, "gaussian")
    assert float((ours - off).abs().max() / off.abs().max()) > 1e-2


def hessian_of_the_loss(model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> Tensor:
    named = dict(model.named_parameters())
    sizes = [p.numel() for p in named.values()]
    flat = torch.cat([p.detach().flatten() for p in named.values()])

    def loss(vector: Tensor) -> Tensor:
        parts = {n: v.view(p.shape) for (n, p), v in zip(named.items(), vector.split(sizes), strict=True)}
        f = torch.func.functional_call(model, parts, (x,))
        return -mq.likelihoods.as_likelihood(likelihood).resolve(f).log_prob(f, y).sum()

    return torch.autograd.functional.hessian(loss, flat)


# --- batches, subsets, types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["diagonal", "block", "full", "lowrank"])
def test_the_sum_does_not_depend_on_the_batches(structure: str) -> None:
    model = built(LeNet())
    x = double(20, 1, 8, 8)
    whole = ggn(model, x, "categorical", structure).to_dense()
    for size in (1, 7):
        parts = [ggn(model, part, "categorical", structure).to_dense() for part in x.split(size)]
        assert_matches(sum(parts[1:], parts[0]), whole, 1e-12)


def test_a_subset_is_the_sub_block_and_its_walk_is_shorter() -> None:
    from marquis.curvature.backward.steps import BackwardSteps
    from marquis.curvature.graph.cache import network_of

    model = built(LeNet())
    x = double(3, 1, 8, 8)
    full = dense_ggn(model, x, "categorical")
    named = dict(model.named_parameters())
    starts = dict(zip(named, torch.tensor([0, *(p.numel() for p in named.values())]).cumsum(0).tolist(), strict=False))
    for chosen in (["head.weight"], ["body.3.weight", "body.3.bias"], ["body.0.bias", "head.bias"]):
        index = torch.cat([torch.arange(starts[n], starts[n] + named[n].numel()) for n in chosen])
        oracle = full[index][:, index]
        for structure in ("full", "lowrank", "diagonal"):
            ours = ggn(model, x, "categorical", structure, parameters=chosen)
            assert_structure(ours, structure, oracle, {n: named[n] for n in chosen})
    network = network_of(model, named, x)
    steps = {
        names: len(BackwardSteps.of(network, names).steps)
        for names in [("head.weight",), ("body.3.bias",), tuple(named)]
    }
    assert steps["head.weight",] == 1
    assert 1 < steps["body.3.bias",] < steps[tuple(named)]


def test_frozen_parameters_are_left_out_unless_asked_for() -> None:
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    model[0].requires_grad_(False)
    x = double(3, 3)
    full = dense_ggn(model, x)
    assert_matches(ggn(model, x, "gaussian", "full").to_dense(), full[16:, 16:])
    requested = ggn(model, x, "gaussian", "full", parameters=["0.weight", "2.weight"]).to_dense()
    index = torch.cat([torch.arange(12), torch.arange(16, 24)])
    assert_matches(requested, full[index][:, index])


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "block", "full", "lowrank"])
def test_float32_stays_float32_and_is_close(structure: str) -> None:
    model = built(LeNet())
    x = double(3, 1, 8, 8)
    expected = ggn(model, x, "categorical", structure).to_dense()
    ours = ggn(model.float(), x.float(), "categorical", structure).to_dense()
    assert ours.dtype == torch.float32
    assert_matches(ours.double(), expected, 1e-4)


def test_a_parameter_that_nothing_depends_on_has_zero_curvature() -> None:
    model = built(Net(lambda m, x: m.k(x), k=nn.Linear(3, 2), spare=nn.Linear(2, 2)))
    oracle = dense_ggn(model, double(3, 3))
    for structure in (*STRUCTURES, "kronecker"):
        dense = ggn(model, double(3, 3), "gaussian", structure).to_dense()
        assert float(dense[8:].abs().max()) == 0
        assert_matches(dense.diagonal(), oracle.diagonal(), RTOL)


def blocks_network(kind: str) -> nn.Module:
    head = nn.Linear(4 * 3 * 3, 6)
    pool = (
        nn.AvgPool2d(2)
        if kind == "average"
        else nn.MaxPool2d(3 if kind == "overlapping" else 2, 2, padding=int(kind == "overlapping"))
    )
    first = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), pool]
    shared = nn.Conv2d(3, 3, 3, padding=1)
    twice = [shared, nn.Tanh(), shared] if kind == "shared weight" else [nn.Conv2d(3, 3, 1), nn.GroupNorm(1, 3)]
    return nn.Sequential(
        *first, *twice, nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), head, nn.Tanh(), nn.Linear(6, 3)
    )


@pytest.mark.parametrize("kind", ["max", "overlapping", "average", "shared weight"])
@pytest.mark.parametrize("estimator", ["exact", "sketched"])
def test_blocks_of_samples_give_the_same(monkeypatch: pytest.MonkeyPatch, kind: str, estimator: str) -> None:
    """Samples in blocks (2, 2 and 1 of five) give the diagonal of the whole batch; the buffers of a block leave no trace."""
    model, x = built(blocks_network(kind)), double(5, 2, 6, 6)
    named = dict(model.named_parameters())
    mask = torch.tensor([1, 0, 1, 1, 1])
    sizes: list[int] = []
    original = walk.BackwardWalk._all_segments

    def counted(self: walk.BackwardWalk, root: Any) -> None:
        sizes.append(self.context.size)
        original(self, root)

    def computed(mask: Tensor | None) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return ggn(model, x, "categorical", "diagonal", estimator, probes=2, generator=generator, mask=mask).diagonal()

    whole = [computed(m) for m in (None, mask)]
    monkeypatch.setattr(walk.BackwardWalk, "_all_segments", counted)
    monkeypatch.setattr(walk, "BLOCK_BYTES", 2 * 2 * 3 * 36 * 8)
    for m, expected in zip((None, mask), whole, strict=True):
        assert_matches(computed(m), expected)
        if estimator == "exact":
            oracle = dense_ggn(model, x, "categorical", mask=m)
            assert_structure(ggn(model, x, "categorical", mask=m), "diagonal", oracle, named)
    assert set(sizes) == {2, 1}

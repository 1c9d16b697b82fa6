"""The squared pass on whole networks: where it is exact, where it must not be, forks, spelling, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from squared_oracle import approximate, assert_same, exact, needed_values, network_of, random_start
from torch import Tensor, nn

from marquis.curvature.squared.schedule import schedule_of
from marquis.curvature.squared.squared import squared_forward, squared_pass
from marquis.errors import DataError, UnsupportedOperationError


def double(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def built(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 and evaluation mode, all parameters and statistics at random."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(0.5 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2, generator=generator)
    return model


class Net(nn.Module):
    """A free-form forward over named parts."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def through_layers(model: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """The definition: every layer's dense Jacobian squared, applied to m, layer after layer, sample by sample."""
    params = dict(model.named_parameters())
    totals = {name: torch.zeros_like(p) for name, p in params.items()}
    start = random_start(model(x))
    for n in range(x.shape[0]):
        inputs = [x[n : n + 1]]
        for layer in model:
            inputs.append(layer(inputs[-1]).detach())
        m = start[n].reshape(-1)
        for index in reversed(range(len(model))):
            layer, at = model[index], inputs[index]
            own = {name: p.detach() for name, p in layer.named_parameters()}

            def run(p: dict[str, Tensor], z: Tensor, layer: nn.Module = layer) -> Tensor:
                return torch.func.functional_call(layer, p, (z,)).reshape(-1)

            by_parameter, by_input = torch.func.jacrev(run, argnums=(0, 1))(own, at)
            for name, jacobian in by_parameter.items():
                totals[f"{index}.{name}"] += (m @ jacobian.flatten(1).square()).reshape(own[name].shape)
            m = m @ by_input.flatten(1).square()
    return {name: total.detach() for name, total in totals.items()}


def worst_relative(ours: Tensor, oracle: Tensor) -> float:
    return float(((ours - oracle).abs() / oracle.abs()).max())


# --- the definition, and where it is exact ----------------------------------------------------------------------------

SEQUENTIALS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "dense autoencoder": (
        lambda: nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2), nn.Linear(2, 5), nn.GELU(), nn.Linear(5, 7)),
        (7,),
    ),
    "convolutional autoencoder": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(),
            nn.Linear(18, 2), nn.Linear(2, 18), nn.Unflatten(1, (2, 3, 3)), nn.Conv2d(2, 3, 3, padding=1),
            nn.Upsample(scale_factor=2), nn.Tanh(), nn.Conv2d(3, 1, 3, padding=1), nn.Upsample(7, mode="bilinear"),
        ),
        (1, 7, 7),
    ),
    "classifier": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2, 1, padding=1),
            nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(16),
            nn.Linear(16, 6), nn.PReLU(), nn.Linear(6, 3),
        ),
        (2, 9, 8),
    ),
    "decoder": (
        lambda: nn.Sequential(
            nn.Linear(3, 16), nn.Unflatten(1, (4, 2, 2)), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2), nn.SiLU(),
            nn.ZeroPad2d(1), nn.PixelShuffle(2), nn.Conv2d(1, 2, 2, padding="same"), nn.Sigmoid(),
        ),
        (3,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENTIALS)
@pytest.mark.parametrize("batch", [1, 3])
def test_whole_network_follows_the_definition(name: str, batch: int) -> None:
    make, shape = SEQUENTIALS[name]
    model = built(make(), seed=batch)
    x = double(batch, *shape)
    assert_same(approximate(network_of(model, x), model, x), through_layers(model, x))


@pytest.mark.parametrize("outputs", [4, 1])
def test_exact_at_the_last_two_dense_layers_and_not_before(outputs: int) -> None:
    """With one output too: 'exact for a single output' is folklore."""
    model = built(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, outputs)))
    x = double(8, 5)
    ours, oracle = approximate(network_of(model, x), model, x), exact(model, x)
    for name in ("4.weight", "4.bias", "2.weight", "2.bias"):
        torch.testing.assert_close(ours[name], oracle[name], rtol=1e-10, atol=0)
    for name in ("0.weight", "0.bias"):
        assert worst_relative(ours[name], oracle[name]) > 1e-3


def test_exact_below_layers_that_do_not_mix() -> None:
    model = built(
        nn.Sequential(
            nn.Linear(5, 24), nn.Unflatten(1, (2, 3, 4)), nn.BatchNorm2d(2), nn.GELU(),
            nn.Conv2d(2, 2, 1, groups=2), nn.MaxPool2d(2, 1), nn.Upsample(scale_factor=2), nn.Tanh(), nn.Flatten(),
        )
    )  # fmt: skip
    x = double(4, 5)
    ours, oracle = approximate(network_of(model, x), model, x), exact(model, x)
    assert_same({"0.weight": ours["0.weight"]}, {"0.weight": oracle["0.weight"]})
    assert_same({"0.bias": ours["0.bias"]}, {"0.bias": oracle["0.bias"]})


def test_bilinear_upsampling_between_two_layers_breaks_exactness() -> None:
    model = built(
        nn.Sequential(nn.Linear(4, 9), nn.Unflatten(1, (1, 3, 3)), nn.Upsample(5, mode="bilinear"), nn.Flatten())
    )
    above = nn.Sequential(*model, built(nn.Linear(25, 3), 1))
    x = double(4, 4)
    for net, breaks in ((model, False), (above, True)):
        ours, oracle = approximate(network_of(net, x), net, x), exact(net, x)
        assert (worst_relative(ours["0.weight"], oracle["0.weight"]) > 1e-3) is breaks


# --- forks and spelling -----------------------------------------------------------------------------------------------

SPELLINGS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (lambda h: h * torch.sigmoid(h), F.silu),
    "silu, divided": (lambda h: h / (1 + torch.exp(-h)), F.silu),
    "silu through copies": (lambda h: h.clone() * torch.sigmoid(F.dropout(h, training=False)), F.silu),
    "gelu": (lambda h: 0.5 * h * (1 + torch.erf(h / math.sqrt(2))), F.gelu),
    "gelu, tanh": (
        lambda h: 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))),
        lambda h: F.gelu(h, approximate="tanh"),
    ),
    "mish": (lambda h: h * torch.tanh(F.softplus(h)), F.mish),
    "leaky relu": (lambda h: torch.where(h > 0, h, 0.2 * h), lambda h: F.leaky_relu(h, 0.2)),
    "relu": (lambda h: torch.maximum(h, torch.zeros_like(h)), F.relu),
    "square": (lambda h: (h + 1) * h, lambda h: (h + 0.5) ** 2 - 0.25),
    "nested": (lambda h: (h * torch.sigmoid(h)) * torch.sigmoid(h * torch.sigmoid(h)), lambda h: F.silu(F.silu(h))),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_does_not_matter(name: str) -> None:
    x = double(5, 4)
    results = []
    for phi in SPELLINGS[name]:
        model = built(
            Net(
                lambda s, x, phi=phi: s.c(phi(s.b(phi(s.a(x))))),
                a=nn.Linear(4, 5),
                b=nn.Linear(5, 6),
                c=nn.Linear(6, 3),
            )
        )
        results.append(approximate(network_of(model, x), model, x))
    assert_same(*results)


def test_an_elementwise_branch_that_is_also_used_elsewhere_is_fused_all_the_same() -> None:
    """sigmoid(h) feeds the product and the output; both outputs are elementwise functions of h."""

    def forward(s: Net, x: Tensor) -> Tensor:
        h = s.a(x)
        gate = torch.sigmoid(h)
        return torch.cat([h * gate, gate], 1)

    model, x = built(Net(forward, a=nn.Linear(4, 5))), double(5, 4)
    assert_same(approximate(network_of(model, x), model, x), exact(model, x))


@pytest.mark.parametrize("seed", range(12))
def test_random_elementwise_expressions_are_exact(seed: int) -> None:
    """Whatever is written, a function phi(h, k) taken entry by entry has one squared derivative in each."""
    unary = [
        torch.tanh,
        torch.sigmoid,
        F.softplus,
        F.gelu,
        torch.sin,
        lambda t: 0.5 * t,
        lambda t: t**2,
        lambda t: 1 - t,
    ]
    binary = [torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: a / (1 + b**2)]
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    recipe = [(draw(2), draw(len(unary)), draw(len(binary)), draw(100), draw(100)) for _ in range(9)]

    def forward(s: Net, x: Tensor) -> Tensor:
        made = [s.a(x), s.b(x)]
        for kind, one, two, left, right in recipe:
            first, second = made[left % len(made)], made[right % len(made)]
            made.append(unary[one](first) if kind == 0 else binary[two](first, second))
        return torch.stack([made[0] + made[1], *made[-3:]], 1)

    model, x = built(Net(forward, a=nn.Linear(3, 4), b=nn.Linear(3, 4))), double(5, 3)
    assert_same(approximate(network_of(model, x), model, x), exact(model, x))


def test_the_same_operation_written_twice_is_one() -> None:
    x = double(5, 4)
    twice = built(Net(lambda s, x: s.a(x) * torch.sigmoid(s.a(x)), a=nn.Linear(4, 5)))
    views = built(Net(lambda s, x: (h := s.a(x)).view(-1, 5, 1) * torch.sigmoid(h.view(-1, 5, 1)), a=nn.Linear(4, 5)))
    for model in (twice, views):
        network = network_of(model, x)
        assert_same(approximate(network, model, x), exact(model, x))
        assert not any("is used" in note for note in schedule_of(network, ["a.weight", "a.bias"]).notes)


def test_two_tensors_in_one_elementwise_function() -> None:
    """The second argument occurs on both sides of the product, wrapped in a function on one of them."""

    def forward(s: Net, x: Tensor) -> Tensor:
        h, w = s.a(x), s.b(x)
        return h * ((w * h) * torch.sigmoid(w))

    model, x = built(Net(forward, a=nn.Linear(4, 5), b=nn.Linear(4, 5))), double(5, 4)
    network = network_of(model, x)
    assert_same(approximate(network, model, x), exact(model, x))
    assert any("two different tensors" in note for note in schedule_of(network, ["a.weight", "b.weight"]).notes)
    assert not schedule_of(network, ["a.weight"]).notes


def test_elementwise_residual_is_exact_and_mixing_residual_is_the_sum_of_the_branches() -> None:
    x = double(6, 4)
    elementwise = built(Net(lambda s, x: (h := s.a(x)) + torch.tanh(h), a=nn.Linear(4, 5)))
    assert_same(approximate(network_of(elementwise, x), elementwise, x), exact(elementwise, x))

    mixing = built(Net(lambda s, x: (h := s.a(x)) + s.b(torch.tanh(h)), a=nn.Linear(4, 5), b=nn.Linear(5, 5)))
    ours = approximate(network_of(mixing, x), mixing, x)
    h = mixing.a(x).detach()
    m = random_start(h)
    m_h = m + (m @ mixing.b.weight.detach() ** 2) * (1 - torch.tanh(h) ** 2) ** 2
    torch.testing.assert_close(ours["a.weight"], m_h.T @ x**2, rtol=1e-12, atol=0)
    oracle = exact(mixing, x)
    torch.testing.assert_close(ours["b.weight"], oracle["b.weight"], rtol=1e-10, atol=0)
    assert worst_relative(ours["a.weight"], oracle["a.weight"]) > 1e-3


def test_concatenating_skip_of_a_unet() -> None:
    """Exact at the fork for the layer before it: the two branches end in different outputs."""

    def forward(s: Net, x: Tensor) -> Tensor:
        skip = torch.tanh(s.down(x))
        return torch.cat([skip, F.interpolate(s.inner(F.max_pool2d(skip, 2)), scale_factor=2)], 1)

    model = built(Net(forward, down=nn.Conv2d(1, 2, 3, padding=1), inner=nn.Conv2d(2, 2, 1)))
    x = double(3, 1, 4, 6)
    ours = approximate(network_of(model, x), model, x)
    skip = torch.tanh(model.down(x)).detach()
    m = random_start(torch.cat([skip, skip], 1))
    up = F.avg_pool2d(m[:, 2:], 2) * 4
    at_inner = torch.einsum("bohw,oi->bihw", up, model.inner.weight.detach()[:, :, 0, 0] ** 2)
    indices = F.max_pool2d(skip, 2, return_indices=True)[1]
    m_skip = m[:, :2] + F.max_unpool2d(at_inner, indices, 2)
    m_down = m_skip * (1 - skip**2) ** 2
    expected = torch.nn.grad.conv2d_weight(x**2, (2, 1, 3, 3), m_down, padding=1)
    torch.testing.assert_close(ours["down.weight"], expected, rtol=1e-12, atol=0)
    oracle = exact(model, x)
    assert_same({"i": ours["inner.weight"]}, {"i": oracle["inner.weight"]})


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.LeakyReLU, nn.SiLU])
def test_in_place_activations(activation: Callable[..., nn.Module]) -> None:
    x = double(4, 5)
    layers = [(nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)) for _ in range(2)]
    results = []
    for in_place, (a, b, c) in zip((False, True), layers, strict=True):
        model = built(nn.Sequential(a, activation(inplace=in_place), b, activation(inplace=in_place), c))
        results.append(approximate(network_of(model, x), model, x))
    assert_same(*results)


# --- parameters used twice, parts, subsets ----------------------------------------------------------------------------


def test_tied_weights_add_up_and_the_plan_says_so() -> None:
    x = double(4, 6)
    tied = built(Net(lambda s, x: F.linear(torch.tanh(s.a(x)), s.a.weight.t()), a=nn.Linear(6, 3)))
    free = built(Net(lambda s, x: s.b(torch.tanh(s.a(x))), a=nn.Linear(6, 3), b=nn.Linear(3, 6, bias=False)))
    free.load_state_dict({**tied.state_dict(), "b.weight": tied.a.weight.detach().T})
    network = network_of(tied, x)
    ours, apart = approximate(network, tied, x), approximate(network_of(free, x), free, x)
    torch.testing.assert_close(ours["a.weight"], apart["a.weight"] + apart["b.weight"].T, rtol=1e-12, atol=0)
    assert any("'a.weight' is used 2 times" in note for note in schedule_of(network, ["a.weight", "a.bias"]).notes)
    assert not schedule_of(network, ["a.bias"]).notes


def test_a_token_that_is_expanded_over_the_batch() -> None:
    class WithToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, 4))
            self.mix = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))

    model = built(WithToken())
    for batch in (1, 3):
        x = double(batch, 2, 4)
        assert_same(approximate(network_of(model, x), model, x), exact(model, x))


def test_learnt_positions() -> None:
    """Batch-free values made from parameters: a table row per position, the sum of two of them."""

    def forward(s: Net, x: Tensor) -> Tensor:
        rows = torch.arange(3)
        return s.mix(x + (s.row(rows) + s.kind(torch.tensor([0, 1, 1]))))

    model = built(Net(forward, row=nn.Embedding(3, 4), kind=nn.Embedding(2, 4), mix=nn.Conv1d(3, 2, 1, groups=1)))
    x = double(4, 3, 4)
    ours, oracle = approximate(network_of(model, x), model, x), exact(model, x)
    shared = {"kind.weight": ours.pop("kind.weight")}
    assert worst_relative(shared["kind.weight"][1], oracle["kind.weight"][1]) > 1e-3  # two positions share a row
    torch.testing.assert_close(shared["kind.weight"][0], oracle.pop("kind.weight")[0], rtol=1e-10, atol=0)
    assert_same(ours, oracle)


def test_a_subset_gives_the_same_numbers_and_needs_fewer_values() -> None:
    model = built(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 2))
    )
    x = double(3, 1, 5, 5)
    network = network_of(model, x)
    everything = approximate(network, model, x)
    names = list(everything)
    for subset in (["5.bias"], ["3.weight", "5.bias"], ["0.weight"]):
        part = approximate(network, model, x, subset)
        assert list(part) == subset
        for name in subset:
            assert torch.equal(part[name], everything[name])
    assert needed_values(network, ["5.weight"]) < needed_values(network, ["3.weight"]) < needed_values(network, names)


def test_an_unused_parameter_has_no_curvature() -> None:
    model = built(Net(lambda s, x: s.a(x), a=nn.Linear(3, 2), unused=nn.Linear(2, 2)))
    x = double(4, 3)
    ours = approximate(network_of(model, x), model, x)
    assert torch.equal(ours["unused.weight"], torch.zeros(2, 2, dtype=torch.float64))


def test_a_detached_branch_carries_nothing() -> None:
    model = built(Net(lambda s, x: s.a(x) + s.b(torch.tanh(s.a(x)).detach()), a=nn.Linear(4, 3), b=nn.Linear(3, 3)))
    x = double(4, 4)
    names = list(dict(model.named_parameters()))
    params = dict(model.named_parameters())
    network = network_of(model, x)
    ours = approximate(network, model, x, names)
    m = random_start(model(x))
    torch.testing.assert_close(ours["a.weight"], m.T @ x**2, rtol=1e-12, atol=0)
    assert params.keys() == ours.keys()


def test_a_product_with_a_factor_that_carries_nothing_is_exact() -> None:
    """Attention with frozen queries and keys is linear in the values."""

    def forward(s: Net, x: Tensor) -> Tensor:
        return torch.softmax(s.q(x) @ s.k(x).mT, -1) @ s.v(x)

    model = built(Net(forward, q=nn.Linear(4, 3), k=nn.Linear(4, 3), v=nn.Linear(4, 2)))
    x = double(3, 5, 4)
    network = network_of(model, x)
    ours, oracle = approximate(network, model, x, ["v.weight", "v.bias"]), exact(model, x)
    # One product stands between v and the output, so its weights see diag(M) only: equal to the definition, not to
    # the exact value, which needs M between the positions that the attention mixes.
    attention = torch.softmax(model.q(x) @ model.k(x).mT, -1).detach()
    m = attention.square().mT @ random_start(model(x))
    torch.testing.assert_close(ours["v.weight"], torch.einsum("nto,nti->oi", m, x**2), rtol=1e-12, atol=0)
    assert worst_relative(ours["v.weight"], oracle["v.weight"]) > 1e-3
    with pytest.raises(UnsupportedOperationError, match="softmax"):
        approximate(network, model, x, ["q.weight"])


# --- faults of others -------------------------------------------------------------------------------------------------


def test_upsampling_keeps_channels_apart() -> None:
    """A published implementation sums a diagonal over all channels here."""
    model = built(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Upsample(scale_factor=2)))
    x = double(2, 2, 2, 3)

    def only_first_channel(f: Tensor) -> Tensor:
        m = torch.zeros_like(f)
        m[:, 0] = 1.0
        return m

    ours = approximate(network_of(model, x), model, x, start=only_first_channel)
    assert torch.equal(ours["0.bias"], torch.tensor([2 * 4 * 6.0, 0.0, 0.0], dtype=torch.float64))
    assert ours["0.weight"][1:].abs().max() == 0


def test_convolution_biases_are_not_dropped() -> None:
    model = built(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 1, 2)))
    x = double(2, 1, 5, 6)
    ours = approximate(network_of(model, x), model, x, start=torch.ones_like)
    assert torch.equal(ours["2.bias"], torch.tensor([2 * 2 * 3.0], dtype=torch.float64))
    assert (ours["0.bias"] > 0).all()


# --- refusals ---------------------------------------------------------------------------------------------------------


class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.direction / self.direction.norm(dim=1, keepdim=True))


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, str]] = {
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (4,), "softmax", "'1'"),
    "log_softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), (4,), "log_softmax", "'1'"),
    "attention": (
        lambda: Net(lambda s, x: s.att(x, x, x)[0], att=nn.MultiheadAttention(4, 2, batch_first=True)),
        (5, 4), "bmm", "'att'",
    ),
    "fused attention": (
        lambda: Net(
            lambda s, x: s.att(x, x, x, need_weights=False)[0], att=nn.MultiheadAttention(4, 2, batch_first=True)
        ),
        (5, 4), "scaled_dot_product_attention", "'att'",
    ),
    "product of two": (
        lambda: Net(lambda s, x: s.a(x) @ s.b(x).mT, a=nn.Linear(4, 3), b=nn.Linear(4, 3)), (5, 4), "matmul",
        "attention",
    ),
    "weight norm": (WeightNormed, (4,), "norm", "direction"),
    "recurrent": (lambda: Net(lambda s, x: s.rnn(x)[0], rnn=nn.LSTM(4, 3, batch_first=True)), (5, 4), "lstm", "'rnn'"),
    "product of parameters": (
        lambda: Net(lambda s, x: x @ (s.a.weight @ s.b.weight), a=nn.Linear(3, 4), b=nn.Linear(2, 3)), (4,), "matmul",
        r"\['a.weight', 'b.weight'\]",
    ),
    "einsum with a lone sum": (
        lambda: Net(lambda s, x: torch.einsum("bi,ij->b", s.a(x), s.a.weight), a=nn.Linear(4, 4)), (4,), "einsum",
        "alone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_with_an_alternative(name: str) -> None:
    make, shape, operation, detail = REFUSED[name]
    model, x = built(make()), double(3, *shape)
    network = network_of(model, x)
    values = network.bind(dict(model.named_parameters()), x)
    with pytest.raises(UnsupportedOperationError, match=f"(?s)`.*{operation}.*{detail}.*sketched.*exact"):
        squared_forward(network, values, dict(model.named_parameters()))


def test_what_lies_below_the_selection_is_not_refused() -> None:
    model = built(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 2)))
    x = double(3, 4)
    network = network_of(model, x)
    ours = approximate(network, model, x, ["2.weight", "2.bias"])
    oracle = exact(model, x)
    assert_same(ours, {name: oracle[name] for name in ours})


def test_the_output_projection_of_attention_needs_no_rule_for_attention() -> None:
    """Attention layers work on [length, batch, features]; the rules never ask where the batch is."""
    model = built(Net(lambda s, x: s.att(x, x, x)[0], att=nn.MultiheadAttention(4, 2, batch_first=True)))
    x = double(3, 5, 4)
    ours = approximate(network_of(model, x), model, x, ["att.out_proj.weight", "att.out_proj.bias"])
    oracle = exact(model, x)
    assert_same(ours, {name: oracle[name] for name in ours})


def test_wrong_start_and_unknown_name() -> None:
    model, x = built(nn.Linear(4, 3)), double(2, 4)
    network = network_of(model, x)
    values = network.bind(dict(model.named_parameters()), x)
    network.forward(values)
    with pytest.raises(DataError, match=r"\(3,\).*\(2, 3\)"):
        squared_pass(network, values, torch.ones(3), ["weight"])
    with pytest.raises(DataError, match="no parameter named 'wieght'"):
        squared_pass(network, values, double(2, 3), ["wieght"])


def test_results_are_written_over_whatever_the_memory_held() -> None:
    model = built(Net(lambda s, x: s.used(x) + s.shared(s.shared(x)), used=nn.Linear(3, 3), shared=nn.Linear(3, 3)))
    model.unused = nn.Linear(2, 2).double()
    x = double(4, 3)
    network, params = network_of(model, x), dict(model.named_parameters())
    expected = approximate(network, model, x)
    values = network.bind(params, x)
    start = random_start(squared_forward(network, values, params))
    memory = {name: torch.full_like(p, float("nan")).detach() for name, p in params.items()}
    squared_pass(network, values, start, params, memory)
    reached = [name for name in expected if not name.startswith("unused")]
    assert_same({name: memory[name] for name in reached}, {name: expected[name] for name in reached})
    assert all(bool((memory[f"unused.{kind}"] == 0).all()) for kind in ("weight", "bias"))


# --- cost, dtype, nothing left behind ---------------------------------------------------------------------------------


def peak_bytes(work: Callable[[], object]) -> int:
    """The largest number of bytes alive at once, from the allocator's own events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def test_memory_is_that_of_a_plain_step_and_linear_in_the_pixels() -> None:
    model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()))).eval()
    params = dict(model.named_parameters())
    network = network_of(model, torch.randn(2, 3, 16, 16))
    peaks = {}
    for size in (128, 256):  # torch's own convolutions take more per pixel from 96 or so on, by the machine
        x = torch.randn(1, 3, size, size)

        def plain(x: Tensor = x) -> None:
            output = model(x)
            torch.autograd.grad(output, list(params.values()), torch.ones_like(output))

        def ours(x: Tensor = x) -> None:
            values = network.bind(params, x)
            squared_pass(network, values, torch.ones_like(squared_forward(network, values, params)), params)

        ours(), plain()
        peaks[size] = peak_bytes(ours)
        assert peaks[size] <= 2.2 * peak_bytes(plain)
    assert peaks[256] <= 4.2 * peaks[128]


def test_float32_stays_and_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2))
    x = torch.randn(3, 4)
    network = network_of(model, x)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    values = network.bind(dict(model.named_parameters()), x)
    start = torch.ones_like(squared_forward(network, values, before))
    result = squared_pass(network, values, start, before)
    assert all(r.dtype == torch.float32 and not r.requires_grad for r in result.values())
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert not set(values) & set(network.producers)
    assert model.training

"""Recompression at bottlenecks (docs/method/curvature.md): used where it pays, without a trace in the result, and never
where it would lose the cross terms between two uses of one parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracle import assert_matches, assert_structure, built, dense_ggn, double, greedy_bottlenecks
from torch import Tensor, nn

from marquis.curvature import ggn
from marquis.curvature.backward import walk
from marquis.curvature.backward.output_roots import SquareRoot
from marquis.curvature.backward.walk import BackwardWalk
from networks import Net, TiedAutoencoder, dense_autoencoder


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Columns at the start of each segment between cuts."""
    seen: list[int] = []
    original = BackwardWalk._segment

    def watched(self: BackwardWalk, root: SquareRoot, *rest: object) -> SquareRoot:
        seen.append(root.count)
        return original(self, root, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(BackwardWalk, "_segment", watched)
    return seen


def at_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompress wherever the tensor is narrower than the factor, whether or not it pays."""
    monkeypatch.setattr(walk, "choose_bottlenecks", greedy_bottlenecks)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("structure", ["diagonal", "block"])
def test_the_columns_of_an_autoencoder_fall_to_the_bottleneck(
    structure: str, activation: type[nn.Module], widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_every_cut(monkeypatch)
    model = built(dense_autoencoder((8, 6, 2, 6, 8), activation))
    x = double(3, 8)
    ours = ggn(model, x, "gaussian", structure)
    assert widths == [8, 6, 2]
    assert_structure(ours, structure, dense_ggn(model, x), dict(model.named_parameters()))


@pytest.mark.parametrize("structure", ["diagonal", "block"])
def test_on_or_off_gives_the_same(structure: str, widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(dense_autoencoder((16, 12, 2, 12, 16)))
    x = double(5, 16)
    on = ggn(model, x, "gaussian", structure).to_dense()
    assert widths[0] == 16 and widths[-1] == 2, "the cost model must find this bottleneck worth it"
    monkeypatch.setattr(walk, "chosen_bottlenecks", lambda *arguments: [])
    assert_matches(ggn(model, x, "gaussian", structure).to_dense(), on, 1e-10)
    assert widths[-1] == 16


@pytest.mark.parametrize("structure", ["full", "lowrank"])
def test_full_and_low_rank_keep_their_columns(structure: str, widths: list[int]) -> None:
    model = built(dense_autoencoder())
    x = double(3, 8)
    assert_structure(
        ggn(model, x, "gaussian", structure), structure, dense_ggn(model, x), dict(model.named_parameters())
    )
    assert widths == [8]


class TwoBottlenecks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(*s) for s in ((7, 3), (3, 6), (6, 2), (2, 7)))

    def forward(self, x: Tensor) -> Tensor:
        return self.d(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))


FREE_FORM: dict[str, tuple[Callable[[], nn.Module], int, list[int]]] = {
    "two bottlenecks": (TwoBottlenecks, 7, [7, 2]),
    "residual blocks around a bottleneck": (
        lambda: Net(
            lambda m, x: (lambda z: m.up(z) + m.side(torch.tanh(m.up(z))))(m.down(torch.tanh(m.first(x)) + x)),
            first=nn.Linear(7, 7), down=nn.Linear(7, 2), up=nn.Linear(2, 7), side=nn.Linear(7, 7),
        ),
        7, [7, 7],
    ),
    "a skip around the bottleneck": (
        lambda: Net(
            lambda m, x: m.up(torch.tanh(m.down(torch.tanh(m.first(x))))) + m.skip(torch.tanh(m.first(x))),
            first=nn.Linear(7, 5), down=nn.Linear(5, 2), up=nn.Linear(2, 7), skip=nn.Linear(5, 7),
        ),
        7, [7],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FREE_FORM)
def test_free_form_networks(name: str, widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    at_every_cut(monkeypatch)
    make, inputs, expected = FREE_FORM[name]
    model = built(make())
    x = double(3, inputs)
    for batch in (x, x[:1]):
        widths.clear()
        ours = ggn(model, batch, "gaussian")
        assert_structure(ours, "diagonal", dense_ggn(model, batch), dict(model.named_parameters()))
    if name == "residual blocks around a bottleneck":
        assert len(widths) > 1 and widths[-1] == 2
    elif name == "two bottlenecks":
        assert widths[:2] == expected and widths[-1] == 2
    else:
        assert widths[0] == 7 and all(w >= 5 for w in widths), "nothing may be cut while the skip is open"


def test_never_between_two_uses_of_one_parameter(widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    at_every_cut(monkeypatch)
    model = built(TiedAutoencoder(5, 2))
    x = double(3, 5)
    oracle = dense_ggn(model, x)
    for structure in ("diagonal", "block"):
        assert_structure(ggn(model, x, "gaussian", structure), structure, oracle, dict(model.named_parameters()))
    assert widths == [5, 5]


def test_cutting_between_two_uses_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-sided: with the protection taken away the tied weight's curvature is visibly another."""
    at_every_cut(monkeypatch)
    model = built(TiedAutoencoder(5, 2))
    x = double(3, 5)
    right = ggn(model, x, "gaussian", "block").diagonal()
    original = walk.find_bottlenecks
    monkeypatch.setattr(walk, "find_bottlenecks", lambda n, s, a, sh, groups, r: original(n, s, a, sh, (), r))
    fresh = built(TiedAutoencoder(5, 2))
    wrong = ggn(fresh, x, "gaussian", "block").diagonal()
    assert float((wrong - right).abs().max() / right.abs().max()) > 1e-2


@pytest.mark.parametrize("batch", [1, 3])
def test_a_singular_m_at_the_bottleneck(batch: int, widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead units and a decoder of rank one: M is singular, its square root is not NaN."""
    at_every_cut(monkeypatch)
    model = built(dense_autoencoder((6, 5, 3, 5, 6), nn.ReLU))
    assert isinstance(model[4], nn.Linear) and isinstance(model[2], nn.Linear)
    with torch.no_grad():
        model[4].weight.copy_(torch.outer(double(5).abs(), double(3, seed=1)))
        model[4].bias.fill_(1.0)
        model[0].bias[2:] = -50.0
    x = double(batch, 6)
    ours = ggn(model, x, "gaussian").diagonal()
    assert widths[-1] == 3
    assert_matches(ours, dense_ggn(model, x).diagonal())


@pytest.mark.parametrize("batch", [1, 3])
def test_everything_dead_gives_zeros_below(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_every_cut(monkeypatch)
    model = built(dense_autoencoder((6, 5, 2, 5, 6), nn.ReLU))
    assert isinstance(model[4], nn.Linear)
    with torch.no_grad():
        model[4].bias.fill_(-100.0)
    ours = ggn(model, double(batch, 6), "gaussian")
    oracle = dense_ggn(model, double(batch, 6))
    assert_matches(ours.diagonal(), oracle.diagonal())
    assert float(ours.diagonal()[: 6 * 5].abs().max()) < 1e-12


def test_convolutional_autoencoder(widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    at_every_cut(monkeypatch)
    model = built(
        nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2), nn.Linear(2, 18),
            nn.Tanh(), nn.Unflatten(1, (2, 3, 3)), nn.ConvTranspose2d(2, 1, 3, stride=2), nn.Conv2d(1, 1, 2),
        )
    )  # fmt: skip
    x = double(3, 1, 6, 6)
    for batch in (x, x[:1]):
        widths.clear()
        assert_structure(
            ggn(model, batch, "gaussian"), "diagonal", dense_ggn(model, batch), dict(model.named_parameters())
        )
        assert widths[0] == 36 and widths[-1] == 2

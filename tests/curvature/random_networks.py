"""Random small networks, as hypothesis strategies: dense and convolutional pieces in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Skip(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Beside(nn.Module):
    """[x, f(x)], mixed down to as many channels or features as x has."""

    def __init__(self, inner: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.inner, self.mix = inner, mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([x, self.inner(x)], 1))


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class Tied(nn.Module):
    """Down by W and up by Wᵀ: a tied autoencoder in the middle of a network."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(latent, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t())


class Scale(nn.Module):
    """A bare parameter that multiplies and one that is added."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(*shape)), nn.Parameter(torch.zeros(*shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Gate(nn.Module):
    """A product of two branches that both depend on the data."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * torch.sigmoid(self.gate(x))


ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.Tanh, nn.Sigmoid, nn.GELU, nn.Softplus, nn.ELU, lambda: nn.ReLU(inplace=True), lambda: nn.LeakyReLU(0.2),
    lambda: Function(lambda x: x * torch.sigmoid(x)), nn.SiLU, nn.PReLU, lambda: nn.Dropout(0.5),
]  # fmt: skip


def dense_piece(width: int) -> dict[str, Callable[[Any], tuple[nn.Module, int]]]:
    """Pieces for a vector of `width`: each a function of a random integer, giving the module and the new width."""
    return {
        "linear": lambda k: (nn.Linear(width, 2 + k % 4, bias=bool(k % 3)), 2 + k % 4),
        "activation": lambda k: (ACTIVATIONS[k % len(ACTIVATIONS)](), width),
        "layer norm": lambda k: (nn.LayerNorm(width), width),
        "batch norm": lambda k: (nn.BatchNorm1d(width), width),
        "skip": lambda k: (Skip(nn.Sequential(nn.Linear(width, width), ACTIVATIONS[k % 5]())), width),
        "beside": lambda k: (Beside(nn.Linear(width, 1 + k % 3), nn.Linear(width + 1 + k % 3, width)), width),
        "twice": lambda k: (Twice(nn.Linear(width, width)), width),
        "tied": lambda k: (Tied(width, 1 + k % width), width),
        "scale": lambda k: (Scale(width), width),
        "gate": lambda k: (Gate(width), width),
        "softmax": lambda k: (nn.Softmax(-1), width),
    }


@st.composite
def dense_networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    start = width = draw(st.integers(2, 4))
    pieces: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        kinds = dense_piece(width)
        piece, width = kinds[draw(st.sampled_from(sorted(kinds)))](draw(st.integers(0, 30)))
        pieces.append(piece)
    return nn.Sequential(nn.Linear(start, start), *pieces, nn.Linear(width, draw(st.integers(2, 3)))), (start,)


def picture_piece(channels: int, side: int) -> dict[str, Callable[[Any], tuple[nn.Module, int, int]]]:
    """Pieces for a square picture: module, new channels, new side."""
    pieces: dict[str, Callable[[Any], tuple[nn.Module, int, int]]] = {
        "conv": lambda k: (nn.Conv2d(channels, 1 + k % 3, 3, padding=1, bias=bool(k % 4)), 1 + k % 3, side),
        "circular": lambda k: (nn.Conv2d(channels, 2, 3, padding=1, padding_mode="circular"), 2, side),
        "even kernel": lambda k: (nn.Conv2d(channels, 2, 2, padding="same"), 2, side),
        "depthwise": lambda k: (nn.Conv2d(channels, channels, 3, padding=1, groups=channels), channels, side),
        "activation": lambda k: (ACTIVATIONS[k % len(ACTIVATIONS)](), channels, side),
        "batch norm": lambda k: (nn.BatchNorm2d(channels), channels, side),
        "group norm": lambda k: (nn.GroupNorm(1, channels), channels, side),
        "skip": lambda k: (
            Skip(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), ACTIVATIONS[k % 5]())), channels, side,
        ),
        "beside": lambda k: (
            Beside(nn.Conv2d(channels, 2, 3, padding=1), nn.Conv2d(channels + 2, channels, 1)), channels, side,
        ),
        "twice": lambda k: (Twice(nn.Conv2d(channels, channels, 3, padding=1)), channels, side),
        "scale": lambda k: (Scale(channels, 1, 1), channels, side),
    }  # fmt: skip
    if side < 5:
        pieces["nearest"] = lambda k: (nn.Upsample(scale_factor=2), channels, 2 * side)
        pieces["bilinear"] = lambda k: (nn.Upsample(size=side + 1, mode="bilinear"), channels, side + 1)
        pieces["transposed"] = lambda k: (
            nn.ConvTranspose2d(channels, 2, 2 + k % 2, stride=1 + k % 2), 2, (side - 1) * (1 + k % 2) + 2 + k % 2,
        )  # fmt: skip
    if side > 2:
        pieces["stride"] = lambda k: (nn.Conv2d(channels, 2, 2, stride=2), 2, side // 2)
        pieces["maximum"] = lambda k: (nn.MaxPool2d(2), channels, side // 2)
        pieces["average"] = lambda k: (
            nn.AvgPool2d(2, ceil_mode=bool(k % 2)),
            channels,
            -(-side // 2) if k % 2 else side // 2,
        )
        pieces["overlapping"] = lambda k: (nn.MaxPool2d(3, 1, 1), channels, side)
    return pieces


@st.composite
def picture_networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    channels, side = draw(st.integers(1, 2)), draw(st.integers(2, 4))
    shape = (channels, side, side)
    pieces: list[nn.Module] = [nn.Conv2d(channels, 2, 1)]
    channels = 2
    for _ in range(draw(st.integers(1, 4))):
        kinds = picture_piece(channels, side)
        piece, channels, side = kinds[draw(st.sampled_from(sorted(kinds)))](draw(st.integers(0, 30)))
        pieces.append(piece)
    ending = draw(st.sampled_from(["dense", "picture", "flat", "as it is"]))
    if ending == "dense":
        pieces += [nn.Flatten(), nn.Linear(channels * side * side, 2)]
    elif ending != "as it is" or channels == 1:
        pieces += [nn.Conv2d(channels, 2, 1)]
    if ending == "flat":
        pieces += [nn.Flatten()]
    return nn.Sequential(*pieces), shape


def networks() -> st.SearchStrategy[tuple[nn.Sequential, tuple[int, ...]]]:
    """Either kind."""
    return st.one_of(dense_networks(), picture_networks())

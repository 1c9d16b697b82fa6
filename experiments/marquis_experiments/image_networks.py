"""Small networks for images of 28 x 28 pixels and ten classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

EDGE = 28
"""Pixels along a side."""


def build(kind: str, shape: Mapping[str, Any], seed: int) -> nn.Module:
    """An untrained "cnn" or "mlp" of the given widths."""
    return {"cnn": cnn, "mlp": mlp}[kind](**shape, seed=seed)


def mlp(hidden: Sequence[int] = (200, 200), seed: int = 0) -> nn.Sequential:
    """A perceptron with ReLU for 28 x 28 images and ten classes.

    Args:
        hidden: widths of the hidden layers.
        seed: of the initial weights.
    """
    with _seeded(seed):
        layers: list[nn.Module] = [nn.Flatten()]
        before = EDGE * EDGE
        for width in hidden:
            layers += [nn.Linear(before, width), nn.ReLU()]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, 10)).eval()


def cnn(channels: Sequence[int] = (24, 32, 64), hidden: Sequence[int] = (64, 64), seed: int = 0) -> nn.Sequential:
    """Three convolutions and three dense layers with ReLU (the tutorial's count of layers, narrower).

    Convolutions are stored with the channels last, which halves the time on a CPU.

    Args:
        channels: of the three convolutions.
        hidden: widths of the two hidden dense layers.
        seed: of the initial weights.
    """
    a, b, c = channels
    with _seeded(seed):
        network = nn.Sequential(
            nn.Conv2d(1, a, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(a, b, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(b, c, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(9 * c, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], 10),
        )
    return network.to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]


class _seeded:
    """The global generator at a seed, put back afterwards: layers draw their initial weights from it."""

    def __init__(self, seed: int) -> None:
        self._seed, self._kept = seed, torch.random.fork_rng(devices=[])

    def __enter__(self) -> None:
        self._kept.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._kept.__exit__(*error)

"""The networks and batches of the benchmark: W1, W2, W4 and the "Figure 7" family F8 ... F512.

A workload is rebuilt from its name in every process, with the same seed, so a measurement of a peer in another
environment sees the same network and the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

FIGURE7_SIZES = (8, 16, 32, 48, 64, 96, 128, 256, 512)


@dataclass
class Workload:
    """A network, one batch, and the likelihood that turns the output into a loss."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: str  # "gaussian" (unit noise) or "categorical"

    def loss_module(self) -> nn.Module:
        """The summed loss. Twice the negative log-likelihood for "gaussian": what the peers' `MSELoss` computes."""
        return nn.MSELoss(reduction="sum") if self.likelihood == "gaussian" else nn.CrossEntropyLoss(reduction="sum")

    def flattened(self) -> Workload:
        """The same with a two-dimensional output, which is all that some peers accept."""
        if self.y.dim() <= 2:
            return self
        model = nn.Sequential(self.model, nn.Flatten())
        return Workload(self.name, model, self.x, self.y.flatten(1), self.likelihood)


def plain_step(workload: Workload) -> Callable[[], object]:
    """One forward and one backward pass: the unit in which every time is given."""
    model, loss = workload.model, workload.loss_module()
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(loss(model(workload.x), workload.y), parameters)


def build(name: str) -> Workload:
    """The workload of that name; "W4/8" is W4 with a batch of 8 and "F64" is Figure 7 at 64x64."""
    torch.manual_seed(0)
    kind, _, batch = name.partition("/")
    if kind == "tiny":
        return _autoencoder(name, nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6)), torch.rand(5, 6))
    if kind == "W1":
        return _autoencoder(name, dense_autoencoder(), torch.rand(int(batch or 64), 784))
    if kind == "W2":
        return _autoencoder(name, convolutional_autoencoder(), torch.rand(int(batch or 16), 1, 28, 28))
    if kind == "W4":
        count = int(batch or 128)
        return Workload(name, classifier(), torch.rand(count, 1, 28, 28), torch.randint(10, (count,)), "categorical")
    if kind[:1] == "F" and kind[1:].isdigit():
        return _autoencoder(name, picture_network(), torch.rand(int(batch or 1), 3, int(kind[1:]), int(kind[1:])))
    raise ValueError(f"no workload {name!r}; known: tiny, W1, W2, W4, F<size>, each optionally with /<batch>")


def _autoencoder(name: str, model: nn.Sequential, x: Tensor) -> Workload:
    return Workload(name, model.eval(), x, x.clone(), "gaussian")


def dense_autoencoder() -> nn.Sequential:
    """W1: 784-512-256-2-256-512-784 with tanh between."""
    widths = (784, 512, 256, 2, 256, 512, 784)
    layers: list[nn.Module] = []
    for i, (wide, next_wide) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(wide, next_wide))
        if i < len(widths) - 2:
            layers.append(nn.Tanh())
    return nn.Sequential(*layers)


def convolutional_autoencoder() -> nn.Sequential:
    """W2: two convolutions with pooling, a dense bottleneck of two, and the way back by nearest upsampling."""

    def convolution(inputs: int, outputs: int) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, 3, padding=1)

    encoder = [
        *(convolution(1, 64), nn.Tanh(), nn.MaxPool2d(2)),
        *(convolution(64, 64), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(3136, 2048), nn.Tanh(), nn.Linear(2048, 1024), nn.Tanh(), nn.Linear(1024, 2)),
    ]
    decoder = [
        *(nn.Linear(2, 1024), nn.Tanh(), nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 3136), nn.Tanh()),
        nn.Unflatten(1, (64, 7, 7)),
        *(convolution(64, 64), nn.Upsample(scale_factor=2, mode="nearest"), nn.Tanh()),
        *(convolution(64, 64), nn.Upsample(scale_factor=2, mode="nearest"), nn.Tanh()),
        convolution(64, 1),
    ]
    return nn.Sequential(*encoder, *decoder)


def classifier() -> nn.Sequential:
    """W4: a LeNet with 16 and 32 channels and ReLU."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(1568, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    ).eval()


def picture_network() -> nn.Sequential:
    """W3, "Figure 7": five 3x3 convolutions with tanh that keep 3 channels and the resolution."""
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers)

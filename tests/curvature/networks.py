"""Small networks for the tests of the engine: free-form, odd sizes, everything that real ones do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """A free-form forward over named parts; tensors among them become parameters."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_parameter(name, nn.Parameter(part))
            else:
                self.add_module(name, part)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self.function(self, *inputs, **named)


def dense_autoencoder(
    widths: tuple[int, ...] = (8, 6, 2, 6, 8), activation: type[nn.Module] = nn.Tanh
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(widths):
        layers += [nn.Linear(i, o), activation()]
    return nn.Sequential(*layers[:-1])


class TiedAutoencoder(nn.Module):
    """x -> W -> Wᵀ -> x: two uses of one matrix, with the bottleneck between them."""

    def __init__(self, width: int = 5, latent: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(latent, width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t(), self.bias)


class TiedLanguageModel(nn.Module):
    """The embedding table is the head's matrix too."""

    def __init__(self, vocabulary: int = 5, width: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.mix(self.table(tokens)).mean(1)), self.table.weight)


class UNet(nn.Module):
    """Pooling, upsampling and a concatenating skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, padding=1)
        self.inner = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.up = nn.Conv2d(5, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        top = torch.tanh(self.down(x))
        bottom = F.silu(self.norm(self.inner(F.max_pool2d(top, 2))))
        return self.up(torch.cat([top, F.interpolate(bottom, scale_factor=2.0)], 1))


class Residual(nn.Module):
    """A sum of a branch with its input, an in-place activation and a layer that is used twice."""

    def __init__(self, width: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.twice = nn.Linear(width, width)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.relu(self.inner(x))
        x = x + torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.head(x)


class LeNet(nn.Module):
    """Convolutions, in-place ReLUs, pooling, a flatten and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Transformer(nn.Module):
    """Tokens, learnt positions, an encoder layer; reads one token (`at`) or the mean of all."""

    def __init__(self, at: int | None = 0, width: int = 4, norm_first: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.at = at
        self.table = nn.Embedding(6, width, padding_idx=1)
        self.positions = nn.Parameter(torch.zeros(1, 4, width))
        self.layer = nn.TransformerEncoderLayer(
            width, 2, dim_feedforward=5, dropout=0.0, batch_first=batch_first, norm_first=norm_first, activation="gelu"
        )
        self.batch_first = batch_first
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens) + self.positions
        h = self.layer(h) if self.batch_first else self.layer(h.transpose(0, 1)).transpose(0, 1)
        return self.head(h.mean(1) if self.at is None else h[:, self.at])

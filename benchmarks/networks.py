"""The networks on which whole calls are compared with the peers: LeNet, ResNet w16, an encoder and a decoder.

Attention is written with `nn.Linear`, since no peer takes `nn.MultiheadAttention`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.workloads import Workload

WORDS = 2000


def lenet() -> nn.Sequential:
    """LeNet with average pooling: 16 and 32 channels, ReLU."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(1568, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm, and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(4, outputs)
        same = stride == 1 and inputs == outputs
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block to its input."""
        hidden = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(hidden + self.around(x))


def resnet(width: int = 16) -> nn.Sequential:
    """ResNet of three stages with `width`, twice and four times as many channels."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(4, width), nn.ReLU()),
        *(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)),
    )


class Layer(nn.Module):
    """A transformer layer with the norm first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform every position."""
        batch, length, width = x.shape
        hidden = self.norm1(x)
        parts = [f(hidden).reshape(batch, length, self.heads, -1).transpose(1, 2) for f in (self.query, self.key)]
        values = self.value(hidden).reshape(batch, length, self.heads, -1).transpose(1, 2)
        scores = parts[0] @ parts[1].transpose(2, 3) * (width // self.heads) ** -0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        x = x + self.out((scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class Transformer(nn.Module):
    """Words to ten classes (an encoder) or to the next word at every position (a decoder)."""

    def __init__(self, width: int, layers: int, length: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.words = nn.Embedding(WORDS if causal else 500, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, 4, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS if causal else 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, classes], or [batch x positions, words]."""
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x).transpose(1, 2) if self.causal else self.head(x.mean(1))


def build_network(name: str) -> Workload:
    """Return the workload of that name: "lenet", "resnet", "encoder" or "decoder"; "/8" changes the batch."""
    torch.manual_seed(0)
    kind, _, batch = name.partition("/")
    count = int(batch or {"lenet": 128, "resnet": 32, "encoder": 16, "decoder": 4}[kind])
    if kind in ("lenet", "resnet"):
        model = lenet() if kind == "lenet" else resnet()
        x = torch.rand(count, 1, 28, 28) if kind == "lenet" else torch.rand(count, 3, 32, 32)
        return Workload(name, model.eval(), x, torch.randint(10, (count,)), "categorical")
    if kind == "encoder":
        x = torch.randint(500, (count, 32))
        return Workload(name, Transformer(128, 4, 32, False).eval(), x, torch.randint(10, (count,)), "categorical")
    x = torch.randint(WORDS, (count, 32))
    return Workload(name, Transformer(256, 4, 32, True).eval(), x, torch.randint(WORDS, (count, 32)), "categorical")

"""Five small networks for MNIST: about a thousand weights each, so that the whole Gauss-Newton matrix is cheap.

Wide ones have about 46,000 weights, as the tutorial's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.randomness import seeded

WIDTHS = {"transformer": (4, 62), "CNN": (5, 60), "ResNet": (5, 48), "pre-ResNet": (5, 48), "FixUp": (5, 48)}
"""Channels of the convolutions, or numbers per patch of the transformer, of the small and the wide networks."""


def head(channels: int) -> nn.Sequential:
    """Return the head from maps of 14 x 14 to ten classes: pooled to 3 x 3, then one dense layer."""
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(9 * channels, 10))


class SmallCNN(nn.Sequential):
    """Compute two convolutions with batch normalisation and one dense layer."""

    def __init__(self, channels: int = 5) -> None:
        second = channels + channels // 5
        super().__init__(
            nn.AvgPool2d(2),
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, second, 3, padding=1),
            nn.BatchNorm2d(second),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(9 * second, 10),
        )


class Residual(nn.Module):
    """Hold a stem and one residual block; subclasses say where it is normalised."""

    def __init__(self, c: int = 5) -> None:
        super().__init__()
        self.stem, self.first, self.second = (nn.Conv2d(i, c, 3, padding=1, bias=False) for i in (1, c, c))


class ResNet(Residual):
    """Compute a residual network that is normalised after every convolution."""

    def __init__(self, channels: int = 5) -> None:
        super().__init__(channels)
        self.norm0, self.norm1, self.norm2 = (nn.BatchNorm2d(channels) for _ in range(3))
        self.head = head(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = F.relu(self.norm0(self.stem(F.avg_pool2d(x, 2))))
        y = F.relu(self.norm1(self.first(x)))
        return self.head(F.relu(x + self.norm2(self.second(y))))


class PreActivationResNet(Residual):
    """Compute a residual network that is normalised before every convolution and once at the end."""

    def __init__(self, channels: int = 5) -> None:
        super().__init__(channels)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(channels) for _ in range(3))
        self.head = head(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = self.stem(F.avg_pool2d(x, 2))
        y = self.first(F.relu(self.norm1(x)))
        x = x + self.second(F.relu(self.norm2(y)))
        return self.head(F.relu(self.norm3(x)))


class Shift(nn.Module):
    """Add a scalar bias, after an optional scalar factor, as FixUp has them in place of a normalisation."""

    def __init__(self, scale: bool = False) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.scale = nn.Parameter(torch.ones(1)) if scale else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, scaled and shifted."""
        return (x if self.scale is None else x * self.scale) + self.bias


class FixUpResNet(Residual):
    """Compute a residual network without normalisation (Zhang et al. 2019): its last convolution starts at zero."""

    def __init__(self, channels: int = 5) -> None:
        super().__init__(channels)
        self.shift0, self.shift1, self.shift2, self.shift3 = (Shift() for _ in range(4))
        self.shift4 = Shift(scale=True)
        self.head = head(channels)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = F.relu(self.shift0(self.stem(F.avg_pool2d(x, 2))))
        y = F.relu(self.shift2(self.first(self.shift1(x))))
        return self.head(F.relu(x + self.shift4(self.second(self.shift3(y)))))


class SmallTransformer(nn.Module):
    """Compute one block of attention over 16 patches of 7 x 7 pixels, normalised before each part."""

    def __init__(self, width: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Conv2d(1, width, 7, stride=7)
        self.position = nn.Parameter(0.1 * torch.randn(16, width))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[B, 10]` of images `[B, 1, 28, 28]`."""
        x = self.embed(x).flatten(2).transpose(1, 2) + self.position
        x = x + self.out(self._attend(self.norm1(x)))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x).flatten(1))

    def _attend(self, x: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        query, key, value = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in layers)
        weights = (query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "transformer": SmallTransformer,
    "CNN": SmallCNN,
    "ResNet": ResNet,
    "pre-ResNet": PreActivationResNet,
    "FixUp": FixUpResNet,
}


def build(name: str, seed: int, wide: bool = False) -> nn.Module:
    """Return an untrained network with weights drawn from a seed."""
    with seeded(seed):
        return NETWORKS[name](WIDTHS[name][wide])


@torch.no_grad()
def scaled(network: SmallCNN, k: float) -> SmallCNN:
    """Return the same function with the second convolution's weights k times as large.

    In evaluation mode batch normalisation holds its statistics fixed, so they are scaled along, and so is the small
    number that it adds to the variance.
    """
    twin = SmallCNN().to(next(network.parameters()).dtype)
    twin.load_state_dict(network.state_dict())
    layer, norm = twin[5], twin[6]
    assert isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and layer.bias is not None
    assert norm.running_mean is not None and norm.running_var is not None
    layer.weight.mul_(k)
    layer.bias.mul_(k)
    norm.running_mean.mul_(k)
    norm.running_var.mul_(k**2)
    norm.eps *= k**2
    return twin.eval()

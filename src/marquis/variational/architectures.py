"""Build smooth networks: a perceptron, a small CNN and the paper's PreactResNet-18, all with softplus."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from marquis.arguments import AtLeastOne, Positive, checked
from marquis.errors import DataError

LARGEST = 2**31
"""Largest number of weights of one layer: 8 GB, and more than images of any edge need."""


@checked
def mlp(inputs: AtLeastOne, outputs: AtLeastOne, hidden: tuple[int, ...] = (64, 64)) -> nn.Sequential:
    """Build a perceptron with softplus; inputs are flattened.

    Args:
        inputs: Numbers per sample.
        outputs: Outputs per sample.
        hidden: Widths of the hidden layers.
    """
    if min(hidden, default=1) < 1:
        raise DataError(f"hidden={hidden}: every layer has at least one unit.")
    if max(a * b for a, b in pairwise((inputs, *hidden, outputs))) > LARGEST:
        raise DataError(f"hidden={hidden} makes a layer of more than {LARGEST} weights; take fewer units.")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), nn.Softplus()]
    return nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], outputs))


@checked
def small_cnn(
    channels: AtLeastOne = 1, outputs: AtLeastOne = 10, width: AtLeastOne = 16, size: AtLeastOne = 28
) -> nn.Sequential:
    """Build two strided convolutions and two dense layers with softplus; 106,000 weights at the defaults.

    Strides take the place of max pooling, which is not smooth.

    Args:
        channels: Channels of the images.
        outputs: Number of classes.
        width: Channels after the first convolution; twice that after the second.
        size: Edge of the square images.
    """
    edge = (size + 3) // 4  # two strides of 2, each rounding up
    if 8 * (width * edge) ** 2 > LARGEST:
        raise DataError(f"size={size} and width={width} make a layer of more than {LARGEST} weights; take fewer.")
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2, padding=2),
        nn.Softplus(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(2 * width * edge * edge, 4 * width),
        nn.Softplus(),
        nn.Linear(4 * width, outputs),
    )


class PreactBlock(nn.Module):
    """Compute two 3x3 convolutions, each after batch norm and softplus, around an identity (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = None
        if stride != 1 or before != after:
            self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute one block."""
        ready = F.softplus(self.norm1(x))
        passed = x if self.shortcut is None else self.shortcut(ready)
        inner = self.conv1(ready)
        return passed + self.conv2(F.softplus(self.norm2(inner)))


class PreactResNet18(nn.Module):
    """Build PreactResNet-18 with softplus instead of ReLU (VL 5): 11.2 million weights at width 1, 0.7 at width 1/4.

    Args:
        channels: Channels of the images.
        outputs: Number of classes.
        width: Factor on the 64, 128, 256 and 512 channels of the four stages.
    """

    @checked
    def __init__(self, channels: AtLeastOne = 3, outputs: AtLeastOne = 10, width: Positive = 1.0) -> None:
        super().__init__()
        planes = [round(64 * width) * 2**stage for stage in range(4)]
        if planes[0] < 1:
            raise DataError(f"width={width} leaves no channels; the narrowest is 1/64")
        whole = 43 * planes[-1] ** 2  # of the blocks together
        if max(whole, 9 * planes[0] * channels, planes[-1] * outputs) > LARGEST:
            raise DataError(f"width={width} makes a network or a layer of more than {LARGEST} weights; take less.")
        self.stem = nn.Conv2d(channels, planes[0], 3, 1, 1, bias=False)
        blocks = []
        for stage, after in enumerate(planes):
            before = planes[max(stage - 1, 0)]
            blocks += [PreactBlock(before, after, 1 if stage == 0 else 2), PreactBlock(after, after, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(planes[-1])
        self.head = nn.Linear(planes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[B, outputs]` of images `[B, channels, H, W]` of any size."""
        features = F.softplus(self.norm(self.blocks(self.stem(x))))
        return self.head(features.mean((2, 3)))

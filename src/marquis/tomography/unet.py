"""Define the U-Net whose weights parameterise an image, and group its convolutions into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.arguments import checked
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import refuse_training_mode

SLOPE = 0.2
SKIP_CHANNELS = 4
SMALL_EDGE = 32
"""Pixels along an edge up to which the default network is small and has no norm layers."""


class UNet(nn.Module):
    """Map one image `[1, 1, H, W]` to one image, as the U-Nets of deep image priors do.

    `inlet`, then per scale a `down` block (stride 2) and on the way back an `up` block (bilinear upsampling, joined
    with a few `skip` channels of the same scale), and `out`, a 1 x 1 convolution before the output's range.

    Args:
        channels: channels of each scale, finest first.
        norm: whether blocks have group normalisation (groups of up to 8 channels).
        range: least and largest value of a pixel, reached through a sigmoid; None for softplus.
        scale: size of a pixel's values where there is no range.
        dropout: probability of dropping a channel after each 3 x 3 convolution; active in training mode only.
    """

    @checked
    def __init__(
        self,
        channels: Sequence[int] = (16, 16, 16),
        *,
        norm: bool = False,
        range: tuple[float, float] | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels, self.range, self.scale = tuple(channels), range, float(scale)
        if not channels or not all(isinstance(count, int) and count > 0 for count in channels):
            raise DataError(f"channels is {channels!r}; at least one number of channels is needed, all positive.")
        if not 0 <= dropout < 1:
            raise DataError(f"dropout is {dropout}; a probability from 0 to less than 1 is needed.")
        self.inlet = nn.Sequential(*_convolution(1, channels[0], norm, dropout))
        pairs = list(pairwise(channels))
        self.down = nn.ModuleList(_double(fine, coarse, norm, dropout, stride=2) for fine, coarse in pairs)
        self.skip = nn.ModuleList(nn.Conv2d(fine, SKIP_CHANNELS, 1) for fine, _ in reversed(pairs))
        self.up = nn.ModuleList(
            _double(coarse + SKIP_CHANNELS, fine, norm, dropout) for fine, coarse in reversed(pairs)
        )
        self.out = nn.Conv2d(channels[0], 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return the image `[1, 1, H, W]`."""
        levels = [self.inlet(image)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, skip in zip(self.up, self.skip, strict=True):
            fine = levels.pop()
            x = F.interpolate(x, size=fine.shape[-2:], mode="bilinear", align_corners=False)
            x = up(torch.cat([F.leaky_relu(skip(fine), SLOPE), x], dim=1))
        x = self.out(x)
        if self.range is None:
            return self.scale * F.softplus(x)
        low, high = self.range
        return low + (high - low) * torch.sigmoid(x)


def default_network(
    shape: tuple[int, int], range: tuple[float, float] | None, scale: float = 1.0, dropout: float = 0.0
) -> UNet:
    """Return the U-Net for images of this size: wider, deeper and normalised for larger ones."""
    edge = max(shape)
    if edge <= SMALL_EDGE:
        return UNet((16, 16, 16), range=range, scale=scale, dropout=dropout)
    channels = (16, 32, 32, 32) if edge <= 128 else (32,) * 5
    return UNet(channels, norm=True, range=range, scale=scale, dropout=dropout)


def weight_blocks(network: nn.Module) -> dict[str, list[str]]:
    """Return the names of convolution weights by block: `inlet`, `down.0`, `skip.1`, ..., in the network's order.

    A block is a child of the network, or an entry of a child that is a list of modules. Biases and the parameters of
    normalisation layers are in no block: they stay fixed.

    Raises:
        UnsupportedOperationError: batch statistics or dropout are active, or there is no convolution.
    """
    refuse_training_mode(network)
    blocks: dict[str, list[str]] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            parts = name.split(".")
            listed = isinstance(network.get_submodule(parts[0]), nn.ModuleList) and len(parts) > 1
            blocks.setdefault(".".join(parts[:2]) if listed else parts[0], []).append(f"{name}.weight")
    if not blocks:
        raise UnsupportedOperationError("the network has no Conv2d, whose weights the prior is over.")
    return blocks


def _convolution(inputs: int, outputs: int, norm: bool, dropout: float, stride: int = 1) -> list[nn.Module]:
    """Return a convolution with normalisation, activation and dropout."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)]
    if norm:
        layers.append(nn.GroupNorm(max(1, outputs // 8), outputs))
    layers.append(nn.LeakyReLU(SLOPE))
    return [*layers, nn.Dropout2d(dropout)] if dropout > 0 else layers


def _double(inputs: int, outputs: int, norm: bool, dropout: float, stride: int = 1) -> nn.Sequential:
    """Return two convolutions in a row."""
    first, second = _convolution(inputs, outputs, norm, dropout, stride), _convolution(outputs, outputs, norm, dropout)
    return nn.Sequential(*first, *second)

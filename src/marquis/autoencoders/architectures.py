"""Build encoders and decoders: the paper's by name, and pairs for data of any shape, all with tanh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from marquis.arguments import AtLeastOne, Positive, checked
from marquis.choices import choose
from marquis.curvature.planning.memory import made_within_memory
from marquis.errors import DataError
from marquis.randomness import seeded

Pair = tuple[nn.Sequential, nn.Sequential]
Kind = Literal["auto", "dense", "convolutional"]

SMALLEST_CONVOLUTIONAL = 16
"""Images with a smaller edge get dense layers by default: there is little to be gained from sharing weights."""
SMALLEST_EDGE = 4
"""Pooling stops before an edge would become smaller than this."""
CHANNELS = (32, 32, 64, 64, 64)
"""Channels of the convolutions, from the data inwards (docs/method/autoencoders.md#architectures)."""


@checked
def build(
    name_or_shape: str | Sequence[int],
    latent: AtLeastOne,
    width: Positive = 1.0,
    *,
    kind: Kind = "auto",
    seed: int | None = None,
) -> Pair:
    """Build an encoder and a decoder, by name or for data of a shape.

    | name | networks |
    | --- | --- |
    | `mnist-dense` | 784-512-256-K and back, for `[B, 1, 28, 28]` (LAE A.1; docs/method/autoencoders.md) |
    | `fashion-conv` | two convolutions, 3136-2048-1024-K, for `[B, 1, 28, 28]`; 17.2 million weights (LAE A.2) |
    | `celeba-conv` | five convolutions, for `[B, 3, 64, 64]`, usually K = 64 (LAE A.4) |

    Images that are rows already, `[B, 784]`, have the shape `(784,)`, for which the network is that of `mnist-dense`.

    Args:
        name_or_shape: One of these names; or the shape of one example, for which see `for_data`.
        latent: K, the size of the code.
        width: Factor on the numbers of channels and hidden units; 1/8 makes `fashion-conv` small enough for a laptop.
        kind: For a shape: see `for_data`.
        seed: Seed of the weights; None continues torch's global random stream.
    """
    if not isinstance(name_or_shape, str):
        return for_data(name_or_shape, latent, width, kind=kind, seed=seed)
    hint = "Or pass the shape of one sample, for instance (1, 28, 28)."
    name = choose("architecture", name_or_shape, NAMES, hint=hint)
    with seeded(seed):
        return made_within_memory(lambda: NAMES[name](latent, width), f"latent={latent}, width={width}")


@checked
def for_data(
    shape: Sequence[int], latent: AtLeastOne, width: Positive = 1.0, *, kind: Kind = "auto", seed: int | None = None
) -> Pair:
    """Build a sensible pair for data of this shape, with outputs of exactly this shape (odd edges included).

    Dense: two hidden layers, `min(512, max(64, 4 d))` rounded up to a power of two and half of that, for `d` numbers
    per example; 512 and 256 for MNIST. Convolutional: 3x3 convolutions of 32, 32, 64, 64, 64 channels with max pooling
    until the smaller edge is between 4 and 8, one hidden layer of 256; mirrored, with nearest-neighbour upsampling.

    Args:
        shape: Shape of one example: `(d,)`, `(C, H, W)`, or anything, which is then flattened.
        latent: K, the size of the code.
        width: Factor on the numbers of channels and hidden units.
        kind: "dense", "convolutional" (only `(C, H, W)`), or "auto": convolutional for images of edge 16 and more.
        seed: Seed of the weights; None continues torch's global random stream.
    """
    shape = tuple(int(size) for size in shape)
    if not shape or min(shape) < 1:
        raise DataError(f"shape={list(shape)}: the shape of one example has positive sizes, without the batch.")
    kind = choose("kind", kind, ("auto", "dense", "convolutional"))
    if kind == "convolutional" and len(shape) != 3:
        raise DataError(f"convolutions need data of shape (channels, height, width), got {list(shape)}.")
    if kind == "auto":
        kind = "convolutional" if len(shape) == 3 and min(shape[1:]) >= SMALLEST_CONVOLUTIONAL else "dense"

    def make() -> Pair:
        if kind == "dense":
            first = min(512, max(64, 2 ** math.ceil(math.log2(4 * math.prod(shape)))))
            return _dense(shape, latent, _scaled((first, first // 2), width))
        steps = max(0, (min(shape[1:]) // SMALLEST_EDGE).bit_length() - 1)
        channels = (*CHANNELS, *[CHANNELS[-1]] * steps)[: max(1, steps)]
        return _convolutional(shape, latent, _scaled(channels, width), _scaled((256,), width), pool=steps > 0)

    with seeded(seed):
        return made_within_memory(make, f"data of shape {list(shape)} with latent={latent}, width={width}")


NAMES: dict[str, Callable[[int, float], Pair]] = {
    "mnist-dense": lambda latent, width: _dense((1, 28, 28), latent, _scaled((512, 256), width)),
    "fashion-conv": lambda latent, width: _convolutional(
        (1, 28, 28), latent, _scaled((64, 64), width), _scaled((2048, 1024), width), extra=True
    ),
    "celeba-conv": lambda latent, width: _convolutional((3, 64, 64), latent, _scaled(CHANNELS, width), ()),
}


def _dense(shape: tuple[int, ...], latent: int, hidden: Sequence[int]) -> Pair:
    """Build the dense pair `d-hidden-K` and `K-hidden-d`, with flattening inside."""
    sizes = (math.prod(shape), *hidden, latent)
    encoder, decoder = _perceptron(sizes), _perceptron(sizes[::-1])
    if len(shape) > 1:
        encoder, decoder = [nn.Flatten(), *encoder], [*decoder, nn.Unflatten(1, shape)]
    return nn.Sequential(*encoder), nn.Sequential(*decoder)


def _convolutional(
    shape: tuple[int, ...],
    latent: int,
    channels: Sequence[int],
    hidden: Sequence[int],
    *,
    pool: bool = True,
    extra: bool = False,
) -> Pair:
    """Build convolution, tanh, max pooling for every entry of `channels`, then dense layers; the decoder mirrors it.

    Args:
        shape: `(C, H, W)`.
        latent: K.
        channels: Channels of the convolutions.
        hidden: Widths of the dense layers between convolutions and code.
        pool: Whether to pool at all.
        extra: One more convolution at the lowest resolution of the decoder, as in the published Fashion network.
    """
    edges = [tuple(shape[1:])]
    encoder: list[nn.Module] = []
    for before, after in pairwise((shape[0], *channels)):
        encoder += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
        if pool:
            # Rounding up: an odd last row is pooled with nothing instead of being dropped.
            odd = any(edge % 2 for edge in edges[-1])
            encoder.append(nn.MaxPool2d(2, ceil_mode=True) if odd else nn.MaxPool2d(2))
            edges.append(tuple((edge + 1) // 2 for edge in edges[-1]))
    lowest = (channels[-1], *edges[-1])
    sizes = (math.prod(lowest), *hidden, latent)
    encoder += [nn.Flatten(), *_perceptron(sizes)]
    decoder: list[nn.Module] = [*_perceptron(sizes[::-1]), nn.Tanh(), nn.Unflatten(1, lowest)]
    if extra:
        decoder += [nn.Conv2d(channels[-1], channels[-1], 3, padding=1), nn.Tanh()]
    back = (*channels[::-1], shape[0])
    for number, (before, after) in enumerate(pairwise(back)):
        if pool:
            decoder.append(_upsampling(edges[-1 - number], edges[-2 - number]))
        decoder += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
    pair = nn.Sequential(*encoder), nn.Sequential(*decoder[:-1])
    for layer in (*encoder, *decoder):
        if isinstance(layer, nn.Conv2d):  # half the time of a step on a CPU, and no loss elsewhere
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    return pair


def _upsampling(small: tuple[int, ...], large: tuple[int, ...]) -> nn.Module:
    """Build nearest-neighbour upsampling by two, or to the exact size where an edge is odd."""
    if all(2 * a == b for a, b in zip(small, large, strict=True)):
        return nn.Upsample(scale_factor=2)
    return nn.Upsample(size=large)


def _perceptron(sizes: Sequence[int]) -> list[nn.Module]:
    """Build dense layers with tanh between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return layers[:-1]


def _scaled(sizes: Sequence[int], width: float) -> tuple[int, ...]:
    """Return layer sizes multiplied by the width factor, at least 1 each."""
    return tuple(max(1, round(size * width)) for size in sizes)

"""Split an image output into tiles, so that the cost of the exact diagonal grows linearly with its pixels.

A column of S touches only the receptive field of its pixel. The columns of one tile go backwards together inside the
union of their receptive fields: small tiles waste less of it, large ones need fewer calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.registry import is_tagged_pointwise, operation_of

CALL_SECONDS = 1.0e-3
"""Fixed cost of one tile through a handful of layers."""

DENSE_ROWS = 256
"""Rows (columns x samples) at which a product with a large matrix runs at full speed."""

CONVOLUTIONS = ("convolution", "transposed convolution")

Shapes = Mapping[int, tuple[int, ...]]


def image_shape(network: Network, shapes: Shapes) -> tuple[int, ...] | None:
    """Return the shape (channels, *space) of the image that a convolution made and that became the output.

    Only reshapes and elementwise operations may lie between; None if the output is no image.
    """
    number = network.output
    while (step := network.producers.get(number)) is not None:
        shape = shapes.get(number, ())
        kind = operation_of(step).kind
        if kind in CONVOLUTIONS:
            return tuple(shape[1:]) if len(shape) >= 3 else None
        sources = [n for n in step.inputs if n in network.batched and len(shapes.get(n, ())) > 1]
        if len(sources) != 1 or not (kind == "reshape" or is_tagged_pointwise(step.op)):
            return None
        number = sources[0]
    return None


def columns_per_tile(image: tuple[int, ...], steps: list[Step], shapes: Shapes, samples: int) -> int:
    """Return the number of columns of the tile that costs least per pixel."""
    channels, *space = image
    convolutions = [step for step in steps if operation_of(step).kind in CONVOLUTIONS]
    kernels = [shapes[ref] for step in convolutions if (ref := step.reference("weight")) is not None]
    reach = width = 0.0
    for step, kernel in zip(convolutions, kernels, strict=True):
        reach += (kernel[-1] - 1) * max(1.0, space[-1] / shapes[step.value][-1])
        width += prod(kernel[:2])
    sides = [2**power for power in range(12) if 2**power <= max(space)] or [1]
    if any(operation_of(step).kind == "matrix product" for step in steps):
        fitting = [side for side in sides if channels * side ** len(space) * samples >= DENSE_ROWS]
        side = min(fitting, default=sides[-1])
        return channels * side ** len(space)
    speed = 5e9 if width < 64 * max(1, len(kernels)) else 3e10
    entry = 2.0 * width * prod(kernels[0][2:]) * samples / speed if kernels else 0.0

    def cost(side: int) -> float:
        area = float(side ** len(space))
        return CALL_SECONDS * max(1, len(kernels)) / area + channels * entry * (side + reach / 2) ** len(space)

    return channels * min(sides, key=cost) ** len(space)

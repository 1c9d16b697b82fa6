"""How an output picture is cut into tiles, so that the exact diagonal grows linearly with its pixels.

A column of S touches only the receptive field of its pixel. The columns of one tile are pulled back together inside the
union of their receptive fields: small tiles waste less of it, large ones need fewer calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.pullbacks.elementwise import is_pointwise

CALL_SECONDS = 1.0e-3
"""Fixed cost of pulling one tile through a handful of layers."""

DENSE_ROWS = 256
"""Rows (columns x samples) at which a product with a large matrix runs at full speed."""

RESHAPES = {"view", "reshape", "flatten", "unflatten"}

Shapes = Mapping[int, tuple[int, ...]]


def picture_of(network: Network, shapes: Shapes) -> tuple[int, ...] | None:
    """The shape (channels, *space) of the picture that a convolution made and that became the output.

    Only reshapes and elementwise operations may lie between; None if the output is no picture.
    """
    number = network.output
    while (step := network.producers.get(number)) is not None:
        shape = shapes.get(number, ())
        if step.name.startswith("conv"):
            return tuple(shape[1:]) if len(shape) >= 3 else None
        sources = [n for n in step.inputs if n in network.batched and len(shapes.get(n, ())) > 1]
        if len(sources) != 1 or not (step.name in RESHAPES or is_pointwise(step)):
            return None
        number = sources[0]
    return None


def columns_per_tile(picture: tuple[int, ...], steps: list[Step], shapes: Shapes, samples: int) -> int:
    """Number of columns of the tile that costs least per pixel."""
    channels, *space = picture
    convolutions = [step for step in steps if step.name.startswith("conv")]
    kernels = [shapes[ref] for step in convolutions if (ref := step.reference("weight")) is not None]
    reach = width = 0.0
    for step, kernel in zip(convolutions, kernels, strict=True):
        own = shapes[step.value]
        reach += (kernel[-1] - 1) * max(1.0, space[-1] / own[-1])
        width += prod(kernel[:2])
    sides = [2**power for power in range(12) if 2**power <= max(space)] or [1]
    if any(step.name in ("linear", "matmul", "addmm") for step in steps):
        fitting = [side for side in sides if channels * side ** len(space) * samples >= DENSE_ROWS]
        side = min(fitting, default=sides[-1])
        return channels * side ** len(space)
    speed = 5e9 if width < 64 * max(1, len(kernels)) else 3e10
    entry = 2.0 * width * prod(kernels[0][2:]) * samples / speed if kernels else 0.0

    def cost(side: int) -> float:
        area = float(side ** len(space))
        return CALL_SECONDS * max(1, len(kernels)) / area + channels * entry * (side + reach / 2) ** len(space)

    return channels * min(sides, key=cost) ** len(space)

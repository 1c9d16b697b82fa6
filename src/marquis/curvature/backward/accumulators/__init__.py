"""Turn per-sample gradients into a structure, by one accumulator for each kind of matrix.

An accumulator receives each parameter's gradients once per chunk of columns. The diagonal and the Kronecker factors use
them at once; block, full and low-rank need several parameters together and wait for them.
"""

from __future__ import annotations

from torch import Tensor

from marquis.curvature.backward.accumulators.base import Accumulator
from marquis.curvature.backward.accumulators.dense import BlockAccumulator, FullAccumulator, LowRankAccumulator
from marquis.curvature.backward.accumulators.diagonal import DiagonalAccumulator, Running
from marquis.curvature.backward.accumulators.kronecker import KroneckerAccumulator
from marquis.structures import Layout

__all__ = [
    "Accumulator",
    "BlockAccumulator",
    "DiagonalAccumulator",
    "FullAccumulator",
    "KroneckerAccumulator",
    "LowRankAccumulator",
    "Running",
    "make_accumulator",
]


def make_accumulator(
    structure: str,
    layout: Layout,
    like: Tensor,
    samples: int,
    reduce: bool = False,
    running: Running | None = None,
) -> Accumulator:
    """Return the accumulator for a structure's name.

    Args:
        structure: one of `diagonal`, `kronecker`, `block`, `full`, `lowrank`.
        layout: selected parameters.
        like: a tensor with the dtype and device of the result.
        samples: batch size.
        reduce: for `kronecker`, sum over positions first.
        running: for `diagonal`, what the batch is added to in place.
    """
    if structure == "diagonal":
        return DiagonalAccumulator(like, layout, running)
    if structure == "kronecker":
        return KroneckerAccumulator(like, layout, samples=samples, reduce=reduce)
    if structure == "block":
        return BlockAccumulator(like, layout, members=layout.by_module())
    return FullAccumulator(like, layout) if structure == "full" else LowRankAccumulator(like, layout)

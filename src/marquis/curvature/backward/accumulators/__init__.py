"""Turning per-sample gradients into a structure: one sink for each kind of matrix.

A sink receives each parameter's gradients once per chunk of columns. Diagonal and Kronecker sinks use them at once;
block, full and low-rank need several parameters together and wait for them.
"""

from __future__ import annotations

from torch import Tensor

from marquis.curvature.backward.accumulators.base import Sink
from marquis.curvature.backward.accumulators.dense import BlockSink, FullSink, LowRankSink
from marquis.curvature.backward.accumulators.diagonal import DiagonalSink
from marquis.curvature.backward.accumulators.kronecker import KroneckerSink
from marquis.structures import Layout

__all__ = ["BlockSink", "DiagonalSink", "FullSink", "KroneckerSink", "LowRankSink", "Sink", "make_sink", "modules_of"]


def make_sink(structure: str, layout: Layout, like: Tensor, samples: int, reduce: bool = False) -> Sink:
    """The sink for a structure's name.

    Args:
        structure: one of `diagonal`, `kronecker`, `block`, `full`, `lowrank`.
        layout: selected parameters.
        like: a tensor with the dtype and device of the result.
        samples: batch size.
        reduce: for `kronecker`, sum over positions first.
    """
    if structure == "diagonal":
        return DiagonalSink(layout, like)
    if structure == "kronecker":
        return KroneckerSink(layout, like, samples=samples, reduce=reduce)
    if structure == "block":
        return BlockSink(layout, like, members=modules_of(layout.names))
    return FullSink(layout, like) if structure == "full" else LowRankSink(layout, like)


def modules_of(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Parameters grouped by the module that owns them: weight and bias together."""
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(name.rpartition(".")[0] or "(top level)", []).append(name)
    return {module: tuple(owned) for module, owned in members.items()}

"""Dense matrices: one block per module, the whole matrix, or its exact low-rank factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators.base import GRADIENT_BYTES, Accumulator
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.structures import Block, Full, Layout, LowRank


@dataclass(eq=False)
class BlockAccumulator(Accumulator):
    """One dense block for each group of parameters: sums of G Gᵀ.

    Attributes:
        members: block name -> its parameters, in layout order.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: dict[str, Tensor] = field(default_factory=dict)
    waiting: dict[str, ParameterGradients] = field(default_factory=dict)

    def groups(self) -> list[tuple[str, ...]]:
        """A block's parameters need common columns."""
        return list(self.members.values())

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Keep until the whole block is there."""
        self.waiting[name] = gradients

    def end_chunk(self) -> None:
        """Square the blocks of which any parameter received gradients."""
        for block, names in self.members.items():
            present = {name: self.waiting[name] for name in names if name in self.waiting}
            if not present:
                continue
            size = sum(self.layout.sizes[name] for name in names)
            if block not in self.blocks:
                self.blocks[block] = self.like.new_zeros(size, size)
            for rows in written_rows(self.layout, names, present):
                self.blocks[block].addmm_(rows.t(), rows)
        self.waiting.clear()

    def finish(self) -> Block:
        """The structure."""
        made: dict[str, tuple[tuple[str, ...], Tensor]] = {}
        for block, names in self.members.items():
            size = sum(self.layout.sizes[name] for name in names)
            made[block] = (names, self.blocks.get(block, self.like.new_zeros(size, size)))
        return Block(self.layout, made)


@dataclass(eq=False)
class FullAccumulator(Accumulator):
    """The whole matrix: columns must be the same for all parameters, so nothing is recompressed."""

    recompresses: bool = False
    matrix: Tensor | None = None
    waiting: dict[str, ParameterGradients] = field(default_factory=dict)

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Keep until the chunk is complete."""
        self.waiting[name] = gradients

    def end_chunk(self) -> None:
        """Add the outer products of this chunk."""
        if self.waiting:
            if self.matrix is None:
                self.matrix = self.like.new_zeros(self.layout.total, self.layout.total)
            for rows in written_rows(self.layout, self.layout.names, self.waiting):
                self.matrix.addmm_(rows.t(), rows)
        self.waiting.clear()

    def finish(self) -> Full:
        """The structure."""
        size = self.layout.total
        return Full(self.layout, self.matrix if self.matrix is not None else self.like.new_zeros(size, size))


@dataclass(eq=False)
class LowRankAccumulator(Accumulator):
    """All gradients, as columns of G with H = G Gᵀ."""

    recompresses: bool = False
    rows: list[Tensor] = field(default_factory=list)
    waiting: dict[str, ParameterGradients] = field(default_factory=dict)

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Keep until the chunk is complete."""
        self.waiting[name] = gradients

    def end_chunk(self) -> None:
        """Keep the written-out gradients of this chunk."""
        if self.waiting:
            self.rows.extend(rows.clone() for rows in written_rows(self.layout, self.layout.names, self.waiting))
        self.waiting.clear()

    def finish(self) -> LowRank:
        """The structure."""
        empty = self.like.new_zeros(0, self.layout.total)
        return LowRank(self.layout, torch.cat([empty, *self.rows]).t())


def written_rows(
    layout: Layout, names: tuple[str, ...], gradients: Mapping[str, ParameterGradients]
) -> Iterator[Tensor]:
    """Gradients of several parameters side by side, [c * m, P], a few samples at a time."""
    some = next(iter(gradients.values()))
    total = sum(layout.sizes[name] for name in names)
    width = max(1, GRADIENT_BYTES // max(1, some.columns * total * some.item))
    for start in range(0, some.samples, width):
        stop = min(some.samples, start + width)
        parts = []
        for name in names:
            if name in gradients:
                parts.append(gradients[name].explicit(start, stop).reshape(some.columns * (stop - start), -1))
            else:
                reference = next(iter(gradients.values())).explicit(start, start + 1)
                parts.append(reference.new_zeros(some.columns * (stop - start), layout.sizes[name]))
        yield torch.cat(parts, dim=1)

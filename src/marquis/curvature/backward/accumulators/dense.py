"""Accumulate dense matrices: one block per module, the whole matrix, or its exact low-rank factor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from marquis.curvature.backward.accumulators.base import GRADIENT_BYTES, Accumulator
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.structures import Block, Full, LowRank


@dataclass(eq=False)
class DenseAccumulator(Accumulator):
    """Wait for the gradients of several parameters and write them out side by side.

    Attributes:
        waiting: gradients of the current chunk of columns.
    """

    waiting: dict[str, ParameterGradients] = field(default_factory=dict)

    @override
    def add(self, name: str, gradients: ParameterGradients) -> None:
        self.waiting[name] = gradients

    @override
    def end_chunk(self) -> None:
        self.take_chunk()
        self.waiting.clear()

    @abstractmethod
    def take_chunk(self) -> None:
        """Add the gradients that are waiting to the result."""

    def rows(self, names: tuple[str, ...]) -> Iterator[Tensor]:
        """Yield the gradients of several parameters side by side, [c * m, P], a few samples at a time."""
        gradients = {name: self.waiting[name] for name in names if name in self.waiting}
        if not gradients:
            return
        some = next(iter(gradients.values()))
        total = sum(self.layout.sizes[name] for name in names)
        width = max(1, GRADIENT_BYTES // max(1, some.columns * total * some.item))
        for start in range(0, some.samples, width):
            stop = min(some.samples, start + width)
            count = some.columns * (stop - start)
            written = {name: of.explicit(start, stop).reshape(count, -1) for name, of in gradients.items()}
            like = next(iter(written.values()))
            parts = [written[n] if n in written else like.new_zeros(count, self.layout.sizes[n]) for n in names]
            yield torch.cat(parts, dim=1)


@dataclass(eq=False)
class BlockAccumulator(DenseAccumulator):
    """Sum `G Gᵀ` into one dense block for each group of parameters.

    Attributes:
        members: block name -> its parameters, in layout order.
        blocks: the sums so far.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: dict[str, Tensor] = field(default_factory=dict)

    @override
    def groups(self) -> list[tuple[str, ...]]:
        return list(self.members.values())

    @override
    def take_chunk(self) -> None:
        for block, names in self.members.items():
            for rows in self.rows(names):
                if block not in self.blocks:
                    self.blocks[block] = rows.new_zeros(rows.shape[1], rows.shape[1])
                self.blocks[block].addmm_(rows.t(), rows)

    def block(self, name: str) -> Tensor:
        """Return one block; zeros where the output does not depend on its parameters."""
        size = sum(self.layout.sizes[member] for member in self.members[name])
        return self.blocks[name] if name in self.blocks else self.like.new_zeros(size, size)

    @override
    def finish(self) -> Block | Full:
        return Block(self.layout, {name: (names, self.block(name)) for name, names in self.members.items()})


@dataclass(eq=False)
class FullAccumulator(BlockAccumulator):
    """Sum the whole matrix: columns must be the same for all parameters, so nothing is recompressed."""

    recompresses: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Put all parameters into one block."""
        self.members = {"all": self.layout.names}

    @override
    def finish(self) -> Full:
        return Full(self.layout, self.block("all"))


@dataclass(eq=False)
class LowRankAccumulator(DenseAccumulator):
    """Collect all gradients as columns of G with H = G Gᵀ."""

    recompresses: bool = field(default=False, init=False)
    kept: list[Tensor] = field(default_factory=list)

    @override
    def take_chunk(self) -> None:
        self.kept.extend(rows.clone() for rows in self.rows(self.layout.names))

    @override
    def finish(self) -> LowRank:
        empty = self.like.new_zeros(0, self.layout.total)
        return LowRank(self.layout, torch.cat([empty, *self.kept]).t())

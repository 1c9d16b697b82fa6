"""Represent curvature by one dense block per module: weight and bias in one block, nothing between modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.errors import DataError, ModelMismatchError
from marquis.structures.base import Part, Structure
from marquis.structures.layout import DiagonalLike, Layout
from marquis.structures.linalg import require_consistent, require_symmetric
from marquis.structures.operators import DenseOperator

BlockEntry = tuple[tuple[str, ...], Tensor]
"""The names of a block's parameters, in order, and the dense matrix over them."""


@dataclass(frozen=True, eq=False, repr=False)
class Block(Structure):
    """Keep a dense matrix per group of parameters (docs/method/curvature.md#full-and-block).

    With blocks of n_b weights: memory sum n_b^2, factorisation sum n_b^3/3.

    Args:
        layout: Names and shapes of the parameters.
        blocks: Block name to (parameter names, symmetric matrix); every parameter in exactly one block.
    """

    kind: ClassVar[str] = "block"
    layout: Layout
    blocks: Mapping[str, BlockEntry]

    def __post_init__(self) -> None:
        """Check that the blocks cover the parameters once, and each matrix."""
        blocks = {block: (tuple(names), matrix) for block, (names, matrix) in self.blocks.items()}
        object.__setattr__(self, "blocks", blocks)
        require_consistent([matrix for _, matrix in blocks.values()], "blocks")
        covered = [name for names, _ in blocks.values() for name in names]
        repeated = sorted({name for name in covered if covered.count(name) > 1})
        missing = [name for name in self.layout.names if name not in covered]
        if repeated or missing:
            raise ModelMismatchError(
                f"every parameter belongs to exactly one block: without one {missing}, in several {repeated}"
            )
        for block, (names, matrix) in blocks.items():
            part = self.layout.select(names)
            if tuple(matrix.shape) != (part.total, part.total):
                raise DataError(f"block {block!r} has shape {tuple(matrix.shape)}, expected ({part.total},) * 2")
            part.check_finite(matrix, f"block {block!r}", axis=0)
            require_symmetric(matrix, f"block {block!r}")

    def _make_parts(self) -> Sequence[Part]:
        return tuple(
            (names, DenseOperator(matrix, f"block {block!r}")) for block, (names, matrix) in self.blocks.items()
        )

    def _replace(self, change: Callable[[str, tuple[str, ...], Tensor], Tensor]) -> Self:
        """Return the same blocks with other matrices."""
        changed = {block: (names, change(block, names, matrix)) for block, (names, matrix) in self.blocks.items()}
        return type(self)(self.layout, changed)

    def tensors(self) -> list[Tensor]:
        """Return the blocks, in order."""
        return [matrix for _, matrix in self.blocks.values()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same blocks with other matrices."""
        matrices = dict(zip(self.blocks, tensors, strict=True))
        return self._replace(lambda block, names, matrix: matrices[block])

    def add_diagonal(self, diagonal: DiagonalLike) -> Self:
        """Return A + diag(d)."""
        spread = self._spread(diagonal)
        return self._replace(lambda block, names, matrix: matrix + torch.diag(self.layout.join(spread, names, matrix)))

    def by_parameter(self) -> dict[str, Tensor]:
        """Return for each name the dense matrix `[size, size]` over that parameter alone."""
        blocks: dict[str, Tensor] = {}
        for names, matrix in self.blocks.values():
            part = self.layout.select(names)
            blocks.update({name: matrix[part.slice(name), part.slice(name)] for name in names})
        return {name: blocks[name] for name in self.layout.names}

    def _plus(self, other: Any) -> Self:
        members, others = ({block: names for block, (names, _) in s.blocks.items()} for s in (self, other))
        if members != others:
            raise ModelMismatchError(f"the blocks differ: {members} and {others}")
        return super()._plus(other)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        members = [[block, list(names)] for block, (names, _) in self.blocks.items()]
        return {"blocks": members}, {f"block.{block}": matrix for block, (_, matrix) in self.blocks.items()}

    @classmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        blocks = {block: (tuple(names), tensors[f"block.{block}"]) for block, names in meta["blocks"]}
        return cls(layout, blocks)

    def _summary(self) -> str:
        return f"{len(self.blocks)} blocks"

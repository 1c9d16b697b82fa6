"""Represent curvature by the whole matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from marquis.errors import DataError
from marquis.structures.base import Part, Structure
from marquis.structures.layout import DiagonalLike, Layout
from marquis.structures.linalg import require_consistent, require_symmetric
from marquis.structures.operators import DenseOperator


@dataclass(frozen=True, eq=False, repr=False)
class Full(Structure):
    """Keep a dense `[P, P]` (docs/method/curvature.md#full-and-block): memory P^2, one factorisation P^3/3.

    Args:
        layout: Names and shapes of the parameters.
        matrix: Symmetric `[P, P]`.
    """

    kind: ClassVar[str] = "full"
    layout: Layout
    matrix: Tensor

    def __post_init__(self) -> None:
        """Check shape, finiteness and symmetry."""
        require_consistent([self.matrix], "matrix")
        if tuple(self.matrix.shape) != (self.layout.total,) * 2:
            raise DataError(f"matrix has shape {tuple(self.matrix.shape)}, expected ({self.layout.total},) * 2")
        self.layout.check_finite(self.matrix, "matrix", axis=0)
        require_symmetric(self.matrix, "matrix")

    def _make_parts(self) -> Sequence[Part]:
        return ((self.layout.names, DenseOperator(self.matrix, "the full matrix")),)

    def tensors(self) -> list[Tensor]:
        """Return the matrix."""
        return [self.matrix]

    def add_diagonal(self, diagonal: DiagonalLike) -> Self:
        """Return A + diag(d), O(P^2) for the copy."""
        return type(self)(self.layout, self.matrix + torch.diag(self.layout.vector(diagonal, self.matrix)))

    def by_parameter(self) -> dict[str, Tensor]:
        """Return for each name the dense block `[size, size]` on the diagonal."""
        places = {name: self.layout.slice(name) for name in self.layout.names}
        return {name: self.matrix[place, place] for name, place in places.items()}

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"matrix": self.matrix}

    @classmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        return cls(layout, tensors["matrix"])

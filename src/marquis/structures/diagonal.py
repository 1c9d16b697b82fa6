"""Represent curvature by its diagonal: one number per weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import Self

from marquis.errors import DataError, NumericalError
from marquis.structures.base import Part, Structure
from marquis.structures.layout import DiagonalLike, Layout
from marquis.structures.linalg import require_consistent
from marquis.structures.operators import DiagonalOperator, require_positive


@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Structure):
    """Keep A = diag(values) (docs/method/curvature.md). Everything costs O(P), `quadratic` O(O P) or O(O^2 P).

    Args:
        layout: Names and shapes of the parameters.
        values: The diagonal `[P]`.
    """

    kind: ClassVar[str] = "diagonal"
    layout: Layout
    values: Tensor

    def __post_init__(self) -> None:
        """Check shape and finiteness."""
        require_consistent([self.values], "diagonal")
        if tuple(self.values.shape) != (self.layout.total,):
            raise DataError(f"values have shape {tuple(self.values.shape)}, expected ({self.layout.total},)")
        self.layout.check_finite(self.values, "diagonal")

    @classmethod
    def trusted(cls, layout: Layout, values: Tensor) -> Self:
        """Return a diagonal whose maker guarantees the shape and that every entry is finite."""
        made = object.__new__(cls)
        object.__setattr__(made, "layout", layout)
        object.__setattr__(made, "values", values)
        return made

    def _make_parts(self) -> Sequence[Part]:
        return ((self.layout.names, _NamedDiagonal(self.values, "the diagonal", self.layout)),)

    def tensors(self) -> list[Tensor]:
        """Return the values."""
        return [self.values]

    def add_diagonal(self, diagonal: DiagonalLike) -> Self:
        """Return diag(values + d), O(P)."""
        spread = self.layout.spread(diagonal, self.values)
        parts = list(spread.values())
        constant = bool(parts) and parts[0].dim() == 0 and all(part is parts[0] for part in parts)
        added = parts[0] if constant else self.layout.join(spread, self.layout.names, self.values)
        return type(self)(self.layout, self.values + added)

    def by_parameter(self) -> dict[str, Tensor]:
        """Return for each name the diagonal in the shape of the parameter."""
        return self.layout.unflatten(self.values)

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"values": self.values}

    @classmethod
    def _from_state(cls, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        return cls(layout, tensors["values"])


@dataclass(frozen=True, eq=False)
class _NamedDiagonal(DiagonalOperator):
    """Represent a diagonal over all parameters that names the parameter that is singular."""

    layout: Layout

    def _checked(self, values: Tensor) -> Tensor:
        try:
            return super()._checked(values)
        except NumericalError:
            worst = self.layout.locate(int(values.detach().argmin()))
            return require_positive(values, f"{self.name} at parameter {worst!r}")

"""What every accumulator does: take per-sample gradients, give a structure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from marquis.curvature.factors.gradients import ParameterGradients
from marquis.structures import Layout, Structure

GRADIENT_BYTES = 2**25
"""How much of the written-out gradients of several parameters is held at a time."""


@dataclass(eq=False)
class Accumulator(ABC):
    """Collects gradients of the parameters of a layout.

    Attributes:
        layout: selected parameters.
        like: a tensor with the dtype and device of the result.
    """

    layout: Layout
    like: Tensor
    recompresses: bool = True

    @abstractmethod
    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Take one parameter's gradients of the current chunk of columns."""

    def end_chunk(self) -> None:
        """Take note that all parameters of this chunk of columns have been added."""
        return None

    def end_segment(self) -> None:
        """Take note that all chunks of columns down to the next bottleneck have been added."""
        return None

    @abstractmethod
    def finish(self) -> Structure:
        """Return the structure of everything added."""

    def groups(self) -> list[tuple[str, ...]]:
        """Return groups of parameters whose gradients must have the same columns."""
        return [(name,) for name in self.layout.names]

    def refuse_shared(self, name: str, uses: int) -> None:
        """Raise if the structure cannot express a parameter with several uses."""
        return None

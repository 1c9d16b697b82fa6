"""Define what every accumulator does: take per-sample gradients and, in most cases, return a structure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor

from marquis.curvature.factors.gradients import ParameterGradients
from marquis.structures import Layout, Structure

GRADIENT_BYTES = 2**25
"""How much of the written-out gradients of several parameters is held at a time."""


@dataclass(eq=False)
class Receiver(ABC):
    """Define what a backward walk needs of an accumulator: it takes the gradients that the walk meets.

    Attributes:
        like: a tensor with the dtype and device of the result.
    """

    like: Tensor
    recompresses: bool = field(default=False, init=False)
    """Whether the columns may be replaced by others with the same S Sᵀ."""
    takes_blocks: bool = field(default=False, init=False)
    """Whether the samples of a batch may come in blocks, one after the other."""

    @abstractmethod
    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Take one parameter's gradients of the current chunk of columns."""

    def end_chunk(self) -> None:
        """Take note that all parameters of this chunk of columns have been added."""
        return None

    def end_segment(self) -> None:
        """Take note that all chunks of columns down to the next bottleneck have been added."""
        return None

    def end_block(self) -> None:
        """Take note that a block of samples has been added, and that others follow."""
        return None

    def groups(self) -> list[tuple[str, ...]]:
        """Return groups of parameters whose gradients must have the same columns."""
        return []

    def refuse_shared(self, name: str, uses: int) -> None:
        """Raise if a parameter with several uses cannot be expressed."""
        return None


@dataclass(eq=False)
class Accumulator(Receiver):
    """Collect gradients of the parameters of a layout.

    Attributes:
        layout: selected parameters.
    """

    layout: Layout
    recompresses: bool = field(default=True, init=False)

    @abstractmethod
    def finish(self) -> Structure:
        """Return the structure of everything added."""

    def groups(self) -> list[tuple[str, ...]]:
        """Return one group per parameter."""
        return [(name,) for name in self.layout.names]

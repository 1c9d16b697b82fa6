"""Which operation is pulled back how: S at an operation's output becomes S at its inputs, `S_in = Jᵀ S_out`.

A rule is registered under the operation's name. Operations without one go through local autograd (`generic.py`), so a
rule is an optimisation, never a condition: it keeps what the factor knows (shared, scaled, windowed) and is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Network, Step

Cotangent = Factor | dict[int, Factor]
"""A factor, or one factor per element where the value is a tuple of tensors."""

Pullback = Callable[["Context", Step, Factor], "Mapping[int, Cotangent] | None"]
"""Returns factors for active inputs, or None to decline (then the generic rule is used)."""

PULLBACKS: dict[str, Pullback] = {}

NEEDS: dict[str, str] = {}
"""What the pull-back of an operation reads from the forward pass: "nothing" (of what depends on the data), "output",
"inputs" (the default), or "factors": the inputs of a product where more than one of them depends on the data."""


@dataclass(eq=False)
class Context:
    """What the rules see: the network, its values on this batch, and a cache shared by all column chunks.

    Attributes:
        network: the captured network.
        values: forward values that the rules need.
        shapes: shapes of all values, also of those that were dropped.
        active: values through which a selected parameter is reached backwards.
        size: number of samples in the batch.
        folding: whether a rule may multiply in the derivative of the step before it.
        folded: elementwise steps whose derivative an earlier rule has already multiplied in.
        caching: whether there is a next chunk that could use what is cached.
        cache: anything computed from `values` that the next column chunk can use again, by (step, what).
    """

    network: Network
    values: dict[int, Any]
    shapes: Mapping[int, tuple[int, ...]]
    active: frozenset[int]
    size: int
    folding: bool = True
    folded: set[int] = field(default_factory=set)
    caching: bool = True
    cache: dict[tuple[int, str], Any] = field(default_factory=dict)

    def targets(self, step: Step) -> list[int]:
        """The inputs of a step that need a factor: those that depend on the data and on a selected parameter."""
        return [n for n in step.inputs if n in self.active and n in self.network.batched]

    def is_target(self, number: int | None) -> bool:
        """Whether a value needs a factor."""
        return number is not None and number in self.active and number in self.network.batched

    def value(self, number: int) -> Any:
        """A forward value; zeros of its shape where it was dropped because only linear operations read it."""
        if number in self.values:
            return self.values[number]
        like = next(v for v in self.values.values() if isinstance(v, Tensor) and v.is_floating_point())
        return like.new_zeros(()).expand(self.shapes[number])

    def batch_first(self, number: int) -> bool:
        """Whether dimension 0 of a value is exactly the batch."""
        axis = self.network.axes.get(number)
        return axis is not None and axis.axis == 0 and axis.inner == 1

    def cached(self, step: Step, what: str, make: Callable[[], Any]) -> Any:
        """Compute once per batch."""
        if not self.caching:
            return make()
        key = (step.value, what)
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def factor(self, columns: Tensor, number: int) -> Factor:
        """A plain factor at a value from written-out columns [c, *shape]."""
        return Factor(columns, tuple(columns.shape[1:]), batch_first=self.batch_first(number))


def pullback(*names: str, needs: str = "inputs") -> Callable[[Pullback], Pullback]:
    """Register a rule for the operations with these names; `needs` as in `NEEDS`."""

    def register(rule: Pullback) -> Pullback:
        for name in names:
            PULLBACKS[name] = rule
            NEEDS[name] = needs
        return rule

    return register

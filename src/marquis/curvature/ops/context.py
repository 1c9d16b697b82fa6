"""Define what the rules of an operation see of the network: one view for factors, one for diagonals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Network, Step
from marquis.errors import UnsupportedOperationError

Cotangent = Factor | dict[int, Factor]
"""A factor, or one factor per element where the value is a tuple of tensors."""


@dataclass(eq=False)
class Context:
    """Hold the network's values on one batch, for vector-Jacobian products and parameter gradients.

    Attributes:
        network: the captured network.
        values: forward values that the rules need.
        shapes: shapes of all values, also of those that were dropped.
        active: values through which a selected parameter is reached backwards.
        size: number of samples in the batch.
        folding: whether a rule may multiply in the derivative of the step before it.
        folded: elementwise steps whose derivative an earlier rule has already multiplied in.
        caching: whether there is a next chunk of columns that could use what is cached.
        cache: anything computed from `values` that the next chunk can use again, by step and purpose.
        facts: anything that is the same for all samples and chunks, by step.
        buffers: memory that the next block of samples uses again, by step and shape; None where every tensor is new.
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
    facts: dict[int, Any] = field(default_factory=dict)
    buffers: dict[tuple[int, tuple[int, ...]], Tensor] | None = None

    def targets(self, step: Step) -> list[int]:
        """Return the inputs of a step that need a factor: those that depend on data and on a selected parameter."""
        return [n for n in step.inputs if n in self.active and n in self.network.batched]

    def is_target(self, number: int | None) -> bool:
        """Return whether a value needs a factor."""
        return number is not None and number in self.active and number in self.network.batched

    def value(self, number: int) -> Any:
        """Return a forward value; zeros of its shape where it was dropped because only linear operations read it."""
        if number in self.values:
            return self.values[number]
        like = next(v for v in self.values.values() if isinstance(v, Tensor) and v.is_floating_point())
        return like.new_zeros(()).expand(self.shapes[number])

    def batch_first(self, number: int) -> bool:
        """Return whether dimension 0 of a value is exactly the batch."""
        axis = self.network.axes.get(number)
        return axis is not None and axis.axis == 0 and axis.inner == 1

    def cached(self, step: Step, purpose: str, make: Callable[[], Any]) -> Any:
        """Return what `make` computes, once per batch."""
        if not self.caching:
            return make()
        key = (step.value, purpose)
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def fact(self, step: Step, make: Callable[[], Any]) -> Any:
        """Return what `make` computes of a step's options, once for all blocks of samples."""
        if step.value not in self.facts:
            self.facts[step.value] = make()
        return self.facts[step.value]

    def zeros(self, step: Step, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return zeros for the columns behind a step; successive blocks of samples reuse the memory of the last one."""
        if self.buffers is None:
            return like.new_zeros(shape)
        key = (step.value, shape)
        if key not in self.buffers:
            self.buffers[key] = like.new_empty(shape)
        return self.buffers[key].zero_()

    @property
    def divisible(self) -> bool:
        """Return whether every value that depends on the data is a tensor with the batch first, which can be cut."""
        batched = self.network.batched
        if self.network.fixed_batch is not None or not all(self.batch_first(n) and n in self.shapes for n in batched):
            return False
        return all(isinstance(value, Tensor) for n, value in self.values.items() if n in batched or n < 0)

    def of_samples(self, start: int, stop: int) -> Context:
        """Return the same for the samples [start, stop) only; their values are views."""
        batched, size = self.network.batched, stop - start
        values = {n: v[start:stop] if n in batched or n < 0 else v for n, v in self.values.items()}
        shapes = {n: (size, *shape[1:]) if n in batched else shape for n, shape in self.shapes.items()}
        return replace(self, values=values, shapes=shapes, size=size, folded=set(), cache={})

    def factor(self, columns: Tensor, number: int) -> Factor:
        """Return a plain factor at a value from columns [c, *shape] that are written out."""
        return Factor(columns, tuple(columns.shape[1:]), batch_first=self.batch_first(number))


@dataclass(eq=False)
class SquaredCall:
    """Hold one operation for a squared rule: its arguments, the m of its results, and who receives it.

    Attributes:
        step: the operation.
        values: forward values.
        parts: m of each of its results (an operation with one result has part 0 only).
        wanted: the inputs that selected parameters lie upstream of.
        receive: takes the number of a value, which part of it, and a contribution to its m.
    """

    step: Step
    values: dict[int, Any]
    parts: dict[int, Tensor]
    wanted: frozenset[int]
    receive: Callable[[int, int, Tensor], None]

    @property
    def m(self) -> Tensor:
        """Return the m of the first result.

        Raises:
            UnsupportedOperationError: another result is used.
        """
        if set(self.parts) != {0}:
            raise UnsupportedOperationError(
                f"{self.step.where}: a result other than the first one is used (results {sorted(self.parts)}), "
                "for which there is no rule. Use estimator='sketched' or 'exact'."
            )
        return self.parts[0]

    @property
    def output(self) -> Any:
        """Return the operation's result in the forward pass."""
        return self.values[self.step.value]

    @property
    def input_name(self) -> str:
        """Return what the schema calls the first tensor: "input" or "self"."""
        return "input" if self.step.has_argument("input") else "self"

    def value(self, argument: str) -> Any:
        """Return the value of an argument, by its name in the operation's schema."""
        return self.step.argument(argument, self.values)

    def wants(self, argument: str) -> bool:
        """Return whether m of this argument is needed."""
        return self.step.reference(argument) in self.wanted

    def give(self, argument: str, m: Tensor) -> None:
        """Add a contribution to the m of an argument."""
        number = self.step.reference(argument)
        assert number is not None
        self.receive(number, 0, m)

    def give_to(self, number: int, m: Tensor, part: int = 0) -> None:
        """Add a contribution to the m of a value by its number."""
        self.receive(number, part, m)


def per_dimension(value: Any, dims: int) -> list[int]:
    """Return a hyper-parameter as one number per spatial dimension."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * dims if len(values) == 1 else values

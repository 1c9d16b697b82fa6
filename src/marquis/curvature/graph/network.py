"""Represent a network as a flat list of operations.

A `Network` holds steps in execution order, each one operation as the user wrote it (`linear`, `conv2d`,
`layer_norm`, ...), its arguments referring to earlier values by number, and the path of the module that it came
from. `capture.py` makes one; everything else in this package walks the list, forwards or backwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.graph.batch_axis import BatchAxis

Forward = Callable[..., "tuple[Tensor, Tensor | None]"]
"""What a forward pass runs in place of an operation: returns its result, and what the backward pass reads besides."""


@dataclass(frozen=True)
class Ref:
    """Refer to the value with this number among a step's arguments."""

    value: int


@dataclass(frozen=True, eq=False)
class Step:
    """Describe one operation, `value = op(*args, **kwargs)` with `Ref`s for earlier values."""

    value: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: str
    inputs: tuple[int, ...]

    @cached_property
    def name(self) -> str:
        """Return the operation's short name, e.g. `conv2d`."""
        return op_name(self.op)

    @property
    def where(self) -> str:
        """Return operation and module path, for messages."""
        return f"operation `{self.name}` in module '{self.path or '(top level)'}'"

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        """Return the arguments by their names in the operation's schema, defaults filled in."""
        formals = self.op._schema.arguments
        defaults = {formal.name: formal.default_value for formal in formals if formal.has_default_value()}
        return {**defaults, **dict(zip((formal.name for formal in formals), self.args, strict=False)), **self.kwargs}

    def argument(self, name: str, values: Mapping[int, Any]) -> Any:
        """Return the value of an argument by its name in the operation's schema."""
        return resolve(self._arguments[name], values)

    def has_argument(self, name: str) -> bool:
        """Return whether the operation's schema has an argument of this name."""
        return name in self._arguments

    def reference(self, name: str) -> int | None:
        """Return the value number behind an argument, or None where it is a constant or absent."""
        argument = self._arguments.get(name)
        return argument.value if isinstance(argument, Ref) else None

    @cached_property
    def occurrences(self) -> dict[int, int]:
        """Return how often each value occurs among the arguments."""
        counts: dict[int, int] = {}
        for ref in references((self.args, self.kwargs)):
            counts[ref.value] = counts.get(ref.value, 0) + 1
        return counts


PROBABILITIES = {"categorical": "softmax", "bernoulli": "sigmoid"}
"""Activation that a likelihood applies itself, by the likelihood's kind."""
RESHAPING = frozenset(("alias", "clone", "contiguous", "flatten", "reshape", "squeeze", "to", "unsqueeze", "view"))


@dataclass(frozen=True, eq=False)
class Network:
    """Represent a captured network. Immutable; parameters and inputs are passed in each time.

    Attributes:
        steps: the operations in execution order.
        output: number of the value that the model returns; its dimension 0 is the batch.
        parameters: value number of each parameter (a tied parameter is listed once and used several times).
        constants: value number -> a function that fetches the buffer or constant as it is now.
        leaves: value numbers of the leaves of `x`, in the order of the flattened pytree.
        batched: values that depend on the input.
        axes: where the batch is in each tensor of `batched` for which that is known.
        fixed_batch: the batch size that this capture is limited to, or None for any.
        memo: facts derived from the above, computed once.
    """

    steps: tuple[Step, ...]
    output: int
    parameters: dict[str, int]
    constants: dict[int, Callable[[], Any]]
    leaves: tuple[int, ...]
    batched: frozenset[int]
    axes: dict[int, BatchAxis]
    fixed_batch: int | None = None
    memo: dict[Any, Any] = field(default_factory=dict)

    def bind(self, params: Mapping[str, Tensor], x: Any) -> dict[int, Any]:
        """Return the values that are known before the first step: parameters, constants and inputs."""
        values: dict[int, Any] = {number: params[name] for name, number in self.parameters.items()}
        values.update({number: fetch() for number, fetch in self.constants.items()})
        values.update(zip(self.leaves, pytree.tree_leaves(x), strict=True))
        return values

    def forward(
        self,
        values: dict[int, Any],
        keep: Iterable[int] | None = None,
        shapes: dict[int, tuple[int, ...]] | None = None,
        with_extra: Mapping[int, Forward] = MappingProxyType({}),
    ) -> Tensor:
        """Run all steps, adding their results to `values`.

        Args:
            values: from `bind`; extended in place.
            keep: value numbers to retain; others are dropped after their last use (None retains everything).
            shapes: receives the shape of every tensor, also of those that are dropped.
            with_extra: step number -> an operation to run instead, which returns the result and, if the backward pass
                reads one, one more tensor (the positions of maxima), kept as `values[~number]`.
        """
        kept_positions = None if keep is None else {*keep, self.output}
        if shapes is not None:
            shapes.update({number: tuple(v.shape) for number, v in values.items() if isinstance(v, Tensor)})
        for step in self.steps:
            run_into(step, values, with_extra)
            result = values[step.value]
            if shapes is not None and isinstance(result, Tensor):
                shapes[step.value] = tuple(result.shape)
            if kept_positions is not None:
                for number in self.released[step.value]:
                    if number not in kept_positions:
                        del values[number]
        return values[self.output]

    @cached_property
    def producers(self) -> dict[int, Step]:
        """Return the step that makes each value."""
        return {step.value: step for step in self.steps}

    @cached_property
    def uses(self) -> dict[int, tuple[Step, ...]]:
        """Return the steps that read each value."""
        users: dict[int, list[Step]] = {}
        for step in self.steps:
            for number in step.inputs:
                users.setdefault(number, []).append(step)
        return {number: tuple(steps) for number, steps in users.items()}

    @cached_property
    def released(self) -> dict[int, tuple[int, ...]]:
        """Return the step results that are read for the last time by each step."""
        last = {number: step.value for step in self.steps for number in step.inputs}
        released: dict[int, list[int]] = {step.value: [] for step in self.steps}
        for step in self.steps:
            released[last.get(step.value, step.value)].append(step.value)
        return {number: tuple(values) for number, values in released.items()}

    @cached_property
    def multiplied_once(self) -> frozenset[str]:
        """Return the weights whose only use is as a layer's matrix or kernel: autograd's gradient is new memory."""
        kinds = ("linear", "conv1d", "conv2d", "conv3d")
        return frozenset(
            name
            for name, number in self.parameters.items()
            if len(self.uses.get(number, ())) == 1
            and (step := self.uses[number][0]).name in kinds
            and step.occurrences[number] == 1
            and step.reference("weight") == number
            and number != self.output
        )

    @cached_property
    def last_operation(self) -> str:
        """Return the name of the operation that makes the output, apart from changes of its shape."""
        number = self.output
        while number in self.producers and self.producers[number].name in RESHAPING and self.producers[number].inputs:
            number = self.producers[number].inputs[0]
        return self.producers[number].name if number in self.producers else ""

    def dependents(self, sources: Iterable[int]) -> frozenset[int]:
        """Return all values that depend on any of `sources`, themselves included."""
        numbers = set(sources)
        for step in self.steps:
            if any(number in numbers for number in step.inputs):
                numbers.add(step.value)
        return frozenset(numbers)


def warn_of_probabilities(network: Network, likelihood: Any, name: str) -> None:
    """Warn, once for each capture, of outputs that are probabilities where the likelihood takes logits."""
    activation = PROBABILITIES.get(getattr(likelihood, "kind", ""))
    if activation is not None and network.last_operation == activation and not network.memo.get("warned"):
        network.memo["warned"] = True
        warnings.warn(
            f"{name} ends with {activation}, but the likelihood {likelihood.kind!r} takes logits and applies "
            f"{activation} itself: probabilities and variances are those of another model. Leave the activation out.",
            stacklevel=2,
        )


def op_name(op: Any) -> str:
    """Return the short name of an operation: the ATen name without namespace and overload."""
    if isinstance(op, torch._ops.OpOverload):
        return op._schema.name.split("::")[-1]
    return getattr(op, "__name__", str(op))


def resolve(arguments: Any, values: Mapping[int, Any]) -> Any:
    """Replace every `Ref` by its value."""
    if isinstance(arguments, Ref):
        return values[arguments.value]
    if isinstance(arguments, (list, tuple)):
        return type(arguments)([resolve(item, values) for item in arguments])
    if isinstance(arguments, dict):
        return {key: resolve(item, values) for key, item in arguments.items()}
    return arguments


def references(tree: Any) -> list[Ref]:
    """Return every `Ref` in an argument tree, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Ref)]


def run(step: Step, values: Mapping[int, Any]) -> Any:
    """Execute one step."""
    arguments, named = step_arguments(step, values)
    return step.op(*arguments, **named)


def run_into(step: Step, values: dict[int, Any], with_extra: Mapping[int, Forward]) -> None:
    """Execute one step and keep its result, and what an operation that stands in for it returns besides."""
    if step.value in with_extra:
        arguments, named = step_arguments(step, values)
        values[step.value], extra = with_extra[step.value](*arguments, **named)
        if extra is not None:
            values[~step.value] = extra
    else:
        values[step.value] = run(step, values)


def step_arguments(step: Step, values: Mapping[int, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a step with every `Ref` replaced by its value."""
    arguments = [values[a.value] if isinstance(a, Ref) else resolve(a, values) for a in step.args]
    return arguments, resolve(step.kwargs, values) if step.kwargs else {}


def rename(step: Step, names: Mapping[int, int]) -> Step:
    """Return the same step reading other values: each number in `names` is replaced by what it stands for."""
    if not any(number in names for number in step.inputs):
        return step

    def renamed(tree: Any) -> Any:
        if isinstance(tree, Ref):
            return Ref(names.get(tree.value, tree.value))
        if isinstance(tree, (list, tuple)):
            return type(tree)(renamed(item) for item in tree)
        return {key: renamed(item) for key, item in tree.items()} if isinstance(tree, dict) else tree

    inputs = tuple(dict.fromkeys(names.get(number, number) for number in step.inputs))
    return Step(step.value, step.op, renamed(step.args), renamed(step.kwargs), step.path, inputs)

"""One rule per operation: how m = diag(M) goes from an operation's output to its inputs and parameters.

For y = g(x) with Jacobian T the rule is `m_x[j] = sum_i T[i, j]² m_y[i]`, exact if M at y is diagonal. A parameter
is an input like any other; its m, summed over the batch, is the approximate diagonal (LAE, appendix E.4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from marquis.curvature.graph.network import Step
from marquis.errors import UnsupportedOperationError

OUTPUT = "output"
"""Stands for the operation's own result in `reading(...)`."""


class Local:
    """One operation on the way back: its arguments, the m of its result, and where contributions go.

    Attributes:
        step: the operation.
        parts: m of each of its results (an operation with one result has part 0 only).
        wanted: the inputs that selected parameters lie upstream of.
    """

    def __init__(
        self,
        step: Step,
        values: dict[int, Any],
        parts: dict[int, Tensor],
        wanted: frozenset[int],
        receive: Callable[[int, int, Tensor], None],
    ) -> None:
        self.step = step
        self.values = values
        self.parts = parts
        self.wanted = wanted
        self._receive = receive

    @property
    def m(self) -> Tensor:
        """The m of the first result; no other result may have been used."""
        if set(self.parts) != {0}:
            raise UnsupportedOperationError(
                f"{self.step.where}: a result other than the first one is used (results {sorted(self.parts)}), "
                "for which there is no rule. Use estimator='sketched' or 'exact'."
            )
        return self.parts[0]

    @property
    def output(self) -> Any:
        """The operation's result in the forward pass."""
        return self.values[self.step.value]

    def value(self, argument: str) -> Any:
        """The value of an argument, by its name in the operation's schema."""
        return self.step.argument(argument, self.values)

    def wants(self, argument: str) -> bool:
        """Whether m of this argument is asked for."""
        return self.step.reference(argument) in self.wanted

    def give(self, argument: str, m: Tensor) -> None:
        """Hand a contribution to an argument."""
        number = self.step.reference(argument)
        assert number is not None
        self.give_to(number, m)

    def give_to(self, number: int, m: Tensor, part: int = 0) -> None:
        """Hand a contribution to a value by its number."""
        self._receive(number, part, m)


Reads = Callable[[Step, frozenset[int]], set[int]]
"""(step, live values) -> the numbers of the values whose entries the rule reads; of others it sees the shape only."""


class Row(NamedTuple):
    """One line of the support table."""

    operation: str
    input_rule: bool
    parameter_rule: bool
    note: str


@dataclass(frozen=True)
class Rule:
    """How m passes one operation.

    Attributes:
        apply: reads `local.m` and hands out contributions.
        reads: which forward values it needs.
        parameter_rule: whether parameters may enter this operation directly.
        between: whether it may stand between a parameter and its use (it never mixes entries).
        check: a reason to refuse this particular use, or None.
        note: for the support table.
    """

    apply: Callable[[Local], None]
    reads: Reads
    parameter_rule: bool = False
    between: bool = False
    check: Callable[[Step, frozenset[int], frozenset[int]], str | None] | None = None
    note: str = ""


RULES: dict[str, Rule] = {}
"""Operation name -> rule. The only list of what the squared pass can do."""


def rule(
    *names: str,
    reads: Reads,
    parameter_rule: bool = False,
    between: bool = False,
    check: Callable[[Step, frozenset[int], frozenset[int]], str | None] | None = None,
    note: str = "",
) -> Callable[[Callable[[Local], None]], Callable[[Local], None]]:
    """Register a function as the rule of these operations."""

    def register(apply: Callable[[Local], None]) -> Callable[[Local], None]:
        for name in names:
            if name in RULES:
                raise ValueError(f"two rules for `{name}`")
            RULES[name] = Rule(apply, reads, parameter_rule, between, check, note)
        return apply

    return register


def reading(**conditions: Iterable[str]) -> Reads:
    """Read each named argument if one of the arguments listed behind it is live (an empty list: always)."""

    def reads(step: Step, live: frozenset[int]) -> set[int]:
        found: set[int] = set()
        for argument, reasons in conditions.items():
            reasons = tuple(reasons)
            if not reasons or any(_reference(step, reason) in live for reason in reasons):
                number = step.value if argument == OUTPUT else _reference(step, argument)
                if number is not None:
                    found.add(number)
        return found

    return reads


def _reference(step: Step, argument: str) -> int | None:
    """The value behind an argument; None for a constant, or where this overload has no such argument."""
    try:
        return step.reference(argument)
    except KeyError:
        return None


def everything(step: Step, live: frozenset[int]) -> set[int]:
    """Read all inputs."""
    return set(step.inputs)


def all_but_live(step: Step, live: frozenset[int]) -> set[int]:
    """Read indices, masks and the like, not the tensors that m flows to."""
    return {number for number in step.inputs if number not in live}


def nothing(step: Step, live: frozenset[int]) -> set[int]:
    """Read shapes only."""
    return set()

"""Which operation gives the gradients of its parameters how.

A rule is registered under the operation's name and receives the factor at the operation's output and the number of the
batch-free input (a parameter, or something derived from parameters) whose gradient is wanted. It returns a `Form`, or
None to decline; then the exact fall-back is used and the plan says so. The documentation's support table is generated
from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Form
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.registry import Context

Rule = Callable[[Context, Step, Factor, int], "Form | None"]


@dataclass(frozen=True)
class Entry:
    """A registered rule.

    Attributes:
        rule: the function.
        layer: which layers it serves, for the support table.
        kronecker: how the `kronecker` structure keeps the weight: "kronecker" or "diagonal".
    """

    rule: Rule
    layer: str
    kronecker: str


RULES: dict[str, Entry] = {}


def parametric(*names: str, layer: str, kronecker: str = "diagonal") -> Callable[[Rule], Rule]:
    """Register a rule for the operations with these names."""

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = Entry(rule, layer, kronecker)
        return rule

    return register

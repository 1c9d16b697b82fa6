"""Gradients of parameters, one rule per parametric operation.

`gradients_of` finds the rule for one use of a parameter: registered, elementwise, or the exact fall-back.
"""

from __future__ import annotations

from collections.abc import Mapping

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Form, RankOne
from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.pullbacks.elementwise import is_pointwise
from marquis.curvature.ops.pullbacks.registry import Context, Cotangent
from marquis.curvature.ops.rules import convolution, elementwise, embedding, fallback, linear, normalisation
from marquis.curvature.ops.rules.registry import RULES

__all__ = [
    "RULES",
    "convolution",
    "elementwise",
    "embedding",
    "gradients_of",
    "linear",
    "normalisation",
    "without_kronecker_form",
]


def gradients_of(context: Context, step: Step, cotangent: Cotangent, number: int, name: str) -> Form:
    """Per-sample gradients of parameter `name` through its use (as batch-free value `number`) in one step."""
    form = _local(context, step, cotangent, number)
    source = context.network.parameters[name]
    if number == source:
        return form
    if isinstance(form, RankOne) and fallback.is_transpose_of(context.network, number) == source:
        return form.transposed()
    return fallback.derived(context, form, number, name, tuple(context.values[source].shape))


def _local(context: Context, step: Step, cotangent: Cotangent, number: int) -> Form:
    """Gradients of the batch-free value itself."""
    form: Form | None = None
    if isinstance(cotangent, Factor) and step.occurrences[number] == 1:
        entry = RULES.get(step.name)
        if entry is not None:
            form = entry.rule(context, step, cotangent, number)
        elif is_pointwise(step):
            form = elementwise.pointwise(context, step, cotangent, number)
    return form if form is not None else fallback.masked(context, step, cotangent, number)


def without_kronecker_form(network: Network, uses: Mapping[int, list[tuple[int, str]]]) -> frozenset[str]:
    """Parameters that the `kronecker` structure keeps as a diagonal, from their uses by step (as in `Route.uses`)."""
    names: set[str] = set()
    for value, used in uses.items():
        entry = RULES.get(network.producers[value].name)
        for number, name in used:
            direct = network.parameters[name] in (number, fallback.is_transpose_of(network, number))
            if entry is None or entry.kronecker != "kronecker" or not direct:
                names.add(name)
    return frozenset(names)

"""Define the mathematics of single operations, one file per family, and how a backward pass uses it."""

from __future__ import annotations

from collections.abc import Mapping

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.outer_products import RankOne
from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops import (  # each family registers its operations
    convolution,
    elementwise,
    embedding,
    fallback,
    linear,
    normalisation,
    pooling,
    resizing,
    shapes,
    transposed_convolution,
)
from marquis.curvature.ops.context import Context, Cotangent
from marquis.curvature.ops.registry import operation_of

__all__ = [
    "convolution",
    "elementwise",
    "embedding",
    "linear",
    "normalisation",
    "parameter_gradients",
    "pooling",
    "resizing",
    "transposed_convolution",
    "vector_jacobian",
    "without_kronecker_form",
]


def vector_jacobian(context: Context, step: Step, cotangent: Cotangent) -> Mapping[int, Cotangent]:
    """Return the factors at the active inputs of a step that depend on the data: its Jacobian's transpose times S."""
    if not context.targets(step):
        return {}
    rule = operation_of(step).vjp
    if rule is None or isinstance(cotangent, dict):
        return fallback.any_vjp(context, step, cotangent)
    factors = rule(context, step, cotangent)
    return fallback.any_vjp(context, step, cotangent) if factors is None else factors


def parameter_gradients(
    context: Context, step: Step, cotangent: Cotangent, number: int, name: str
) -> ParameterGradients:
    """Return the per-sample gradients of parameter `name` through its use, as batch-free value `number`, in a step."""
    gradients: ParameterGradients | None = None
    rule = operation_of(step).gradient
    if rule is not None and isinstance(cotangent, Factor) and step.occurrences[number] == 1:
        gradients = rule(context, step, cotangent, number)
    if gradients is None:
        gradients = fallback.any_gradient(context, step, cotangent, number)
    source = context.network.parameters[name]
    if number == source:
        return gradients
    if isinstance(gradients, RankOne) and shapes.transposed_source(context.network, number) == source:
        return gradients.transposed()
    return fallback.derived_gradient(context, gradients, number, name, tuple(context.values[source].shape))


def without_kronecker_form(network: Network, uses: Mapping[int, list[tuple[int, str]]]) -> frozenset[str]:
    """Return the parameters that the `kronecker` structure keeps as a diagonal.

    Args:
        network: the captured network.
        uses: number of a step -> the batch-free values that enter it, with the parameters they come from.
    """
    names: set[str] = set()
    for value, used in uses.items():
        kronecker = operation_of(network.producers[value]).kronecker
        for number, name in used:
            direct = network.parameters[name] in (number, shapes.transposed_source(network, number))
            if not kronecker or not direct:
                names.add(name)
    return frozenset(names)


def add_cotangents(first: Cotangent, second: Cotangent) -> Cotangent:
    """Return the sum of the cotangents that reach one value from several uses."""
    if isinstance(first, Factor) and isinstance(second, Factor):
        return first.plus(second)
    assert isinstance(first, dict) and isinstance(second, dict)
    merged = dict(first)
    for index, factor in second.items():
        merged[index] = merged[index].plus(factor) if index in merged else factor
    return merged

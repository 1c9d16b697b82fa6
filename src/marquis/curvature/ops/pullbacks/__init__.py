"""Pulling the factor back through one operation.

`pull` finds the rule: a registered one, the elementwise rule for everything that PyTorch tags as pointwise, and local
autograd for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks import convolution, elementwise, linear, pooling, shapes
from marquis.curvature.ops.pullbacks.generic import generic
from marquis.curvature.ops.pullbacks.registry import PULLBACKS, Context, Cotangent

__all__ = ["PULLBACKS", "Context", "Cotangent", "convolution", "elementwise", "linear", "pooling", "pull", "shapes"]


def pull(context: Context, step: Step, cotangent: Cotangent) -> Mapping[int, Cotangent]:
    """Factors at the active, data-dependent inputs of a step."""
    if not context.targets(step):
        return {}
    if isinstance(cotangent, dict):
        return generic(context, step, cotangent)
    if step.name == "getitem":
        return shapes.getitem(context, step, cotangent)
    rule = PULLBACKS.get(step.name)
    result = rule(context, step, cotangent) if rule is not None else None
    if result is None and rule is None and elementwise.is_pointwise(step):
        result = elementwise.pointwise(context, step, cotangent)
    return generic(context, step, cotangent) if result is None else result


def add(first: Cotangent, second: Cotangent) -> Cotangent:
    """Sum of the cotangents that reach one value from several uses."""
    if isinstance(first, Factor) and isinstance(second, Factor):
        return first.plus(second)
    assert isinstance(first, dict) and isinstance(second, dict)
    merged = dict(first)
    for index, factor in second.items():
        merged[index] = merged[index].plus(factor) if index in merged else factor
    return merged

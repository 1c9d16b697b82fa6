"""Gradients of bare parameters that enter through an elementwise operation: scales, shifts, gates, PReLU slopes."""

from __future__ import annotations

from marquis.curvature.factor import Factor
from marquis.curvature.gradients import Explicit, Form
from marquis.curvature.graph import Step
from marquis.curvature.pullbacks.elementwise import elementwise_derivatives, sum_to_shape
from marquis.curvature.pullbacks.registry import Context


def pointwise(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """G = sum over the broadcast dimensions of g times the elementwise derivative, for each sample."""
    shape = tuple(context.values[number].shape)
    if not factor.batch_first:
        return None
    if len(shape) == len(factor.shape):
        if shape[0] != 1:
            return None  # the parameter has one entry per sample: only right for this batch size
        inner = shape[1:]
    else:
        inner = shape
    derivatives = context.cached(step, "parameter derivatives", lambda: elementwise_derivatives(context, step))
    if number not in derivatives:
        return None
    columns = factor.multiply(derivatives[number]).dense()
    reduced = sum_to_shape(columns, inner, leading=2)
    return Explicit(reduced.reshape(*reduced.shape[:2], *shape), factor.shape[0])

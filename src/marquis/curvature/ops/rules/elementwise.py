"""Gradients of bare parameters that enter through an elementwise operation: scales, shifts, gates, PReLU slopes."""

from __future__ import annotations

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Explicit, Form
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.elementwise import elementwise_derivatives, sum_to_shape
from marquis.curvature.ops.pullbacks.registry import Context
from marquis.curvature.ops.rules.registry import parametric


@parametric("expand", layer="a parameter expanded over the batch, e.g. a class token")
def expand(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Copies over the batch: each sample has its own share; other copies are summed."""
    inner = _shape_of_one_sample(context, factor, number)
    if inner is None or step.inputs[0] != number:
        return None
    reduced = sum_to_shape(factor.dense(), inner, leading=2)
    return Explicit(reduced.reshape(*reduced.shape[:2], *context.values[number].shape), factor.shape[0])


def _shape_of_one_sample(context: Context, factor: Factor, number: int) -> tuple[int, ...] | None:
    """A parameter's shape without the dimension along which it is copied over the batch."""
    shape = tuple(context.values[number].shape)
    if not factor.batch_first:
        return None
    if len(shape) < len(factor.shape):
        return shape
    return shape[1:] if shape[0] == 1 else None  # else one entry per sample: only right for this batch size


def pointwise(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """G = sum over the broadcast dimensions of g times the elementwise derivative, for each sample."""
    inner = _shape_of_one_sample(context, factor, number)
    if inner is None:
        return None
    derivatives = context.cached(step, "parameter derivatives", lambda: elementwise_derivatives(context, step))
    if number not in derivatives:
        return None
    columns = factor.multiply(derivatives[number]).dense()
    reduced = sum_to_shape(columns, inner, leading=2)
    return Explicit(reduced.reshape(*reduced.shape[:2], *context.values[number].shape), factor.shape[0])

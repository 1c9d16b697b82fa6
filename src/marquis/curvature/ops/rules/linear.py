"""Gradients of dense layers and of matrices that multiply the data."""

from __future__ import annotations

from math import prod

from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Entrywise, Explicit, Form, Outer, RankOne
from marquis.curvature.graph.batch_axis import require_axis
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.registry import Context
from marquis.curvature.ops.rules.registry import parametric


@parametric("linear", layer="Linear, also over sequences; MultiheadAttention", kronecker="kronecker")
def linear(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Y = x Wᵀ + b: dW = sum_t g_t x_tᵀ, db = sum_t g_t."""
    if step.reference("bias") == number:
        return bias_over_positions(context, step, factor)
    inputs = step.reference("input")
    if inputs not in context.network.batched or step.reference("weight") != number or inputs is None:
        return None
    return weight_form(context, step, factor, context.values[inputs], swapped=False)


@parametric("matmul", "mm", layer="a parameter in a matrix product `x @ W`", kronecker="kronecker")
def matmul(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Y = x W."""
    inputs, weight = (ref.value for ref in step.args[:2])
    if weight != number or inputs not in context.network.batched or context.values[weight].dim() != 2:
        return None
    return weight_form(context, step, factor, context.values[inputs], swapped=True)


@parametric("addmm", layer="Linear as decompositions write it", kronecker="kronecker")
def addmm(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Y = b + x W."""
    if step.kwargs:
        return None
    if step.reference("self") == number and context.values[number].dim() == 1:
        return bias_over_positions(context, step, factor)
    inputs = step.reference("mat1")
    if step.reference("mat2") != number or inputs is None or inputs not in context.network.batched:
        return None
    return weight_form(context, step, factor, context.values[inputs], swapped=True)


def weight_form(context: Context, step: Step, factor: Factor, inputs: Tensor, swapped: bool) -> Form:
    """Outer products over the positions; without positions, of rank one."""
    axis = require_axis(context.network.axes, step.value, step.where)
    if inputs.dim() == 2 and axis.axis == 0 and axis.inner == 1:
        return RankOne(inputs, factor, swapped)
    samples_first = axis.to_front(inputs)
    n, i = samples_first.shape[0], inputs.shape[-1]
    a = samples_first.reshape(n, 1, -1, i)
    g = axis.to_front(factor.dense(), leading=1)
    g = g.reshape(factor.count, n, 1, -1, factor.shape[-1])
    shape = (i, g.shape[-1]) if swapped else (g.shape[-1], i)

    def arrange(G: Tensor) -> Tensor:
        G = G.squeeze(-3)
        return G.transpose(-1, -2) if swapped else G

    return Outer(lambda start, stop: a[start:stop], g, n, (1, a.shape[2], i), shape, arrange, swapped)


def bias_over_positions(context: Context, step: Step, factor: Factor) -> Form:
    """The bias of a layer whose features are the last dimension."""
    axis = require_axis(context.network.axes, step.value, step.where)
    if len(factor.shape) == 2 and axis.axis == 0 and axis.inner == 1:
        return Entrywise(factor)
    g = axis.to_front(factor.dense(), leading=1)
    n = g.shape[1]
    return Explicit(g.reshape(factor.count, n, prod(g.shape[2:-1]), g.shape[-1]).sum(2), n, as_block=True)

"""Pull-backs of elementwise operations: multiply by the derivative, lazily.

One rule serves every operation that PyTorch tags as pointwise, with one or several tensor inputs and with
broadcasting. Closed forms are given where they are cheaper than a local derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Step, run
from marquis.curvature.ops.pullbacks.registry import Context, pullback

FROM_OUTPUT: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
    "relu": lambda y: (y > 0).to(y.dtype),
}
"""Derivatives that the output alone determines."""


def is_pointwise(step: Step) -> bool:
    """Whether output entry i depends on entry i of each (broadcast) input only."""
    return isinstance(step.op, torch._ops.OpOverload) and torch.Tag.pointwise in step.op.tags


@pullback(
    "dropout",
    "alpha_dropout",
    "feature_dropout",
    "contiguous",
    "clone",
    "alias",
    "lift_fresh_copy",
    "identity",
    needs="nothing",
)
def same(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """The identity (dropout is refused in training mode before it comes to this)."""
    return {number: factor for number in context.targets(step)}


@pullback("detach", "detach_copy", needs="nothing")
def nothing(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """A detached value passes nothing back."""
    return {}


@pullback("add", "sub", needs="nothing")
def addition(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Sums and differences pass the factor on to both sides, with a sign or a constant factor."""
    left, right = step.reference("self"), step.reference("other")
    alpha = step.argument("alpha", context.values)
    if step.name == "sub":
        alpha = -alpha
    factors: dict[int, Factor] = {}
    for number, weight in ((left, 1), (right, alpha)):
        if number is None or not context.is_target(number):
            continue
        part = factor if weight == 1 else replace(factor, columns=factor.columns * weight)
        part = reduce_to(context, part, number)
        factors[number] = factors[number].plus(part) if number in factors else part
    return factors


def pointwise(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """Any pointwise operation: multiply by its elementwise derivatives."""
    if step.value in context.folded:
        return {number: factor for number in context.targets(step)}
    factors: dict[int, Factor] = {}
    derivatives = context.cached(step, "derivatives", lambda: elementwise_derivatives(context, step))
    for number, derivative in derivatives.items():
        if context.is_target(number):
            factors[number] = reduce_to(context, factor.multiply(derivative), number)
    return factors


def elementwise_derivatives(context: Context, step: Step) -> dict[int, Tensor]:
    """D output[i] / d input[i] for each active tensor input, each of the output's shape."""
    output = context.values.get(step.value)
    targets = [n for n in step.inputs if n in context.active]
    if step.name in FROM_OUTPUT and output is not None:
        return {targets[0]: FROM_OUTPUT[step.name](output)} if targets else {}
    with torch.enable_grad():
        values = {n: context.values[n] for n in step.inputs}
        shape = torch.broadcast_shapes(*(v.shape for v in values.values() if isinstance(v, Tensor)))
        smooth = [n for n in targets if values[n].is_floating_point()]  # not the condition of a `where`
        leaves = {n: values[n].detach().expand(shape).contiguous().requires_grad_() for n in smooth}
        result = run(step, {**values, **leaves})
        if not result.requires_grad:
            return {}
        grads = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
    return {n: g for n, g in zip(leaves, grads, strict=True) if g is not None}


def reduce_to(context: Context, factor: Factor, number: int) -> Factor:
    """Sum a factor over the dimensions that were broadcast, down to the shape of an input."""
    shape = context.shapes[number]
    if shape == factor.shape:
        return factor
    return context.factor(sum_to_shape(factor.dense(), shape, leading=1), number)


def sum_to_shape(tensor: Tensor, shape: tuple[int, ...], leading: int) -> Tensor:
    """Undo broadcasting behind `leading` dimensions."""
    extra = tensor.dim() - leading - len(shape)
    if extra:
        tensor = tensor.sum(dim=tuple(range(leading, leading + extra)))
    squeezed = [leading + i for i, s in enumerate(shape) if s == 1 and tensor.shape[leading + i] != 1]
    return tensor.sum(dim=squeezed, keepdim=True) if squeezed else tensor

"""Define the rules of elementwise operations y[i] = phi(x[i], z[i], ...), with broadcasting, and of the identity.

Index letters: `c` columns of the factor S, `n` samples, `i` entries.

* Vector-Jacobian product: `S_x[c, i] = S[c, i] phi'(x[i])`, kept as a pending multiplication of the factor, and summed
  over the dimensions along which x was broadcast.
* Parameter gradients of scales, shifts, gates, PReLU slopes: the same, summed within each sample.
* Squared rule: `m_x[i] = m[i] phi'(x[i])²`. A phi may be a whole group of steps (`squared/fusion.py`).

One rule serves every operation that PyTorch tags as pointwise, by local autograd; closed forms are given where they
are cheaper.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import ExplicitGradients, ParameterGradients
from marquis.curvature.graph.network import Step, run
from marquis.curvature.ops.context import Context, SquaredCall
from marquis.curvature.ops.registry import (
    ELEMENTWISE,
    SquaredRule,
    operation_of,
    read_everything,
    read_nothing,
    reading,
    register,
)


def derivatives(
    steps: Sequence[Step], inputs: Sequence[int], values: dict[int, Any], shape: tuple[int, ...]
) -> dict[int, Tensor]:
    """Return `d phi / d input` of a chain of elementwise steps for each input, by local autograd."""
    with torch.enable_grad():
        leaves = {n: values[n].detach().expand(shape).requires_grad_() for n in inputs}
        # Inner results are written to the first map, so the forward values stay as they are.
        scope: ChainMap[int, Any] = ChainMap({}, leaves, values)
        for step in steps:
            scope[step.value] = run(step, scope)
        result = scope[steps[-1].value]
        if not result.requires_grad:
            return {}
        grads = torch.autograd.grad(result, list(leaves.values()), torch.ones_like(result), allow_unused=True)
    return {n: grad for n, grad in zip(inputs, grads, strict=True) if grad is not None}


def _active_derivatives(context: Context, step: Step) -> dict[int, Tensor]:
    """Return the derivatives of one step in its active inputs, each of the output's shape."""
    targets = [n for n in step.inputs if n in context.active]
    output = context.values.get(step.value)
    from_output = operation_of(step).derivative_from_output
    if from_output is not None and output is not None:
        return {targets[0]: from_output(output)} if targets else {}
    values = {n: context.values[n] for n in step.inputs}
    shape = torch.broadcast_shapes(*(v.shape for v in values.values() if isinstance(v, Tensor)))
    smooth = [n for n in targets if values[n].is_floating_point()]  # not the condition of a `where`
    return derivatives([step], smooth, values, shape)


# Vector-Jacobian products


def elementwise_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """Multiply by the elementwise derivatives of any pointwise operation."""
    if step.value in context.folded:
        return {number: factor for number in context.targets(step)}
    factors: dict[int, Factor] = {}
    for number, derivative in context.cached(step, "derivatives", lambda: _active_derivatives(context, step)).items():
        if context.is_target(number):
            factors[number] = _undo_broadcasting(context, factor.multiply(derivative), number)
    return factors


def identity_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """Pass the factor on (dropout in training mode is refused before)."""
    return {number: factor for number in context.targets(step)}


def constant_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """Pass nothing on, as for a detached value."""
    return {}


def addition_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Pass the factor on to both sides of a sum or a difference, with a sign or a constant factor."""
    left, right = step.reference("self"), step.reference("other")
    alpha = step.argument("alpha", context.values)
    if step.name == "sub":
        alpha = -alpha
    factors: dict[int, Factor] = {}
    for number, weight in ((left, 1), (right, alpha)):
        if number is None or not context.is_target(number):
            continue
        part = factor if weight == 1 else replace(factor, columns=factor.columns * weight)
        part = _undo_broadcasting(context, part, number)
        factors[number] = factors[number].plus(part) if number in factors else part
    return factors


def _undo_broadcasting(context: Context, factor: Factor, number: int) -> Factor:
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


# Parameter gradients


def elementwise_gradient(context: Context, step: Step, factor: Factor, number: int) -> ParameterGradients | None:
    """Return, for each sample, the sum over the broadcast dimensions of g times the elementwise derivative."""
    slopes = context.cached(step, "parameter derivatives", lambda: _active_derivatives(context, step))
    return summed_within_samples(context, factor.multiply(slopes[number]), number) if number in slopes else None


def summed_within_samples(context: Context, factor: Factor, number: int) -> ParameterGradients | None:
    """Return the gradients of a parameter that is copied over the batch; None where it has an entry per sample."""
    shape = tuple(context.values[number].shape)
    if not factor.batch_first or (len(shape) == len(factor.shape) and shape[0] != 1):
        return None
    inner = shape if len(shape) < len(factor.shape) else shape[1:]
    reduced = sum_to_shape(factor.dense(), inner, leading=2)
    return ExplicitGradients(reduced.reshape(*reduced.shape[:2], *shape), factor.shape[0])


# Squared rules


def elementwise_squared(call: SquaredCall, steps: Sequence[Step], inputs: Sequence[int]) -> None:
    """Multiply m by the squared derivatives of a group of elementwise steps."""
    m = call.m
    for number, slope in derivatives(steps, inputs, call.values, m.shape).items():
        call.give_to(number, (slope.square().to(m.dtype) * m).sum_to_size(call.values[number].shape))


def identity_squared(call: SquaredCall) -> None:
    """Pass m on."""
    call.give(call.input_name, call.m)


def relu_squared(call: SquaredCall) -> None:
    """Keep m where y > 0."""
    call.give("self", torch.ops.aten.threshold_backward(call.m, call.output, 0))


def smooth_squared(call: SquaredCall) -> None:
    """Multiply m twice by the derivative of tanh or sigmoid, which the output determines."""
    backward = torch.ops.aten.tanh_backward if call.step.name == "tanh" else torch.ops.aten.sigmoid_backward
    call.give("self", backward(backward(call.m, call.output), call.output))


def leaky_relu_squared(call: SquaredCall) -> None:
    """Multiply m by the squared slope where x < 0."""
    slope = call.value("negative_slope")
    call.give("self", torch.ops.aten.leaky_relu_backward(call.m, call.value("self"), slope**2, False))


def addition_squared(call: SquaredCall) -> None:
    """Pass m on to the summands of y = x + alpha z and its two relatives."""
    scaled = "self" if call.step.name == "rsub" else "other"
    for argument in ("self", "other"):
        if call.wants(argument):
            m = call.m.sum_to_size(call.value(argument).shape)
            alpha = call.value("alpha") if argument == scaled and call.step.has_argument("alpha") else 1
            call.give(argument, m if alpha == 1 else m * alpha**2)


def product_squared(call: SquaredCall) -> None:
    """Multiply m by the other factor squared, for y = x z."""
    for argument, other in (("self", "other"), ("other", "self")):
        if call.wants(argument):
            factor = call.value(other)
            call.give(argument, (call.m * (factor * factor)).sum_to_size(call.value(argument).shape))


def prelu_squared(call: SquaredCall) -> None:
    """Pass m through y = x or w x with one slope w per channel (dimension 1) or one for all."""
    x, weight, m = call.value("self"), call.value("weight"), call.m
    per_channel = [1] * x.dim()
    if weight.numel() > 1:
        per_channel[1] = weight.numel()
    if call.wants("weight"):
        squared = torch.where(x > 0, 0, x * x) * m
        call.give("weight", squared.sum_to_size(per_channel).reshape(weight.shape))
    if call.wants("self"):
        call.give("self", torch.where(x > 0, m, m * weight.square().reshape(per_channel)))


def glu_squared(call: SquaredCall) -> None:
    """Pass m through y = a sigmoid(b) with a, b the halves of x along one dimension."""
    dim = call.value("dim")
    a, b = call.value("self").chunk(2, dim)
    gate = torch.sigmoid(b)
    call.give("self", torch.cat([call.m * gate.square(), call.m * (a * gate * (1 - gate)).square()], dim))


FUSED = "elementwise, fused with its neighbours where they share an input; "
FROM_OUTPUT = reading(output=())
IDENTITY = SquaredRule(identity_squared, read_nothing, "identity (dropout: evaluation mode)", between=True)
ADDITION = SquaredRule(
    addition_squared,
    read_nothing,
    "m to every live summand, times alpha², summed where it was broadcast; cross terms of forks are dropped",
    parameters=True,
    between=True,
)
PRODUCT = SquaredRule(
    product_squared,
    reading(self=("other",), other=("self",)),
    "m times the other factor squared, summed where it was broadcast; a note in the plan if both factors depend on the "
    "input",
    parameters=True,
    between=True,
)
PRELU = SquaredRule(
    prelu_squared,
    read_everything,
    "x: m or slope² m; slope: m x² where x <= 0. Not fused while its slope is selected",
    parameters=True,
    apart=lambda step, live: step.reference("weight") in live,
)
RELU = SquaredRule(relu_squared, FROM_OUTPUT, f"{FUSED}m where x > 0", between=True)
TANH = SquaredRule(smooth_squared, FROM_OUTPUT, f"{FUSED}m (1 - y²)²", between=True)
SIGMOID = SquaredRule(smooth_squared, FROM_OUTPUT, f"{FUSED}m (y (1 - y))²", between=True)
LEAKY_RELU = SquaredRule(leaky_relu_squared, reading(self=()), f"{FUSED}m or slope² m", between=True)
GLU = SquaredRule(glu_squared, read_everything, "first half: m sigmoid(b)²; second half: m (a sigmoid'(b))²")

register(ELEMENTWISE, vjp=elementwise_vjp, gradient=elementwise_gradient)
register(
    "dropout", "alpha_dropout", "feature_dropout", "clone", "contiguous", "alias", "lift_fresh_copy",
    kind="elementwise", vjp=identity_vjp, vjp_reads="nothing", squared=IDENTITY,
)  # fmt: skip
register("feature_alpha_dropout", kind="elementwise", squared=IDENTITY)
register("identity", vjp=identity_vjp, vjp_reads="nothing")
register("relu", derivative_from_output=lambda y: (y > 0).to(y.dtype), squared=RELU)
register("tanh", derivative_from_output=lambda y: 1 - y * y, squared=TANH)
register("sigmoid", derivative_from_output=lambda y: y * (1 - y), squared=SIGMOID)
register("leaky_relu", squared=LEAKY_RELU)
register("neg", squared=replace(IDENTITY, note=f"{FUSED}m"))
register("add", "sub", kind="sum", vjp=addition_vjp, vjp_reads="nothing", squared=ADDITION)
register("rsub", kind="sum", squared=ADDITION)
register("where", "maximum", "minimum", "masked_fill", kind="sum")
register("mul", squared=PRODUCT)
register("prelu", squared=PRELU)
register("glu", squared=GLU)
register("hardswish", "log_sigmoid", "to", "_to_copy", "type_as", "square", "float", "double", kind="elementwise")
register("detach", "detach_copy", kind="constant", vjp=constant_vjp, vjp_reads="nothing")
register(
    "argmax", "argmin", "argsort", "eq", "ne", "gt", "ge", "lt", "le", "logical_and", "logical_or", "logical_not",
    "logical_xor", "isnan", "isinf", "isfinite", "bitwise_and", "bitwise_or", "bitwise_not", "sign", "floor", "ceil",
    "round", "nonzero", "any", "all", "bucketize", "searchsorted",
    kind="constant",
)  # fmt: skip

"""Elementwise operations: m_x = m phi'(x)², with one generic rule and closed forms for the frequent ones.

A phi may be a whole group of steps (`fusion.py`) and depend on several tensors that broadcast together; each of them
gets its own partial derivative squared, summed over the dimensions along which it was repeated.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.graph.network import Step, run
from marquis.curvature.ops.squared_rules.registry import Local, everything, nothing, reading, rule

IDENTITY = (
    "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
    "clone", "contiguous", "alias", "lift_fresh_copy",
)  # fmt: skip
"""Operations that return their input (dropout: in evaluation mode, the only one that capture lets through)."""

UNTAGGED = {*IDENTITY, "hardswish", "log_sigmoid", "to", "_to_copy", "type_as", "square", "float", "double"}
"""Elementwise operations that do not carry `torch.Tag.pointwise`."""

PLAIN_SUMS = {"add", "sub", "rsub", "where", "maximum", "minimum", "masked_fill"}
"""Operations in two tensors whose derivative in the one does not scale with the other."""


def is_pointwise(step: Step) -> bool:
    """Whether every entry of the result depends on one entry of each (broadcast) argument."""
    if not isinstance(step.op, torch._ops.OpOverload):
        return False
    return step.name in UNTAGGED or torch.Tag.pointwise in step.op.tags


def squared_derivatives(
    steps: Sequence[Step], inputs: Sequence[int], values: dict[int, Any], shape: torch.Size
) -> dict[int, Tensor]:
    """(d phi / d input)² of a chain of elementwise steps, each of the full `shape`, by local autograd."""
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
    return {n: grad.square() for n, grad in zip(inputs, grads, strict=True) if grad is not None}


def elementwise(local: Local, steps: Sequence[Step], inputs: Sequence[int]) -> None:
    """The generic rule for a group of elementwise steps."""
    m = local.m
    for number, squared in squared_derivatives(steps, inputs, local.values, m.shape).items():
        local.give_to(number, (squared.to(m.dtype) * m).sum_to_size(local.values[number].shape))


def _pointwise_note(formula: str) -> str:
    return f"elementwise, fused with its neighbours where they share an input; {formula}"


@rule(*IDENTITY, reads=nothing, between=True, note="identity (dropout: evaluation mode)")
def identity(local: Local) -> None:
    """The map `y = x`."""
    local.give("input" if _has(local.step, "input") else "self", local.m)


def _has(step: Step, argument: str) -> bool:
    return any(formal.name == argument for formal in step.op._schema.arguments)


@rule("relu", reads=reading(output=()), between=True, note=_pointwise_note("m where x > 0"))
def relu(local: Local) -> None:
    """The map `y = max(x, 0)`."""
    local.give("self", torch.ops.aten.threshold_backward(local.m, local.output, 0))


@rule("tanh", reads=reading(output=()), between=True, note=_pointwise_note("m (1 - y²)²"))
def tanh(local: Local) -> None:
    """Hyperbolic tangent."""
    backward = torch.ops.aten.tanh_backward
    local.give("self", backward(backward(local.m, local.output), local.output))


@rule("sigmoid", reads=reading(output=()), between=True, note=_pointwise_note("m (y (1 - y))²"))
def sigmoid(local: Local) -> None:
    """The map `y = 1 / (1 + exp(-x))`."""
    backward = torch.ops.aten.sigmoid_backward
    local.give("self", backward(backward(local.m, local.output), local.output))


@rule("leaky_relu", reads=reading(self=()), between=True, note=_pointwise_note("m or slope² m"))
def leaky_relu(local: Local) -> None:
    """The map `y = x or slope * x`."""
    slope = local.value("negative_slope")
    local.give("self", torch.ops.aten.leaky_relu_backward(local.m, local.value("self"), slope**2, False))


@rule("neg", reads=nothing, between=True, note=_pointwise_note("m"))
def neg(local: Local) -> None:
    """The map `y = -x`."""
    local.give("self", local.m)


@rule(
    "add", "sub", "rsub", reads=nothing, parameter_rule=True, between=True,
    note="m to every live summand, times alpha², summed where it was broadcast; cross terms of forks are dropped",
)  # fmt: skip
def add(local: Local) -> None:
    """The map `y = x + alpha z`, and its two relatives."""
    scaled = "self" if local.step.name == "rsub" else "other"
    for argument in ("self", "other"):
        if local.wants(argument):
            m = local.m.sum_to_size(local.value(argument).shape)
            alpha = local.value("alpha") if argument == scaled and _has(local.step, "alpha") else 1
            local.give(argument, m if alpha == 1 else m * alpha**2)


@rule(
    "mul", reads=reading(self=("other",), other=("self",)), parameter_rule=True, between=True,
    note="m times the other factor squared, summed where it was broadcast; a note in the plan if both factors "
    "depend on the input",
)  # fmt: skip
def mul(local: Local) -> None:
    """The map `y = x z`."""
    for argument, other in (("self", "other"), ("other", "self")):
        if local.wants(argument):
            factor = local.value(other)
            local.give(argument, (local.m * (factor * factor)).sum_to_size(local.value(argument).shape))


@rule(
    "prelu", reads=everything, parameter_rule=True,
    note="x: m or slope² m; slope: m x² where x <= 0. Not fused while its slope is selected",
)  # fmt: skip
def prelu(local: Local) -> None:
    """The map `y = x or w x` with one slope w per channel (dimension 1) or one for all."""
    x, weight, m = local.value("self"), local.value("weight"), local.m
    per_channel = [1] * x.dim()
    if weight.numel() > 1:
        per_channel[1] = -1
    if local.wants("weight"):
        squared = torch.where(x > 0, 0, x * x) * m
        kept = [1] * x.dim()
        if weight.numel() > 1:
            kept[1] = weight.numel()
        local.give("weight", squared.sum_to_size(kept).reshape(weight.shape))
    if local.wants("self"):
        local.give("self", torch.where(x > 0, m, m * weight.square().reshape(per_channel)))


@rule("glu", reads=everything, note="first half: m sigmoid(b)²; second half: m (a sigmoid'(b))²")
def glu(local: Local) -> None:
    """The map `y = a sigmoid(b)` with a, b the halves of x along one dimension."""
    dim = local.value("dim")
    a, b = local.value("self").chunk(2, dim)
    gate = torch.sigmoid(b)
    local.give("self", torch.cat([local.m * gate.square(), local.m * (a * gate * (1 - gate)).square()], dim))

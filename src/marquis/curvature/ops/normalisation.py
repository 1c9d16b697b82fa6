"""Define the rules of normalisation layers: y = w xhat + b with xhat the normalised input.

Index letters: `c` columns of the factor S, `n` samples; k is the number of entries that share statistics, s their
standard deviation (or root mean square).

* Vector-Jacobian product: `S_x = S w / s` for fixed statistics (batch norm in evaluation mode); the others go through
  local autograd.
* Parameter gradients: `dw = sum g xhat` and `db = sum g` over the positions of a sample.
* Squared rule, with v = w² m and the sums `V_j = sum_i v_i xhat_i^j` over the entries that share statistics:
  - mean and variance (layer, group, instance): d xhat_i / d x_j = (δ_ij - (1 + xhat_i xhat_j) / k) / s, so that
    `m_x = [v (1 - 2 (1 + xhat²) / k) + (V_0 + 2 xhat V_1 + xhat² V_2) / k²] / s²`;
  - root mean square: d xhat_i / d x_j = (δ_ij - xhat_i xhat_j / k) / s, so that
    `m_x = [v (1 - 2 xhat² / k) + xhat² V_2 / k²] / s²`;
  - fixed statistics: `m_x = v / s²`;
  - `m_w = sum m xhat²` and `m_b = sum m`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import ExplicitGradients, ParameterGradients
from marquis.curvature.graph.batch_axis import require_axis
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context, SquaredCall
from marquis.curvature.ops.registry import SquaredRule, reading, register

# Vector-Jacobian products


def batch_norm_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Multiply by a fixed scale per channel (evaluation mode)."""
    number = step.reference("input")
    if not context.is_target(number) or number is None:
        return {}
    if not factor.batch_first:
        return None
    values = context.values
    variance, epsilon = step.argument("running_var", values), step.argument("eps", values)
    scale = (variance + epsilon).rsqrt()
    weight = step.argument("weight", values)
    scale = scale if weight is None else scale * weight
    channels = scale.view(1, -1, *([1] * (len(factor.shape) - 2)))
    if factor.window is None:
        return {number: factor.multiply(channels)}
    if factor.window.full != factor.shape[1:]:
        return {number: factor.unwindowed().multiply(channels)}
    start, stop = factor.window.ranges[0]
    merged = channels[:, start:stop] if factor.scale is None else factor.scale * channels[:, start:stop]
    return {number: replace(factor, scale=merged)}


# Parameter gradients


def normalised(step: Step, values: Mapping[int, Any]) -> Tensor | None:
    """Return xhat; None for an instance norm with running statistics."""

    def value(name: str) -> Any:
        return step.argument(name, values)

    x, eps = value("input"), value("eps")
    if step.name == "layer_norm":
        return F.layer_norm(x, value("normalized_shape"), None, None, eps)
    if step.name == "rms_norm":
        return F.rms_norm(x, value("normalized_shape"), None, eps)
    if step.name == "group_norm":
        return F.group_norm(x, value("num_groups"), None, None, eps)
    if step.name == "instance_norm":
        return F.instance_norm(x, eps=eps) if value("use_input_stats") else None
    shape = (1, -1, *([1] * (x.dim() - 2)))
    return (x - value("running_mean").view(shape)) * (value("running_var") + eps).rsqrt().view(shape)


def scale_shift_gradient(context: Context, step: Step, factor: Factor, number: int) -> ParameterGradients | None:
    """Return the gradients of scale or shift, whose features are the last dimensions or dimension 1."""
    if step.reference("bias") != number:
        xhat = context.cached(step, "xhat", lambda: normalised(step, context.values))
        if step.reference("weight") != number or xhat is None:
            return None
        factor = factor.multiply(xhat)
    if step.name in ("layer_norm", "rms_norm"):
        return _over_leading(context, step, factor.dense(), number)
    return _over_space(factor)


def _over_space(factor: Factor) -> ParameterGradients | None:
    """Sum over the dimensions behind the channels."""
    if not factor.batch_first or len(factor.shape) < 2:
        return None
    columns = factor.dense()
    return ExplicitGradients(columns.flatten(3).sum(-1) if columns.dim() > 3 else columns, factor.shape[0])


def _over_leading(context: Context, step: Step, columns: Tensor, number: int) -> ParameterGradients:
    """Sum over all dimensions of a sample in front of the parameter's own."""
    axis = require_axis(context.network, step)
    shape = context.values[number].shape
    columns = axis.to_front(columns, leading=1)
    flat = columns.reshape(*columns.shape[:2], -1, *shape)
    return ExplicitGradients(torch.sum(flat, dim=2), columns.shape[1])


# Squared rules


def layer_norm_squared(call: SquaredCall) -> None:
    """Pass m through statistics over the last dimensions."""
    x = call.value("input")
    shape = list(call.value("normalized_shape"))
    dims = list(range(x.dim() - len(shape), x.dim()))
    xhat, inverse = _standardised(x, dims, call.value("eps"))
    _give_affine(call, xhat, shape)
    if call.wants("input"):
        call.give("input", _through_standardisation(_scaled(call, shape), xhat, inverse, dims))


def group_norm_squared(call: SquaredCall) -> None:
    """Pass m through statistics over groups of channels and all positions."""
    _grouped_squared(call, call.value("num_groups" if call.step.name == "group_norm" else "group"))


def instance_norm_squared(call: SquaredCall) -> None:
    """Pass m through statistics per sample and channel, or running ones in evaluation mode."""
    if call.value("use_input_stats"):
        _grouped_squared(call, call.value("input").shape[1])
    else:
        batch_norm_squared(call)


def _grouped_squared(call: SquaredCall, groups: int) -> None:
    """Pass m through a normalisation over groups of channels."""
    x = call.value("input")
    grouped = x.reshape(x.shape[0], groups, -1)
    xhat, inverse = _standardised(grouped, [2], call.value("eps"))
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    _give_affine(call, xhat.reshape(x.shape), shape)
    if call.wants("input"):
        v = _scaled(call, shape).reshape(grouped.shape)
        call.give("input", _through_standardisation(v, xhat, inverse, [2]).reshape(x.shape))


def rms_norm_squared(call: SquaredCall) -> None:
    """Pass m through x divided by its root mean square over the last dimensions."""
    x = call.value("input")
    shape = list(call.value("normalized_shape"))
    dims = list(range(x.dim() - len(shape), x.dim()))
    eps = call.value("eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    inverse = (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    xhat = x * inverse
    _give_affine(call, xhat, shape)
    if call.wants("input"):
        k = x[(0,) * dims[0]].numel()
        v = _scaled(call, shape)
        square = xhat.square()
        v2 = (v * square).sum(dims, keepdim=True)
        call.give("input", (v - v * square * (2 / k) + square * v2 / k**2) * inverse.square())


def batch_norm_squared(call: SquaredCall) -> None:
    """Pass m through an affine map per channel: running mean and variance."""
    x = call.value("input")
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    inverse = (call.value("running_var") + call.value("eps")).rsqrt().reshape(shape)
    xhat = (x - call.value("running_mean").reshape(shape)) * inverse if call.wants("weight") else None
    _give_affine(call, xhat, shape)
    if call.wants("input"):
        weight = call.value("weight")
        factor = inverse if weight is None else inverse * weight.reshape(shape)
        call.give("input", call.m * factor.square())


def _give_affine(call: SquaredCall, xhat: Tensor | None, shape: list[int]) -> None:
    """Apply the rules of scale and shift, whose entries are laid out as `shape` in the result."""
    if call.wants("weight"):
        assert xhat is not None
        call.give("weight", (call.m * xhat.square()).sum_to_size(shape).reshape(call.value("weight").shape))
    if call.wants("bias"):
        call.give("bias", call.m.sum_to_size(shape).reshape(call.value("bias").shape))


def _scaled(call: SquaredCall, shape: list[int]) -> Tensor:
    """Return m times the squared weight of the normalisation."""
    weight = call.value("weight")
    return call.m if weight is None else call.m * weight.square().reshape(shape)


def _standardised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Return the normalised input and the inverse standard deviations."""
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    inverse = (variance + eps).rsqrt()
    return (x - mean) * inverse, inverse


def _through_standardisation(v: Tensor, xhat: Tensor, inverse: Tensor, dims: list[int]) -> Tensor:
    """Return m of the input for statistics over `dims`; `inverse` is 1/s."""
    k = prod(xhat.shape[dim] for dim in dims)
    weighted = v * xhat
    v0, v1 = v.sum(dims, keepdim=True), weighted.sum(dims, keepdim=True)
    v2 = (weighted * xhat).sum(dims, keepdim=True)
    square = xhat.square()
    diagonal = v - v * (1 + square) * (2 / k)
    return (diagonal + (v0 + 2 * xhat * v1 + square * v2) / k**2) * inverse.square()


def _refuse_batch_statistics(step: Step, live: frozenset[int], data: frozenset[int]) -> str | None:
    return "it uses the statistics of the batch; call model.eval()" if step.argument("training", {}) else None


NOTE = "scale: sum of m xhat²; shift: sum of m"
STATISTICS = reading(input=(), weight=("input",))
FIXED = reading(input=("weight",), weight=("input",), running_mean=("weight",), running_var=("input", "weight"))
EITHER = reading(input=(), weight=("input",), running_mean=(), running_var=())
LAYER_NORM = SquaredRule(layer_norm_squared, STATISTICS, NOTE, parameters=True)
GROUP_NORM = SquaredRule(group_norm_squared, STATISTICS, NOTE, parameters=True)
RMS_NORM = SquaredRule(rms_norm_squared, STATISTICS, "scale: sum of m xhat²", parameters=True)
INSTANCE_NORM = SquaredRule(instance_norm_squared, EITHER, NOTE, parameters=True)
BATCH_NORM = SquaredRule(batch_norm_squared, FIXED, NOTE, parameters=True)
EVALUATION = replace(BATCH_NORM, note=f"evaluation mode. {NOTE}", refuse=_refuse_batch_statistics)

register("layer_norm", kind="normalisation", gradient=scale_shift_gradient, layer="LayerNorm", squared=LAYER_NORM)
register("rms_norm", kind="normalisation", gradient=scale_shift_gradient, layer="RMSNorm", squared=RMS_NORM)
register("group_norm", kind="normalisation", gradient=scale_shift_gradient, layer="GroupNorm", squared=GROUP_NORM)
register(
    "instance_norm",
    kind="normalisation",
    gradient=scale_shift_gradient,
    layer="InstanceNorm with its own statistics",
    squared=INSTANCE_NORM,
)
register(
    "batch_norm", kind="normalisation", vjp=batch_norm_vjp, vjp_reads="nothing",
    gradient=scale_shift_gradient, layer="BatchNorm1d, 2d, 3d in eval mode", squared=EVALUATION,
)  # fmt: skip
register("native_layer_norm", kind="normalisation", squared=LAYER_NORM)
register("native_group_norm", kind="normalisation", squared=GROUP_NORM)
register("_native_batch_norm_legit_no_training", kind="normalisation", squared=BATCH_NORM)

"""Gradients of scale and shift behind a normalisation: y = w * xhat + b, so dw = sum g xhat and db = sum g."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Explicit, Form
from marquis.curvature.graph.batch_axis import require_axis
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.registry import Context
from marquis.curvature.ops.rules.registry import parametric


@parametric("layer_norm", layer="LayerNorm")
def layer_norm(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Features are the last dimensions."""
    if step.reference("bias") == number:
        return _over_leading(context, step, factor.dense(), number)
    values = context.values
    x, shape, eps = (step.argument(name, values) for name in ("input", "normalized_shape", "eps"))
    xhat = context.cached(step, "xhat", lambda: F.layer_norm(x, shape, None, None, eps))
    return _over_leading(context, step, factor.multiply(xhat).dense(), number)


@parametric("rms_norm", layer="RMSNorm")
def rms_norm(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Features are the last dimensions."""
    values = context.values
    x, shape, eps = (step.argument(name, values) for name in ("input", "normalized_shape", "eps"))
    xhat = context.cached(step, "xhat", lambda: F.rms_norm(x, shape, None, eps))
    return _over_leading(context, step, factor.multiply(xhat).dense(), number)


@parametric("group_norm", layer="GroupNorm")
def group_norm(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Features are dimension 1."""
    if step.reference("bias") == number:
        return _over_space(factor, None)
    values = context.values
    x, groups, eps = (step.argument(name, values) for name in ("input", "num_groups", "eps"))
    return _over_space(factor, context.cached(step, "xhat", lambda: F.group_norm(x, groups, None, None, eps)))


@parametric("batch_norm", layer="BatchNorm1d, 2d, 3d in eval mode")
def batch_norm(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Features are dimension 1; statistics are fixed."""
    if step.reference("bias") == number:
        return _over_space(factor, None)
    if step.reference("weight") != number:
        return None
    values = context.values
    x, mean, variance, eps = (step.argument(name, values) for name in ("input", "running_mean", "running_var", "eps"))

    def normalised() -> Tensor:
        shape = (1, -1, *([1] * (x.dim() - 2)))
        return (x - mean.view(shape)) * (variance + eps).rsqrt().view(shape)

    return _over_space(factor, context.cached(step, "xhat", normalised))


@parametric("instance_norm", layer="InstanceNorm with its own statistics")
def instance_norm(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Features are dimension 1; statistics are those of one sample."""
    if step.reference("bias") == number:
        return _over_space(factor, None)
    values = context.values
    if step.reference("weight") != number or not step.argument("use_input_stats", values):
        return None
    x, eps = step.argument("input", values), step.argument("eps", values)
    return _over_space(factor, context.cached(step, "xhat", lambda: F.instance_norm(x, eps=eps)))


def _over_space(factor: Factor, xhat: Tensor | None) -> Form | None:
    """Sum over the dimensions behind the channels."""
    if not factor.batch_first or len(factor.shape) < 2:
        return None
    columns = (factor if xhat is None else factor.multiply(xhat)).dense()
    return Explicit(columns.flatten(3).sum(-1) if columns.dim() > 3 else columns, factor.shape[0])


def _over_leading(context: Context, step: Step, columns: Tensor, number: int) -> Form:
    """Sum over all dimensions of a sample in front of the parameter's own."""
    axis = require_axis(context.network.axes, step.value, step.where)
    shape = context.values[number].shape
    columns = axis.to_front(columns, leading=1)
    flat = columns.reshape(*columns.shape[:2], -1, *shape)
    return Explicit(torch.sum(flat, dim=2), columns.shape[1])

"""Gradients of embedding tables."""

from __future__ import annotations

import torch

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Form, Lookup
from marquis.curvature.graph.batch_axis import require_axis
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.registry import Context
from marquis.curvature.ops.rules.registry import parametric


@parametric("embedding", layer="Embedding")
def embedding(context: Context, step: Step, factor: Factor, number: int) -> Form | None:
    """Row v gets the sum of g over the positions that hold token v; the padding row gets nothing."""
    values = context.values
    if step.argument("scale_grad_by_freq", values) or step.argument("sparse", values):
        return None
    axis = require_axis(context.network.axes, step.value, step.where)
    tokens = axis.to_front(step.argument("indices", values))
    padding = step.argument("padding_idx", values)
    if padding >= 0:
        tokens = torch.where(tokens == padding, -1, tokens)
    n, width = tokens.shape[0], factor.shape[-1]
    g = axis.to_front(factor.dense(), leading=1).reshape(factor.count, n, -1, width)
    return Lookup(tokens.reshape(n, -1), g, tuple(values[number].shape))

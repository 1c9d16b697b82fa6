"""Define the rules of embedding tables: y[n, t] = W[token[n, t]].

Index letters: `c` columns of the factor, `n` samples, `t` positions, `v` rows of the table, `e` its width.

* Parameter gradients: `dW[c, n, v, e]` is the sum of `g[c, n, t, e]` over the positions t that hold token v.
* Squared rule: m is added up per row of the table. The padding row is a constant, as for the gradient.
"""

from __future__ import annotations

import torch

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import EmbeddingGradients, ParameterGradients
from marquis.curvature.graph.batch_axis import require_axis
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import Context, SquaredCall
from marquis.curvature.ops.registry import SquaredRule, reading, register


def embedding_gradient(context: Context, step: Step, factor: Factor, number: int) -> ParameterGradients | None:
    """Return the gradients of the table."""
    values = context.values
    if step.argument("scale_grad_by_freq", values) or step.argument("sparse", values):
        return None
    axis = require_axis(context.network, step)
    tokens = axis.to_front(step.argument("indices", values))
    padding = step.argument("padding_idx", values)
    if padding >= 0:
        tokens = torch.where(tokens == padding, -1, tokens)
    n, width = tokens.shape[0], factor.shape[-1]
    g = axis.to_front(factor.dense(), leading=1).reshape(factor.count, n, -1, width)
    return EmbeddingGradients(tokens.reshape(n, -1), g, tuple(values[number].shape))


def embedding_squared(call: SquaredCall) -> None:
    """Add up m per row of the table."""
    rows, padding, indices = call.value("weight").shape[0], call.value("padding_idx"), call.value("indices")
    call.give("weight", torch.ops.aten.embedding_dense_backward(call.m, indices, rows, padding, False))


register(
    "embedding",
    gradient=embedding_gradient,
    layer="Embedding",
    squared=SquaredRule(
        embedding_squared, reading(indices=()), "m added up per row of the table", parameters=True, between=True
    ),
)

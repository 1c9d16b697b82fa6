"""Pull-backs through dense layers and products with a batch-free matrix: `S_in = S_out W`."""

from __future__ import annotations

from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.registry import Context, pullback


@pullback("linear", needs="factors")
def linear(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Y = x Wᵀ + b."""
    number, weight = step.reference("input"), step.reference("weight")
    if number is None or weight is None or weight in context.network.batched:
        return None
    return _through(context, number, factor, context.values[weight]) if context.is_target(number) else {}


@pullback("matmul", "mm", needs="factors")
def matmul(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Y = x W with a batch-free matrix W."""
    number, weight = (ref.value for ref in step.args[:2])
    if weight in context.network.batched or context.values[weight].dim() != 2:
        return None
    return _through(context, number, factor, context.values[weight].t()) if context.is_target(number) else {}


@pullback("addmm", needs="factors")
def addmm(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Y = b + x W, as decompositions write a dense layer."""
    number, weight = step.reference("mat1"), step.reference("mat2")
    if weight is None or number is None or weight in context.network.batched or step.kwargs:
        return None
    return _through(context, number, factor, context.values[weight].t()) if context.is_target(number) else {}


def _through(context: Context, number: int, factor: Factor, weight: Tensor) -> dict[int, Factor]:
    """Multiply by the rows of `weight` [o, i] that the factor's window touches."""
    shape = (*factor.shape[:-1], weight.shape[1])
    if not factor.batch_first:
        return {number: Factor(factor.dense() @ weight, shape, batch_first=False)}
    if factor.window is not None and len(factor.shape) == 2:
        window = factor.window
        weight = weight.reshape(*window.full, -1)[window.slices].reshape(-1, weight.shape[1])
        columns = factor.product().flatten(2)
    else:
        columns = factor.unwindowed().product()
    return {number: Factor(columns @ weight, shape)}

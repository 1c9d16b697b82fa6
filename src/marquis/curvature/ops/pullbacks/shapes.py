"""Pull-backs of operations that only rearrange entries: reshapes, permutations, concatenation, selection."""

from __future__ import annotations

from dataclasses import replace

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.graph.network import Ref, Step
from marquis.curvature.ops.pullbacks.registry import Context, Cotangent, pullback


@pullback(
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "_unsafe_view",
    "view_copy",
    "ravel",
    needs="nothing",
)
def reshaped(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Same entries in the same order: give the columns the input's shape."""
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    shape = context.shapes[number]
    if not (factor.batch_first and context.batch_first(number)):
        return {number: context.factor(factor.dense().reshape(factor.count, *shape), number)}
    if factor.window is not None:
        if factor.window.full == factor.shape[1:] and len(shape) == 2:  # [n, C, H, W] came from a flat tensor
            return {number: replace(factor, shape=shape)}
        if factor.window.full == shape[1:]:  # a flat tensor came from [n, C, H, W], where the window belongs
            return {number: replace(factor, shape=shape)}
        factor = factor.unwindowed()
    columns = factor.columns.reshape(factor.count, factor.columns.shape[1], *shape[1:])
    scale = factor.scale
    if scale is not None:
        scale = scale.expand(scale.shape[0], *factor.shape[1:]).reshape(scale.shape[0], *shape[1:])
    return {number: Factor(columns, shape, scale)}


@pullback("permute", "transpose", "t", "movedim", "swapaxes", needs="nothing")
def permuted(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Apply the inverse permutation."""
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    if step.name not in ("permute", "transpose"):
        return None
    dims = len(factor.shape)
    if step.name == "permute":
        order = [d % dims for d in step.args[1]]
    else:
        first, second = step.args[1] % dims, step.args[2] % dims
        order = list(range(dims))
        order[first], order[second] = order[second], order[first]
    inverse = [order.index(d) for d in range(dims)]
    if order[0] != 0 or not factor.batch_first or factor.window is not None:
        columns = factor.dense().permute(0, *(d + 1 for d in inverse))
        return {number: context.factor(columns, number)}
    columns = factor.columns.permute(0, *(d + 1 for d in inverse))
    scale = factor.scale
    if scale is not None:
        scale = scale.expand(scale.shape[0], *factor.shape[1:]).permute(*inverse)
    return {number: Factor(columns, tuple(factor.shape[d] for d in inverse), scale)}


@pullback("cat", "concat", "concatenate", needs="nothing")
def concatenated(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Each part gets its slice of the columns."""
    parts = step.args[0]
    dim = (step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)) % len(factor.shape)
    if dim == 0 and factor.batch_first:
        return None
    factors: dict[int, Factor] = {}
    start = 0
    for part in parts:
        if not isinstance(part, Ref):
            return None
        size = context.shapes[part.value][dim]
        if context.is_target(part.value):
            piece = _slice(context, factor, part.value, dim, start, size)
            factors[part.value] = factors[part.value].plus(piece) if part.value in factors else piece
        start += size
    return factors


def _slice(context: Context, factor: Factor, number: int, dim: int, start: int, size: int) -> Factor:
    """The part of a factor that belongs to entries [start, start + size) of a dimension."""
    shape = tuple(size if d == dim else s for d, s in enumerate(factor.shape))
    window = factor.window
    if not factor.batch_first:
        return context.factor(factor.dense().narrow(dim + 1, start, size), number)
    if window is not None:
        whole = window.ranges[dim - 1] == (0, window.full[dim - 1]) if window.full == factor.shape[1:] else False
        if not whole:
            return _slice(context, factor.unwindowed(), number, dim, start, size)
        ranges = tuple((0, size) if d == dim - 1 else r for d, r in enumerate(window.ranges))
        window = Window(shape[1:], ranges)
    columns = factor.columns.narrow(dim + 1, start, size)
    scale = factor.scale
    if scale is not None and scale.shape[dim] != 1:
        scale = scale.narrow(dim, start, size)
    return Factor(columns, shape, scale, window)


def getitem(context: Context, step: Step, factor: Factor) -> dict[int, Cotangent]:
    """An element of a tuple-valued operation."""
    number, index = step.inputs[0], step.args[1]
    return {number: {index: factor}} if context.is_target(number) else {}


@pullback("select", "slice", "narrow", needs="nothing")
def selected(context: Context, step: Step, factor: Factor) -> dict[int, Factor]:
    """A slice: zeros elsewhere."""
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
    columns = factor.dense()
    shape = context.shapes[number]
    index: list[slice | int] = [slice(None)] * (len(shape) + 1)
    dim = step.argument("dim", context.values) % len(shape)
    if step.name == "select":
        index[dim + 1] = step.argument("index", context.values)
    elif step.name == "slice":
        ends = (step.argument("start", context.values), step.argument("end", context.values))
        index[dim + 1] = slice(*ends, step.argument("step", context.values))
    else:
        start = int(step.argument("start", context.values))
        index[dim + 1] = slice(start, start + step.argument("length", context.values))
    whole = columns.new_zeros(columns.shape[0], *shape)
    whole[tuple(index)] = columns
    return {number: context.factor(whole, number)}

"""Define the rules of operations that move, copy, drop or add up entries: views, permutations, slices, sums.

Index letters: `c` columns of the factor S.

* Vector-Jacobian product: every entry of S goes back to where it came from.
* Parameter gradients: of a parameter that is expanded over the batch.
* Squared rule: the Jacobian has entries 0 and 1 only, so its square is itself, and m goes through the ordinary adjoint.
"""

from __future__ import annotations

import operator
from dataclasses import replace

from torch import Tensor

from marquis.curvature.factors.factor import Factor, Window
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.graph.network import Network, Ref, Step
from marquis.curvature.ops.context import Context, Cotangent, SquaredCall
from marquis.curvature.ops.elementwise import summed_within_samples
from marquis.curvature.ops.fallback import local_vjp
from marquis.curvature.ops.registry import SquaredRule, read_all_but_live, read_nothing, register


def transposed_source(network: Network, number: int) -> int | None:
    """Return the batch-free value of which this one is a plain matrix transpose, if it is one."""
    step: Step | None = network.producers.get(number)
    if step is None or step.value in network.batched:
        return None
    if step.name == "t" or (step.name == "transpose" and set(step.args[1:3]) in ({0, 1}, {-1, -2})):
        return step.inputs[0]
    return None


# Vector-Jacobian products


def reshape_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Give the columns the input's shape: same entries in the same order."""
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


def permute_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Apply the inverse permutation."""
    number = step.inputs[0]
    if not context.is_target(number):
        return {}
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


def concatenate_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Factor] | None:
    """Give each part its slice of the columns."""
    parts = step.args[0]
    dim = (step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)) % len(factor.shape)
    if dim == 0 and factor.batch_first:
        return None
    factors: dict[int, Factor] = {}
    start = 0
    for part in parts:
        if not isinstance(part, Ref):
            return None
        if context.shapes[part.value] == (0,):  # an empty cache, which torch joins with anything
            continue
        size = context.shapes[part.value][dim]
        if context.is_target(part.value):
            piece = _slice(context, factor, part.value, dim, start, size)
            factors[part.value] = factors[part.value].plus(piece) if part.value in factors else piece
        start += size
    return factors


def _slice(context: Context, factor: Factor, number: int, dim: int, start: int, size: int) -> Factor:
    """Return the part of a factor that belongs to entries [start, start + size) of a dimension."""
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


def getitem_vjp(context: Context, step: Step, factor: Factor) -> dict[int, Cotangent]:
    """Return the factor for one result of an operation with several."""
    number, index = step.inputs[0], step.args[1]
    return {number: {index: factor}} if context.is_target(number) else {}


# Parameter gradients


def expand_gradient(context: Context, step: Step, factor: Factor, number: int) -> ParameterGradients | None:
    """Return each sample's share of a parameter that is copied over the batch; other copies are summed."""
    return summed_within_samples(context, factor, number) if step.inputs[0] == number else None


# Squared rules


def adjoint_squared(call: SquaredCall) -> None:
    """Pass m through the operation's ordinary vector-Jacobian product at its stored inputs."""
    targets = sorted(call.wanted)
    columns = {part: m[None] for part, m in call.parts.items()}
    for number, m in zip(targets, local_vjp(call.step, call.values, columns, targets), strict=True):
        if m is not None:
            call.give_to(number, m[0])


def reshape_squared(call: SquaredCall) -> None:
    """Give m the shape of the input."""
    call.give("self", call.m.reshape(call.value("self").shape))


def concatenate_squared(call: SquaredCall) -> None:
    """Cut m into the parts; one that occurs twice gets the sum."""
    dim = call.value("dim")
    parts = [(ref, part) for ref, part in zip(call.step.args[0], call.value("tensors"), strict=True)]
    parts = [(ref, part) for ref, part in parts if tuple(part.shape) != (0,)]  # an empty cache
    sizes = [part.shape[dim] for _, part in parts]
    for (ref, _), m in zip(parts, call.m.split(sizes, dim), strict=True):
        if isinstance(ref, Ref) and ref.value in call.wanted:
            call.give_to(ref.value, m)


def getitem_squared(call: SquaredCall) -> None:
    """Return m for one result of an operation with several."""
    source, part = call.step.args
    call.give_to(source.value, call.m, operator.index(part) % len(call.values[source.value]))


def mean_squared(call: SquaredCall) -> None:
    """Divide m by the squared number of entries that are averaged (never over the batch)."""
    x = call.value("self")
    m = restore_reduced(call, call.m)
    call.give("self", (m / (x.numel() / m.numel()) ** 2).expand(x.shape))


def restore_reduced(call: SquaredCall, reduced: Tensor) -> Tensor:
    """Give back, as size 1, the dimensions that a reduction removed."""
    x = call.value("self")
    dims = call.value("dim") if call.step.has_argument("dim") else None
    dims = list(range(x.dim())) if dims is None or dims == [] else dims
    dims = [dims] if isinstance(dims, int) else dims
    reducing = {dim % x.dim() for dim in dims}
    return reduced.reshape([1 if i in reducing else size for i, size in enumerate(x.shape)])


RESHAPE = SquaredRule(reshape_squared, read_nothing, "same entries in the same order", between=True)
COPY = SquaredRule(
    adjoint_squared,
    read_all_but_live,
    "entries copied, moved or dropped: m is added up at the source",
    between=True,
)
SUM = SquaredRule(
    adjoint_squared, read_all_but_live, "m to every summand; cross terms between the summands are dropped"
)

register(
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze", "unsqueeze",
    kind="reshape", vjp=reshape_vjp, vjp_reads="nothing", squared=RESHAPE,
)  # fmt: skip
register("view_copy", "ravel", kind="reshape", vjp=reshape_vjp, vjp_reads="nothing")
register("view_as", "reshape_as", squared=RESHAPE)
register("permute", "transpose", vjp=permute_vjp, vjp_reads="nothing", squared=COPY)
register("t", "movedim", "swapaxes", "select", "slice", "narrow", vjp_reads="nothing", squared=COPY)
register(
    "expand", gradient=expand_gradient, layer="a parameter expanded over the batch, e.g. a class token", squared=COPY
)
register(
    "mT", "moveaxis", "swapdims", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile",
    "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "index", "index_select", "gather", "take_along_dim",
    "diagonal", "unfold", "unsafe_chunk", "unsafe_split", "stack", "hstack", "slice_scatter", "select_scatter",
    "flip", "roll", "rot90", "tril", "triu", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col",
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d",
    squared=COPY,
)  # fmt: skip
register(
    "cat", "concat", "concatenate", vjp=concatenate_vjp, vjp_reads="nothing",
    squared=SquaredRule(concatenate_squared, read_nothing, "m cut into the parts", between=True),
)  # fmt: skip
register(
    "getitem", vjp=getitem_vjp, vjp_reads="nothing",
    squared=SquaredRule(getitem_squared, read_nothing, "one result of an operation with several", between=True),
)  # fmt: skip
register("sum", "cumsum", "col2im", squared=SUM)
register("mean", squared=SquaredRule(mean_squared, read_nothing, "m / n² to each of the n entries that are averaged"))
register(
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "zeros_like", "ones_like", "full_like", "empty_like",
    "rand_like", "randn_like", "new_zeros", "new_ones", "new_full", "new_empty",
    kind="shape only",
)  # fmt: skip

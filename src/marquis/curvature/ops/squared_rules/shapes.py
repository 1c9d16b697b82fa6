"""Operations whose Jacobian has entries 0 and 1 only: views, copies, permutations, sums.

Then the squared Jacobian is the Jacobian, and m goes through the ordinary adjoint.
"""

from __future__ import annotations

import operator
from collections import ChainMap

import torch
from torch import Tensor

from marquis.curvature.graph.network import Ref, run
from marquis.curvature.ops.squared_rules.registry import Local, all_but_live, nothing, rule

_SAME_ORDER = (
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze", "unsqueeze", "view_as", "reshape_as",

)  # fmt: skip

_COPIES = (
    "permute", "transpose", "t", "mT", "movedim", "moveaxis", "swapaxes", "swapdims",
    "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile",
    "select", "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "index",
    "index_select", "gather", "take_along_dim", "diagonal", "unfold", "unsafe_chunk", "unsafe_split", "stack", "hstack",
    "slice_scatter", "select_scatter",
    "flip", "roll", "rot90", "tril", "triu", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col",
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d",
)  # fmt: skip

_SUMS = ("sum", "cumsum", "col2im")


@rule(*_SAME_ORDER, reads=nothing, between=True, note="same entries in the same order")
def same_order(local: Local) -> None:
    """Take the shape of the input."""
    local.give("self", local.m.reshape(local.value("self").shape))


@rule(*_COPIES, reads=all_but_live, between=True, note="entries copied, moved or dropped: m is added up at the source")
def copies(local: Local) -> None:
    """Each entry of the result is a copy of one input entry or a constant."""
    adjoint(local)


@rule("cat", "concat", "concatenate", reads=nothing, between=True, note="m cut into the parts")
def cat(local: Local) -> None:
    """Parts side by side; one that occurs twice gets the sum."""
    dim = local.value("dim")
    sizes = [part.shape[dim] for part in local.value("tensors")]
    for ref, m in zip(local.step.args[0], local.m.split(sizes, dim), strict=True):
        if isinstance(ref, Ref) and ref.value in local.wanted:
            local.give_to(ref.value, m)


@rule(*_SUMS, reads=all_but_live, note="m to every summand; cross terms between the summands are dropped")
def sums(local: Local) -> None:
    """Sums over dimensions other than the batch, running sums, overlap-add."""
    adjoint(local)


def adjoint(local: Local) -> None:
    """The operation's ordinary vector-Jacobian product at its stored inputs."""
    numbers = sorted(local.wanted)
    with torch.enable_grad():
        leaves = {n: local.values[n].detach().requires_grad_() for n in numbers}
        results = run(local.step, ChainMap(leaves, local.values))
    parts = list(results) if isinstance(results, (list, tuple)) else [results]
    given = [(parts[part], m) for part, m in local.parts.items()]
    outputs, cotangents = [y for y, _ in given], [m.to(y.dtype) for y, m in given]
    grads = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)
    for number, grad in zip(numbers, grads, strict=True):
        if grad is not None:
            local.give_to(number, grad)


@rule("getitem", reads=nothing, between=True, note="one result of an operation with several")
def getitem(local: Local) -> None:
    """Hand m to that result."""
    source, part = local.step.args
    part = operator.index(part)
    count = len(local.values[source.value])
    local.give_to(source.value, local.m, part % count)


@rule("mean", reads=nothing, note="m / n² to each of the n entries that are averaged")
def mean(local: Local) -> None:
    """Mean over dimensions other than the batch."""
    x = local.value("self")
    m = restore_reduced(local, local.m)
    local.give("self", (m / (x.numel() / m.numel()) ** 2).expand(x.shape))


def restore_reduced(local: Local, reduced: Tensor) -> Tensor:
    """Give back, as size 1, the dimensions that a reduction removed."""
    x = local.value("self")
    names = [formal.name for formal in local.step.op._schema.arguments]
    dims = local.value("dim") if "dim" in names else None
    dims = list(range(x.dim())) if dims is None or dims == [] else dims
    dims = [dims] if isinstance(dims, int) else dims
    reducing = {dim % x.dim() for dim in dims}
    return reduced.reshape([1 if i in reducing else size for i, size in enumerate(x.shape)])

"""Multiply matrices by the faster of the two libraries that torch has for it.

torch multiplies float32 matrices by MKL, which runs at half speed on processors of another maker than its own; oneDNN,
which torch uses for convolutions, does not (4,096 x 784 x 512 on an AMD EPYC with AVX-512: 30 ms and 14 ms). On Intel's
own processors MKL is the faster one (64 x 784 x 512 on a Xeon with AVX-512: 0.7 ms and 2.5 ms).
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import Parameter

LARGE = 2**21
"""Multiplications from which on the call is worth its overhead."""


class _Choice(threading.local):
    """Say in each thread whether layers may choose their library."""

    free = True


_CHOICE = _Choice()


@contextmanager
def plain_layers() -> Iterator[None]:
    """Let `linear` be torch's own within the context, where results are compared that may consist of rounding alone."""
    before, _CHOICE.free = _CHOICE.free, False
    try:
        yield
    finally:
        _CHOICE.free = before


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for `a [..., k]` and a matrix `b [k, m]`, without a graph."""
    return _by_one_dnn(a, b.t(), None) if _is_faster(a, b) and not _has_graph(a, b) else a @ b


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x Wᵀ + b` for `x [..., i]` and `W [o, i]`, differentiable as often as one likes."""
    free = _CHOICE.free and not torch.compiler.is_compiling() and _one_dnn_takes(x, weight)
    if not free or x.numel() * len(weight) < LARGE or weight.shape[1] < 8:
        return F.linear(x, weight, bias)
    if _has_graph(x, weight, bias):
        return _Linear.apply(x, weight, bias)
    return _by_one_dnn(x, weight, bias)


def add_product_(total: Tensor, a: Tensor, b: Tensor, keep: float, gain: float) -> None:
    """Overwrite `total [m, p]` with `keep * total + gain * a @ b` for two matrices, without a graph."""
    if not _is_faster(a, b):
        total.addmm_(a, b, beta=keep, alpha=gain)
        return
    product = _by_one_dnn(a if gain == 1 else a * gain, b.t(), None)
    if keep:
        torch.add(product, total, alpha=keep, out=total)
    else:
        total.copy_(product)


def by_sample(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for `a [n or 1, q, m, k]` and `b [n, q, k, p]`, without a graph."""
    if _made_by_intel() or a.shape[1] > 1 or a.shape[2] * b.shape[2] * b.shape[3] < LARGE:
        return a @ b
    rows = a.expand(len(b), -1, -1, -1)
    return torch.stack([matmul(each[0], other[0]) for each, other in zip(rows, b, strict=True)]).unsqueeze(1)


def gram(a: Tensor) -> Tensor:
    """Return `aᵀ a` of every group, for `a [q, rows, i]`; rows or entries may be the fast axis."""
    return matmul(a[0].t(), a[0])[None] if len(a) == 1 else a.mT @ a


class DenseLayer(nn.Linear):
    """Multiply as torch's dense layer does, by the faster library."""

    def forward(self, input: Tensor) -> Tensor:
        """Return `x Wᵀ + b`."""
        return linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    """Differentiate `x Wᵀ + b` by the same products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product."""
        ctx.save_for_backward(x, weight)
        return _by_one_dnn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of x, W and b, with a graph of their own where one is wanted."""
        (g,) = gradients
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = g.reshape(-1, g.shape[-1])
        to_weight = matmul(rows.t(), x.reshape(-1, x.shape[-1])) if wants_weight else None
        return matmul(g, weight) if wants_x else None, to_weight, rows.sum(0) if wants_bias else None


def _by_one_dnn(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `a Wᵀ + b` without a graph."""
    rows = a if a.dim() == 2 else a.reshape(-1, a.shape[-1])
    product = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product if a.dim() == 2 else product.view(*a.shape[:-1], weight.shape[0])


def _is_faster(a: Tensor, b: Tensor) -> bool:
    """Return whether oneDNN takes `a @ b`, and is worth its call."""
    return _one_dnn_takes(a, b) and a.numel() * b.shape[-1] >= LARGE and b.shape[0] >= 8


def _has_graph(*operands: Tensor | None) -> bool:
    """Return whether autograd records what happens to these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)


def _one_dnn_takes(a: Tensor, b: Tensor) -> bool:
    """Return whether both are ordinary float32 tensors of the CPU that nothing transforms, casts or traces."""
    if _made_by_intel() or not _available() or not torch.backends.mkldnn.enabled or b.dim() != 2:
        return False
    for t in (a, b):
        if (type(t) is not Tensor and type(t) is not Parameter) or t.dtype is not torch.float32 or not t.is_cpu:
            return False
    # under vmap, jvp and the like a tensor is a wrapper, though of the ordinary type
    stack = torch._C._functorch.peek_interpreter_stack  # pyright: ignore[reportAttributeAccessIssue]
    transformed = stack() is not None or forward_ad._current_level >= 0
    return not (transformed or torch.is_autocast_enabled("cpu") or torch._C._get_tracing_state() is not None)


@cache
def _available() -> bool:
    """Return whether this torch has oneDNN's product."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _made_by_intel() -> bool:
    """Return whether the processor is Intel's; measuring speed instead would let chance decide how a product rounds."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # not Linux: Windows names the maker here
        return "GenuineIntel" in platform.processor()

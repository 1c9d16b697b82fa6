"""Multiply matrices by the faster of the two libraries that torch has for it.

torch multiplies float32 matrices by MKL, which runs at half speed on processors of another maker than its own; oneDNN,
which torch uses for convolutions, does not (4,096 x 784 x 512 on an AMD EPYC with AVX-512: 30 ms and 14 ms). On Intel's
own processors MKL is the faster one (64 x 784 x 512 on a Xeon with AVX-512: 0.7 ms and 2.5 ms).
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

LARGE = 2**21
"""Multiplications from which on the call is worth its overhead."""


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for `a [..., k]` and a matrix `b [k, m]`, without a graph."""
    if a.numel() * b.shape[-1] < LARGE or b.shape[0] < 8 or not _one_dnn_takes(a, b):
        return a @ b
    rows = a if a.dim() == 2 else a.reshape(-1, a.shape[-1])
    product = torch.ops.mkldnn._linear_pointwise(rows, b.t(), None, "none", [], "")
    return product if a.dim() == 2 else product.view(*a.shape[:-1], b.shape[-1])


def by_sample(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b` for `a [n or 1, q, m, k]` and `b [n, q, k, p]`, without a graph."""
    if _made_by_intel() or a.shape[1] > 1 or a.shape[2] * b.shape[2] * b.shape[3] < LARGE:
        return a @ b
    rows = a.expand(len(b), -1, -1, -1)
    return torch.stack([matmul(each[0], other[0]) for each, other in zip(rows, b, strict=True)]).unsqueeze(1)


def gram(a: Tensor) -> Tensor:
    """Return `aᵀ a` of every group, for `a [q, rows, i]`; rows or entries may be the fast axis."""
    return matmul(a[0].t(), a[0])[None] if len(a) == 1 else a.mT @ a


def _one_dnn_takes(a: Tensor, b: Tensor) -> bool:
    """Return whether both are ordinary float32 tensors of the CPU that nobody differentiates or traces."""
    plain = all(type(t) in (Tensor, Parameter) and t.dtype is torch.float32 and t.device.type == "cpu" for t in (a, b))
    usable = bool(torch.backends.mkldnn.enabled) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not plain or _made_by_intel() or not usable or b.dim() != 2:
        return False
    return not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))


@cache
def _made_by_intel() -> bool:
    """Return whether the processor is Intel's; measuring speed instead would let chance decide how a product rounds."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # not Linux: Windows names the maker here
        return "GenuineIntel" in platform.processor()

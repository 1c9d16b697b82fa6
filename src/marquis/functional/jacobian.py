"""Compute rows of the Jacobian of the outputs with respect to the parameters, one sample at a time under `vmap`.

Letters: B samples, R rows (outputs), P weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.functional.checks import batch_size, samples_of
from marquis.functional.function import NetworkFunction

BUDGET = 2**28
"""Bytes for temporaries when no limit is given; larger chunks only leave the cache."""

COPIES = 4
"""Gradients by parameter, their concatenation, and the products of the quadratic form exist side by side."""


def jacobian(function: NetworkFunction, x: Any, start: int = 0, stop: int | None = None) -> Tensor:
    """Return `J[n, r] = d f_r(x_n) / d theta` at the function's point, for the flattened outputs start to stop.

    Cost: R backward passes per sample; memory B R P. Use `jacobian_chunks` for what may not fit.

    Returns:
        `[B, R, P]`.
    """
    return values_and_jacobian(function, x, start, stop)[1]


def values_and_jacobian(
    function: NetworkFunction, x: Any, start: int = 0, stop: int | None = None, *, differentiable: bool = False
) -> tuple[Tensor, Tensor]:
    """Return all flattened outputs `[B, O]` of the samples run one by one, and `jacobian` at the same point.

    With `differentiable` both keep their graph to `x`, under which gradients of variances are computed.
    """

    def one(sample: Any) -> tuple[Tensor, Tensor]:
        batch = pytree.tree_map_only(Tensor, lambda t: t.unsqueeze(0), sample)
        value, vjp, *_ = torch.func.vjp(lambda params: function(params, batch)[0].reshape(-1), dict(function.point))
        rows = range(value.shape[0])[start:stop]
        basis = torch.zeros(len(rows), value.shape[0], dtype=value.dtype, device=value.device)
        basis[torch.arange(len(rows)), torch.arange(rows.start, rows.stop)] = 1
        (gradients,) = torch.vmap(vjp)(basis)
        return value, function.flatten(gradients)

    axes = pytree.tree_map(lambda t: 0 if isinstance(t, Tensor) else None, x)
    try:
        values, rows = torch.vmap(one, in_dims=(axes,))(x)
    except RuntimeError:  # an operation without a rule for vmap: one sample and one output at a time
        each = [samples_of(x, n, n + 1) for n in range(batch_size(x))]
        pairs = [_by_backward_passes(function, sample, start, stop, differentiable) for sample in each]
        values, rows = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    return (values, rows) if differentiable else (values.detach(), rows.detach())


def sample_gradients(function: NetworkFunction, x: Any, cotangents: Tensor) -> Tensor:
    """Return `J_nᵀ c_n` of every sample, `[B, P]`, for cotangents `[B, O]`. Cost: one backward pass per sample."""

    def one(sample: Any, cotangent: Tensor) -> Tensor:
        batch = pytree.tree_map_only(Tensor, lambda t: t.unsqueeze(0), sample)
        _, vjp, *_ = torch.func.vjp(lambda params: function(params, batch)[0].reshape(-1), dict(function.point))
        return function.flatten(vjp(cotangent)[0])

    axes = pytree.tree_map(lambda t: 0 if isinstance(t, Tensor) else None, x)
    try:
        return torch.vmap(one, in_dims=(axes, 0))(x, cotangents.to(function.dtype)).detach()
    except RuntimeError:  # an operation without a rule for vmap
        return torch.einsum("bo,bop->bp", cotangents.to(function.dtype), jacobian(function, x))


def _by_backward_passes(
    function: NetworkFunction, x: Any, start: int, stop: int | None, differentiable: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the outputs `[O]` and the rows `[R, P]` of one sample by plain backward passes."""
    leaves = function.leaves()
    with torch.enable_grad():
        outputs = function.outputs(leaves, x)[0].reshape(-1)
        rows = []
        for output in outputs[start:stop]:
            gradients = torch.autograd.grad(
                output, leaves, retain_graph=True, create_graph=differentiable, materialize_grads=True
            )
            rows.append(function.flatten(dict(zip(function.names, gradients, strict=True))))
    return outputs, torch.stack(rows)


def jacobian_chunks(
    function: NetworkFunction, x: Any, outputs: int, whole_rows: bool, limit: int | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield samples, outputs and their J in pieces that fit the limit; `whole_rows` does not split a sample."""
    row = max(1, COPIES * sum(t.numel() * t.element_size() for t in function.point.values()))
    fitting = max(1, (BUDGET if limit is None else limit) // row)
    rows = outputs if whole_rows else min(outputs, fitting)
    samples = max(1, fitting // max(1, rows))
    size = batch_size(x)
    for begin in range(0, size, samples):
        end = min(size, begin + samples)
        part = samples_of(x, begin, end)
        for start in range(0, outputs, rows):
            stop = min(outputs, start + rows)
            yield slice(begin, end), slice(start, stop), jacobian(function, part, start, stop)

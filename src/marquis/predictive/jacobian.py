"""Rows of the Jacobian of the outputs with respect to the random weights, one input at a time under `vmap`.

Letters: B inputs, R rows (outputs), K random weights, P weights of the parameters that hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.functional.call import batch_size
from marquis.predictive.function import NetworkFunction, plain_attention, take

BUDGET = 2**28
"""Bytes for temporaries when no limit is given; larger chunks only leave the cache."""

COPIES = 4
"""Gradients by parameter, their concatenation, and what the quadratic form makes of it, exist side by side."""


def jacobian(function: NetworkFunction, x: Any, start: int = 0, stop: int | None = None) -> Tensor:
    """`J[n, r] = d f_r(x_n) / d theta` at the posterior's mean, for the flattened outputs start to stop.

    Cost: R backward passes per input; memory B R P. Use `jacobian_chunks` for what may not fit.

    Returns:
        `[B, R, K]`.
    """
    posterior = function.posterior

    def one(sample: Any) -> Tensor:
        batch = pytree.tree_map_only(Tensor, lambda t: t.unsqueeze(0), sample)
        value, pull, *_ = torch.func.vjp(lambda params: function(params, batch)[0].reshape(-1), posterior.mean)
        rows = range(value.shape[0])[start:stop]
        basis = torch.zeros(len(rows), value.shape[0], dtype=value.dtype, device=value.device)
        basis[torch.arange(len(rows)), torch.arange(rows.start, rows.stop)] = 1
        (gradients,) = torch.vmap(pull)(basis)
        return posterior.restrict(posterior.layout.flatten(gradients))

    axes = pytree.tree_map(lambda t: 0 if isinstance(t, Tensor) else None, x)
    with plain_attention():
        try:
            return torch.vmap(one, in_dims=(axes,))(x).detach()
        except RuntimeError:  # an operation without a rule for vmap: one input and one output at a time
            samples = [_slowly(function, take(x, n, n + 1), start, stop) for n in range(batch_size(x))]
            return torch.stack(samples)


def _slowly(function: NetworkFunction, x: Any, start: int, stop: int | None) -> Tensor:
    """The same for one input `[R, K]` by plain backward passes."""
    posterior = function.posterior
    params = {name: tensor.detach().requires_grad_() for name, tensor in posterior.mean.items()}
    with torch.enable_grad():
        outputs = function(params, x)[0].reshape(-1)[start:stop]
    rows = []
    for output in outputs:
        found = torch.autograd.grad(output, list(params.values()), retain_graph=True, materialize_grads=True)
        rows.append(posterior.layout.flatten(dict(zip(params, found, strict=True))))
    return posterior.restrict(torch.stack(rows))


def jacobian_chunks(
    function: NetworkFunction, x: Any, outputs: int, whole_rows: bool, limit: int | None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The Jacobian in pieces that fit the memory limit: inputs, outputs, and `J` of these.

    Args:
        function: the network.
        x: inputs.
        outputs: O, flattened outputs per input.
        whole_rows: keep all outputs of one input together, as a covariance needs.
        limit: bytes, or None.
    """
    mean = function.posterior.vector
    row = max(1, COPIES * mean.numel() * mean.element_size())
    fitting = max(1, (BUDGET if limit is None else limit) // row)
    rows = outputs if whole_rows else min(outputs, fitting)
    inputs = max(1, fitting // max(1, rows))
    size = batch_size(x)
    for begin in range(0, size, inputs):
        end = min(size, begin + inputs)
        part = take(x, begin, end)
        for start in range(0, outputs, rows):
            stop = min(outputs, start + rows)
            yield slice(begin, end), slice(start, stop), jacobian(function, part, start, stop)

"""Multiply one batch's curvature with vectors: GGN, Hessian and Fisher products by automatic differentiation.

Every vector costs a forward-mode pass and a backward pass through the recorded graph (`BatchJacobian`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.functional.function import NetworkFunction
from marquis.functional.linearise import BatchJacobian, vector_jacobian_products
from marquis.likelihoods import Likelihood

KINDS = ("ggn", "hessian", "fisher", "empirical-fisher")
NEEDS_LABELS = ("hessian", "empirical-fisher")

RowProduct = Callable[[Sequence[Tensor]], list[Tensor]]
"""Rows `[k, *shape]` per parameter to rows `[k, *shape]` per parameter."""


def batch_product(
    network: NetworkFunction,
    likelihood: Likelihood,
    kind: str,
    x: Any,
    y: Any,
    generator: torch.Generator | None = None,
) -> RowProduct:
    """Differentiate one batch and return the product with its curvature, a sum over the batch.

    `ggn`: `Σ Jᵀ S Sᵀ J v` with S the likelihood's root; `hessian`: of `Σ -log p`; `fisher`: `Σ g̃ g̃ᵀ v` with one sampled
    label per sample; `empirical-fisher`: the same with the true labels (docs/method/curvature.md#hessian-and-fisher).
    Cost: one forward pass, then a forward-mode and a backward pass per vector; for the Hessian one differentiable
    backward pass, then a double one per vector.
    """
    if kind in NEEDS_LABELS and y is None:
        raise DataError(f"the loader gives no labels, but kind={kind!r} depends on them; yield (x, y).")
    jacobian = BatchJacobian(network, x)
    f = network.checked(jacobian.outputs, x)
    likelihood.validate(f.detach(), y if kind in NEEDS_LABELS else None)
    if kind == "hessian":
        leaves = jacobian.leaves
        with torch.enable_grad():
            loss = -likelihood.log_prob(f, y).sum()
            gradient = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        return lambda rows: vector_jacobian_products(gradient, leaves, rows)
    times_output_curvature = _output_curvature(likelihood, kind, f.detach(), y, generator)
    return lambda rows: jacobian.transposed_times(times_output_curvature(jacobian.times(rows)))


def _output_curvature(
    likelihood: Likelihood, kind: str, f: Tensor, y: Any, generator: torch.Generator | None
) -> Callable[[Tensor], Tensor]:
    """Return the output-space matrix of the kind, as a map of rows `[k, *f.shape]`."""
    if kind == "ggn":
        return lambda pushed: root_times_transpose(likelihood, f, pushed)
    with torch.no_grad():
        column = likelihood.fisher_column(f, generator) if kind == "fisher" else likelihood.gradient(f, y)

    def outer(pushed: Tensor) -> Tensor:
        per_sample = (pushed * column).flatten(start_dim=2).sum(dim=2) if f.ndim > 1 else pushed * column
        return per_sample.reshape(per_sample.shape + (1,) * (f.ndim - 1)) * column

    return outer


def root_times_transpose(likelihood: Likelihood, f: Tensor, rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return `S Sᵀ u` for rows `[k, *f.shape]`, S the likelihood's root; `Sᵀ` is the transpose of the linear `S v`."""
    with torch.enable_grad():
        v = rows.new_zeros((rows.shape[0], f.shape[0], *likelihood.root_shape(f)), requires_grad=True)
        (transposed,) = torch.autograd.grad(likelihood.apply_sqrt(f, v, mask), v, rows)
    with torch.no_grad():
        return likelihood.apply_sqrt(f, transposed, mask)

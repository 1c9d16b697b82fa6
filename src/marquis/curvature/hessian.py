"""Compute the true Hessian of the negative log-likelihood, for models small enough to afford it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked
from marquis.curvature.linop.linear_operator import DENSE_LIMIT
from marquis.curvature.linop.products import batch_product
from marquis.errors import MemoryBudgetError, UnsupportedOperationError
from marquis.functional.call import Model
from marquis.functional.checks import batch_size, check_finite, naming_inputs
from marquis.functional.function import NetworkFunction
from marquis.functional.selection import Selection
from marquis.functional.unwrap import computing_dtype
from marquis.likelihoods import Likelihood, as_likelihood
from marquis.structures import Diagonal, Full, Layout


@checked
@torch.inference_mode(False)
def hessian(
    model: Model,
    x: Any,
    y: Any,
    likelihood: str | Likelihood | Any,
    structure: str = "diagonal",
    *,
    params: Mapping[str, Tensor] | None = None,
    parameters: Selection = None,
    vectors_per_pass: AtLeastOne = 32,
) -> Diagonal | Full:
    """Compute the Hessian of `Σ_n -log p(y_n | f(x_n))` in the parameters, summed over the batch.

    It is the GGN plus the residuals' term `Σ_n Σ_o r_no ∇² f_o(x_n)`; the two agree where the network is linear in
    its parameters or the residuals vanish. Away from a minimum it is indefinite: `solve`, `logdet` and `sample`
    of the result may then refuse (docs/method/curvature.md, Hessian and Fisher).

    Cost: P Hessian-vector products (one forward and backward, then one backward per product) for either
    structure, because reverse mode has no shortcut to the diagonal of a Hessian; memory P for the diagonal,
    P² in full, and the activations of the batch for `vectors_per_pass` products at a time.

    Args:
        model: a module in evaluation mode, or a function `(params, x) -> outputs`.
        x: inputs of one batch, any pytree.
        y: labels of the batch; unlike the GGN, the Hessian depends on them.
        likelihood: a name or an object of `marquis.likelihoods`.
        structure: `"diagonal"` or `"full"`.
        params: the parameters of a function, or other values for a module's.
        parameters: which parameters: `None` for all that are trainable, a pattern, a predicate, or names.
        vectors_per_pass: products computed together; 1 needs least memory and avoids `vmap`.

    Raises:
        UnsupportedOperationError: another structure, or a model with active batch statistics or dropout.
        MemoryBudgetError: `"full"` for more than `DENSE_LIMIT` parameters.
    """
    if structure not in ("diagonal", "full"):
        raise UnsupportedOperationError(
            f"the Hessian has no structure={structure!r}; use 'diagonal' or 'full', or the GGN, which has them all."
        )
    batch_size(x)
    check_finite(x, "x")
    check_finite(y, "y")
    network = NetworkFunction.copy_of(model, params=params, parameters=parameters)
    layout = Layout.of(network.point)
    if structure == "full" and layout.total > DENSE_LIMIT:
        raise MemoryBudgetError(
            f"a full Hessian of {layout.total} parameters is refused (limit {DENSE_LIMIT}); use structure='diagonal', "
            "fewer parameters, or products with operator(..., kind='hessian')."
        )
    x, y = network.prepare(x, None), network.prepare(y, None)
    with naming_inputs(model, x, lambda: network.at_point(x)):
        network.inspect(x)
        product = batch_product(network, as_likelihood(likelihood), "hessian", x, y)
    shape = (layout.total, layout.total) if structure == "full" else (layout.total,)
    dtype = computing_dtype(network.dtype)
    result = torch.empty(shape, dtype=dtype, device=network.device)
    for start in range(0, layout.total, vectors_per_pass):
        stop = min(start + vectors_per_pass, layout.total)
        here, there = torch.arange(stop - start), torch.arange(start, stop)
        unit = torch.zeros(stop - start, layout.total, dtype=dtype, device=network.device)
        unit[here, there] = 1
        pieces = product(list(layout.unflatten(unit).values()))
        rows = torch.cat([piece.flatten(start_dim=1).to(dtype) for piece in pieces], dim=1)
        result[start:stop] = rows if structure == "full" else rows[here, there]
    if structure == "diagonal":
        return Diagonal(layout, result)
    return Full(layout, (result + result.T) / 2)

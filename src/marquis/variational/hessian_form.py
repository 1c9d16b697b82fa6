"""Compute VL(H), the objective with the true Hessian (VL eq. 20), kept to show why the Fisher is used instead.

`log p(y|μ) + ½ Σ σ_p² H_pp - β KL` has no maximum in σ_p where `H_pp > 1/s_p²`
(docs/method/variational.md#hessian-form).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from marquis.errors import MemoryBudgetError
from marquis.structures import Layout
from marquis.variational.regulariser import DataTerm

MOST_PARAMETERS = 2000
"""The Hessian is formed in full and differentiated once more."""


def hessian_term(
    fit: Callable[[Sequence[Tensor]], Tensor], means: Sequence[Tensor], log_sigmas: Sequence[Tensor]
) -> DataTerm:
    """Return value and gradients of `-fit(μ) - ½ Σ σ_p² H_pp` with H the Hessian of the mean log-likelihood `fit`.

    Cost: P Hessian-vector products and one pass backwards through them.

    Raises:
        MemoryBudgetError: More than `MOST_PARAMETERS` parameters.
    """
    layout = Layout({str(number): mean.shape for number, mean in enumerate(means)})
    if layout.total > MOST_PARAMETERS:
        raise MemoryBudgetError(
            f"VL(H) forms the Hessian of all {layout.total} weights; it is meant for demonstrations with at most "
            f"{MOST_PARAMETERS}. Use curvature='fisher'."
        )

    def flat_fit(vector: Tensor) -> Tensor:
        return fit(list(layout.unflatten(vector).values()))

    def regulariser(vector: Tensor, variance: Tensor) -> Tensor:
        return -0.5 * (variance * torch.func.hessian(flat_fit)(vector).diagonal()).sum()

    point = torch.cat([mean.detach().flatten() for mean in means])
    variance = torch.cat([(2 * s.detach()).exp().flatten() for s in log_sigmas])
    value = flat_fit(point).detach()
    (slope, slope_variance), extra = torch.func.grad_and_value(regulariser, argnums=(0, 1))(point, variance)
    gradient = slope.detach() - torch.func.grad(flat_fit)(point).detach()
    width = 2 * variance * slope_variance.detach()
    return DataTerm(
        value, extra.detach(), list(layout.unflatten(gradient).values()), list(layout.unflatten(width).values())
    )

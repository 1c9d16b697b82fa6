"""Train to the maximum a posteriori: VL in the limit of σ = 0, where the KL is weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked
from marquis.errors import UnsupportedOperationError
from marquis.functional.call import run
from marquis.variational.base import Method, names_inputs
from marquis.variational.objective import decay


class MAP(Method):
    """Train with a Gaussian prior: `-(1/S) Σ log p(y_i|x_i, μ) + (β/N) Σ μ²/(2 s²)`.

    Cost of a step: a plain step plus O(P). For uncertainty afterwards pass `network` to `mq.Laplace`.

    The arguments are those of `VariationalLaplace` up to `prior_scale`, and `params`; β is the weight of the prior.
    """

    @checked
    @names_inputs
    def step(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        with torch.enable_grad():
            penalty = decay(self.means, self.prior_scales)
            return self._penalised(run(self.network, x), x if y is None else y, mask, penalty)

    @checked
    def log_joint(self, loader: Iterable[Any]) -> float:
        """Return `log p(y|μ) - β Σ μ²/(2 s²)` on a loader's data, in evaluation mode, without the prior's constant."""
        with torch.no_grad():
            return self.log_likelihood(loader) - self.tempering * float(decay(self.means, self.prior_scales))

    def elbo(self, loader: Iterable[Any], **options: Any) -> float:
        """Raise `UnsupportedOperationError`: a point estimate has no ELBO."""
        raise UnsupportedOperationError(
            "MAP has no width and so no ELBO (it would be -infinity); use log_joint(loader)"
        )

    def posterior(self) -> Any:
        """Raise `UnsupportedOperationError`: a point estimate has no standard deviation."""
        raise UnsupportedOperationError("MAP is a point, not a posterior; fit mq.Laplace(method.network, ...) to it")

    def draw(self) -> dict[str, Tensor]:
        """Raise `UnsupportedOperationError`: a point estimate has no standard deviation."""
        raise UnsupportedOperationError("MAP is a point: there is nothing to draw; use predict(x) without samples")

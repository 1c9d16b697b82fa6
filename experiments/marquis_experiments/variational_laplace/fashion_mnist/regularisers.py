"""The two squared-gradient regularisers that VL is set apart from: the empirical Fisher and the unweighted square."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marquis.functional.call import run
from marquis.variational import MAP, VariationalLaplace
from marquis.variational.regulariser import DataTerm, LabelledOutputs, data_term


class EmpiricalFisher(VariationalLaplace):
    """Train VL with the gradient of the observed labels in the place of that of sampled labels (VL after eq. 27).

    The estimator is otherwise VL's, the squared mean gradient of the minibatch: with observed labels the products of
    different samples' gradients do not average to zero before training has converged.
    """

    def _data_term(self, x: Any, y: Any, mask: Tensor | None) -> DataTerm:
        batch = LabelledOutputs(self.likelihood, self._main_pass(x), y, y, mask)
        side = 2 * int(torch.randint(2, (), generator=self.generator)) - 1
        return data_term(
            batch, self.means, self.log_sigmas, lambda trained: self._auxiliary_pass(trained, x), side=side
        )


class SquaredGradient(MAP):
    """Train MAP plus `weight S/2 |g|^2`, with g the observed labels' mean gradient (Barrett and Dherin, 2020).

    That is the regulariser of `EmpiricalFisher` with one fixed variance for all weights.
    """

    weight = 0.0

    def step(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Tensor:
        """Return the loss of one minibatch, per sample."""
        with torch.enable_grad():
            fit = self.likelihood.log_prob(run(self.network, x), y, mask).mean()
            gradients = torch.autograd.grad(fit, self.means, create_graph=True)
            square = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        return super().step(x, y, mask) + 0.5 * self.weight * len(x) * square

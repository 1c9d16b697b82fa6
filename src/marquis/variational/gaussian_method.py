"""Define methods with a factorised Gaussian over the weights, `N(μ, σ²)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import Positive, checked
from marquis.functional.call import Model
from marquis.likelihoods import Likelihood
from marquis.options import inherits_options
from marquis.posterior import Posterior
from marquis.randomness import normal
from marquis.structures import Diagonal, Layout
from marquis.variational.base import Method
from marquis.variational.objective import kl

LEARNING_RATE_MULTIPLIER = 10.0
"""Learning rate of log σ over that of μ (VL 5.1): Adam moves a parameter by at most the learning rate per step."""
INITIAL_OFFSET = -3.0
"""log σ starts at log s plus this (VL 5.1)."""


@inherits_options
class GaussianMethod(Method):
    """Train a mean and a standard deviation for every weight: the base of `VariationalLaplace` and `MeanFieldVI`.

    Args:
        model: A module, or a function `(params, x) -> outputs`.
        likelihood: Name or object.
        multiplier: Learning rate of log σ over that of μ.
        initial_offset: Start value of log σ, minus log s.
        **options: `num_data`, `tempering`, `prior_scale`, `params` and `generator`, as in `Method`.
    """

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        *,
        multiplier: Positive = LEARNING_RATE_MULTIPLIER,
        initial_offset: float = INITIAL_OFFSET,
        **options: Any,
    ) -> None:
        super().__init__(model, likelihood, **options)
        self.multiplier = float(multiplier)
        start = [
            s.log().add(initial_offset).expand_as(m).clone() for m, s in zip(self.means, self.prior_scales, strict=True)
        ]
        self.widths = nn.ParameterList([nn.Parameter(value) for value in start])
        """What is trained for σ: its logarithm."""

    @property
    def log_sigmas(self) -> list[Tensor]:
        """Return the logarithm of σ, one tensor per trained parameter, with the graph to what is trained."""
        return list(self.widths)

    @property
    def sigmas(self) -> list[Tensor]:
        """Return σ, one tensor per trained parameter, with the graph to what is trained."""
        return [value.exp() for value in self.log_sigmas]

    @checked
    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return two groups: the means with `lr`, log σ with `multiplier` times that.

        An optimiser with `parameters()` instead trains everything with `lr`, and nothing here can see it: the
        widths may then be far from their optimum when training ends.
        """
        return [{"params": self.means, "lr": lr}, {"params": list(self.widths), "lr": lr * self.multiplier}]

    def kl(self) -> Tensor:
        """Return the KL divergence of the posterior from the prior, untempered (VL eq. 12). Cost: O(P)."""
        return kl(self.means, self.sigmas, self.prior_scales)

    def draw(self) -> dict[str, Tensor]:
        """Sample all of the network's parameters, the trained ones from N(μ, σ²); differentiable in μ and σ."""
        noise = [normal(mean.shape, mean, self.generator) for mean in self.means]
        return self._all_parameters([m + s * e for m, s, e in zip(self.means, self.sigmas, noise, strict=True)])

    def posterior(self) -> Posterior:
        """Return N(μ, diag σ²) over the trained parameters: an ordinary posterior that samples, predicts and saves."""
        mean = {name: m.detach().clone() for name, m in zip(self.names, self.means, strict=True)}
        layout = Layout.of(mean)
        values = torch.cat([(-2 * s.detach()).exp().flatten() for s in self.log_sigmas])
        return Posterior(layout, mean, Diagonal(layout, values))

    def _objective_of(self, log_likelihood: float) -> float:
        """Return the ELBO from the log-likelihood."""
        with torch.no_grad():
            return log_likelihood - self.tempering * float(self.kl())

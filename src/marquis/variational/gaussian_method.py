"""Methods with a width: a factorised Gaussian over the weights, `N(μ, σ²)`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.arguments import checked
from marquis.errors import DataError
from marquis.functional.call import Model
from marquis.likelihoods import Likelihood
from marquis.posterior import Posterior
from marquis.structures import Diagonal, Layout
from marquis.variational.base import Method
from marquis.variational.objective import kl
from marquis.variational.prior_scale import PriorScale

LEARNING_RATE_MULTIPLIER = 10.0
"""Learning rate of log σ over that of μ (VL 5.1): Adam moves a parameter by at most the learning rate per step."""
INITIAL_OFFSET = -3.0
"""log σ starts at log s plus this (VL 5.1)."""


class GaussianMethod(Method):
    """A method that trains a mean and a width for every weight.

    Args:
        model: A module, or a function `(params, x) -> outputs`.
        likelihood: Name or object.
        num_data: N, the number of training data.
        tempering: β, the weight of the KL.
        prior_scale: Standard deviations s of the prior; by default `1/sqrt(fan_in)`.
        multiplier: Learning rate of log σ over that of μ.
        initial_offset: Start value of log σ, minus log s.
        params: The start values of a function's parameters.
        generator: For every random draw; by default torch's global generator.
    """

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        *,
        num_data: int,
        tempering: float = 1.0,
        prior_scale: PriorScale = None,
        multiplier: float = LEARNING_RATE_MULTIPLIER,
        initial_offset: float = INITIAL_OFFSET,
        params: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            model,
            likelihood,
            num_data=num_data,
            tempering=tempering,
            prior_scale=prior_scale,
            params=params,
            generator=generator,
        )
        if not 0 < multiplier < math.inf:
            raise DataError(f"multiplier is a ratio of learning rates, positive; got {multiplier}")
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
        noise = self._gaussian(self.means)
        return self._all_parameters([m + s * e for m, s, e in zip(self.means, self.sigmas, noise, strict=True)])

    def posterior(self) -> Posterior:
        """Return N(μ, diag σ²) over the trained parameters: an ordinary posterior that samples, predicts and saves."""
        mean = {name: m.detach().clone() for name, m in zip(self.names, self.means, strict=True)}
        layout = Layout.of(mean)
        values = torch.cat([(-2 * s.detach()).exp().flatten() for s in self.log_sigmas])
        return Posterior(layout, mean, Diagonal(layout, values))

    def _objective_of(self, log_likelihood: float) -> float:
        with torch.no_grad():
            return log_likelihood - self.tempering * float(self.kl())


def inverse_softplus(sigma: Tensor) -> Tensor:
    """Return ρ with softplus(ρ) = σ."""
    return sigma + torch.log(-torch.expm1(-sigma))


def log_softplus(rho: Tensor) -> Tensor:
    """Return the logarithm of softplus(ρ)."""
    return F.softplus(rho).log()

"""Train by mean-field variational inference with sampled weights: the baseline of VL, and Bayes by Backprop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.arguments import checked
from marquis.choices import choose
from marquis.functional.call import Model, buffers_of, call
from marquis.likelihoods import Likelihood
from marquis.options import inherits_options
from marquis.variational.base import names_inputs
from marquis.variational.gaussian_method import GaussianMethod


@inherits_options
class MeanFieldVI(GaussianMethod):
    """Train by reparametrised mean-field VI: `w = μ + σ ε`, one sample per step and minibatch.

    Source: VL eq. 3-5; docs/method/variational.md#mean-field-and-map-baselines.

    Loss per sample: `-(1/S) Σ log p(y_i|x_i, w) + (β/N) KL`. Evaluate by the mean network with `predict(x)`, by ten
    samples with `predict(x, samples=10)`. Any network will do, ReLU included. Cost of a step: a plain step plus O(P).

    Args:
        model: A module, or a function `(params, x) -> outputs`.
        likelihood: Name or object.
        parametrisation: `"log"`: log σ is trained, as in Variational Laplace; `"softplus"`: ρ with σ = softplus(ρ).
        **options: `num_data`, `tempering`, `prior_scale`, `multiplier`, `initial_offset`, `params` and `generator`, as
            in `VariationalLaplace`.
    """

    @checked
    def __init__(
        self,
        model: Model,
        likelihood: str | Likelihood | Any,
        *,
        parametrisation: Literal["log", "softplus"] = "log",
        **options: Any,
    ) -> None:
        super().__init__(model, likelihood, **options)
        self.parametrisation = parametrisation = choose("parametrisation", parametrisation, ("log", "softplus"))
        if parametrisation == "softplus":
            with torch.no_grad():
                for width in self.widths:
                    sigma = width.exp()
                    width.copy_(sigma + torch.log(-torch.expm1(-sigma)))  # ρ with softplus(ρ) = σ

    @classmethod
    @checked
    def bayes_by_backprop(
        cls,
        model: Model,
        likelihood: str | Likelihood | Any,
        *,
        num_data: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> MeanFieldVI:
        """Build Bayes by Backprop with the initial values of the Laplacian-autoencoder paper's baseline.

        μ ~ U(-0.2, 0.2), ρ ~ U(-5, -4) with σ = softplus(ρ), prior N(0, 1), one learning rate for all.
        """
        settings: dict[str, Any] = {"prior_scale": 1.0, "parametrisation": "softplus", "multiplier": 1.0, **options}
        method = cls(model, likelihood, num_data=num_data, generator=generator, **settings)
        with torch.no_grad():
            for mean, width in zip(method.means, method.widths, strict=True):
                mean.uniform_(-0.2, 0.2, generator=generator)
                width.uniform_(-5.0, -4.0, generator=generator)
        return method

    @property
    def log_sigmas(self) -> list[Tensor]:  # noqa: D102
        return [sigma.log() for sigma in self.sigmas] if self.parametrisation == "softplus" else super().log_sigmas

    @property
    def sigmas(self) -> list[Tensor]:  # noqa: D102
        softplus = self.parametrisation == "softplus"
        return [F.softplus(width) if softplus else width.exp() for width in self.widths]

    @checked
    @names_inputs
    def step(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        with torch.enable_grad():
            # With the network's buffers: batch statistics are updated by this pass, as in plain training.
            outputs = call(self.network, self.draw(), buffers_of(self.network), x)
            return self._penalised(outputs, x if y is None else y, mask, self.kl())

    @checked
    def elbo(self, loader: Iterable[Any], *, samples: int = 10) -> float:
        """Estimate the tempered ELBO on a loader's data in evaluation mode, by `samples` samples per batch."""
        return self._objective_of(self.log_likelihood(loader, samples))

"""Hold the inputs of the evidence: curvature, weights, prior, likelihood, and how well the data are fitted."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import Positive, checked_methods
from marquis.errors import DataError, UnsupportedOperationError
from marquis.evidence.statistics import Statistics
from marquis.functional.call import Model
from marquis.likelihoods import Gaussian, Likelihood
from marquis.loaders import MaskOf, refuse_one_shot
from marquis.priors import BoundPrior, StructuredPrior
from marquis.structures import Layout, Structure


@checked_methods
@dataclass(frozen=True, eq=False)
class EvidenceProblem:
    """Hold everything that the evidence and its tuning need; a value.

    Attributes:
        curvature: H summed over the data, without temperature: at noise precision 1 for a Gaussian with one noise
            precision, else at the likelihood's own noise. None for method "sampled", which needs no factorisation.
        mean: the weights theta*, flat `[P]`: the point of linearisation.
        prior: bound to the same parameters.
        likelihood: with the present noise.
        statistics: the fit of the data at `mean`.
        temperature: T; the posterior precision is `H/T + prior`.
        model: module or function, for the methods that run over the data ("adapted", "sampled").
        loader: labelled data, iterated more than once.
        params: parameters of a function, or other values for a module's.
        mask_of: gives a batch's mask.
        shared: whether the loader holds one process's share of the data, and all processes of the group compute.
    """

    curvature: Structure | None
    mean: Tensor
    prior: BoundPrior | StructuredPrior
    likelihood: Likelihood
    statistics: Statistics
    temperature: Positive = 1.0
    model: Model | None = None
    loader: Iterable[Any] | None = None
    params: Mapping[str, Tensor] | None = None
    mask_of: MaskOf | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        """Check that the pieces belong together."""
        if self.curvature is not None:
            self.curvature.layout.require_same(self.prior.layout)
        self.layout.check_length(self.mean, "mean")
        self.layout.check_finite(self.mean, "mean")
        if (self.likelihood.scalar_noise_precision is None) != (self.statistics.sse is None):
            raise DataError(
                f"{self.likelihood}: give statistics.sse for a Gaussian with one noise precision, and "
                "statistics.log_likelihood for every other likelihood."
            )

    @property
    def layout(self) -> Layout:
        """Return the names and shapes of the weights."""
        return self.prior.layout

    @property
    def noise(self) -> Tensor | None:
        """Return the noise precision that can be tuned; None if there is none."""
        return self.likelihood.scalar_noise_precision

    @property
    def grouped_prior(self) -> BoundPrior:
        """Return the prior, if it has precisions to tune.

        Raises:
            UnsupportedOperationError: it is an earlier posterior, whose matrix is what earlier data said.
        """
        if isinstance(self.prior, BoundPrior):
            return self.prior
        raise UnsupportedOperationError(
            "the prior is an earlier posterior, so there is no prior precision to tune; tune before using a posterior "
            "as the next prior, or use tune(method='gradient') for the noise alone."
        )

    def scale(self) -> Tensor | float:
        """Return the factor of H in the posterior precision: beta/T, or 1/T."""
        noise = self.noise
        return 1.0 / self.temperature if noise is None else noise / self.temperature

    def scaled_curvature(self) -> Structure:
        """Return H at the present noise and temperature; gradients flow from it to a noise that requires them."""
        if self.curvature is None:
            raise UnsupportedOperationError(
                "this problem has no curvature matrix; fit one (Laplace.fit), or use tune(method='sampled')."
            )
        scale = self.scale()
        if not isinstance(scale, Tensor) and scale == 1:
            return self.curvature
        return self.curvature * (scale.to(self.curvature.device) if isinstance(scale, Tensor) else scale)

    def precision(self) -> Structure:
        """Return `H/T + prior` at the present noise, the precision of the posterior at posterior temperature 1."""
        return self.prior.add_to(self.scaled_curvature())

    def with_hyper(self, precision: Tensor | None = None, noise: Tensor | float | None = None) -> EvidenceProblem:
        """Return the same problem with another prior precision `[G]`, another noise precision, or both."""
        prior = self.prior if precision is None else self.grouped_prior.with_precision(precision)
        likelihood = self.likelihood
        if noise is not None:
            if not isinstance(likelihood, Gaussian):
                raise UnsupportedOperationError(f"{likelihood} has no noise; pass a noise with a Gaussian only.")
            noise = torch.as_tensor(noise)
            if noise.numel() != 1:
                raise DataError(f"the noise has shape {list(noise.shape)}; one number is tuned, for all outputs.")
            likelihood = likelihood.with_noise(noise.reshape(()))
        made = copy.copy(self)  # not `replace`, which would check the same weights and curvature again
        object.__setattr__(made, "prior", prior)
        object.__setattr__(made, "likelihood", likelihood)
        return made

    def require_data(self, method: str) -> tuple[Model, Iterable[Any]]:
        """Return the model and the loader, for a method that runs over the data."""
        if self.model is None or self.loader is None:
            raise DataError(f"tune(method={method!r}) runs over the data: it needs the model and a labelled loader.")
        refuse_one_shot(self.loader, f"tune(method={method!r})")
        return self.model, self.loader

"""What the evidence is a function of: curvature, weights, prior, likelihood, and how well the data are fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model
from marquis.functional.function import NetworkFunction
from marquis.likelihoods import Gaussian, Likelihood
from marquis.loaders import split_batch
from marquis.priors import BoundPrior, StructuredPrior
from marquis.structures import Layout, Structure

MaskOf = Callable[[Any], Tensor]
"""Gives a batch's mask, 1 where a label was observed."""


@dataclass(frozen=True)
class Statistics:
    """How well the data are fitted at the weights, in the few numbers that the evidence needs.

    Attributes:
        n: number of data.
        observed: number of observed scalar labels, `N * O` without gaps.
        sse: sum of squared errors, where the likelihood is Gaussian with one noise precision; the log likelihood at
            any noise then follows.
        log_likelihood: sum of `log p(y|f)` for every other likelihood.
    """

    n: int
    observed: int
    sse: Tensor | None = None
    log_likelihood: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be an answer."""
        if (self.sse is None) == (self.log_likelihood is None):
            raise DataError("Statistics hold either sse (Gaussian with one noise precision) or log_likelihood.")
        value = self.sse if self.sse is not None else self.log_likelihood
        if not bool(torch.isfinite(torch.as_tensor(value)).all()):
            raise DataError("the fit of the data is NaN or infinite; check the labels, or whether training diverged.")

    @staticmethod
    def gather(
        model: Model,
        loader: Iterable[Any],
        likelihood: Likelihood,
        *,
        params: Mapping[str, Tensor] | None = None,
        mask_of: MaskOf | None = None,
    ) -> Statistics:
        """One pass over labelled data. Cost: one forward pass; sums are kept in float64."""
        network = NetworkFunction.copy_of(model, params=params)
        collected = Collector(likelihood)
        with torch.no_grad():
            for x, y, mask in labelled_batches(loader, network.device, mask_of):
                collected.add(network(network.point, x), y, mask)
        return collected.statistics()


class Collector:
    """Adds up `Statistics` batch by batch from outputs and labels."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._likelihood = likelihood
        self._squared = noise_precision(likelihood) is not None
        self._n = self._observed = 0
        self._total: Tensor | None = None

    def add(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
        """One batch of outputs and its labels."""
        self._likelihood.validate(f, y, mask)
        if self._squared:
            error = y.to(f.dtype) - f
            if mask is not None:  # not a product: labels under a 0 may be NaN
                error = torch.where(mask.bool().expand_as(error), error, torch.zeros_like(error))
            value = error.double().square().sum()
        else:
            value = self._likelihood.log_prob(f, y, mask).double().sum()
        self._total = value if self._total is None else self._total + value
        self._n += f.shape[0]
        self._observed += int(self._likelihood.observed(y, mask).sum())

    def statistics(self) -> Statistics:
        """What was added up."""
        if self._total is None:
            raise DataError("the loader yields no batches; there is no evidence without data.")
        if self._squared:
            return Statistics(self._n, self._observed, sse=self._total)
        return Statistics(self._n, self._observed, log_likelihood=self._total)


def labelled_batches(
    loader: Iterable[Any], device: torch.device, mask_of: MaskOf | None = None
) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
    """Inputs, labels and mask of every batch, on the device; refuses a batch without labels."""
    for index, batch in enumerate(loader):
        mask = None if mask_of is None else mask_of(batch)
        if mask is not None and isinstance(batch, Mapping):
            batch = {key: value for key, value in batch.items() if value is not mask}
        elif mask is not None and isinstance(batch, (tuple, list)):
            batch = tuple(value for value in batch if value is not mask)
        x, y = split_batch(batch)
        if y is None:
            raise DataError(f"batch {index} has no labels, but the evidence depends on them; yield (x, y).")
        yield pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), (x, y, mask))


def noise_precision(likelihood: Likelihood) -> Tensor | None:
    """The one noise precision of a Gaussian; None for every other likelihood (per output, a matrix, classes)."""
    if isinstance(likelihood, Gaussian) and likelihood.noise_precision is not None:
        return likelihood.noise_precision if likelihood.noise_precision.ndim == 0 else None
    return None


def unit_noise(likelihood: Likelihood) -> Likelihood:
    """The likelihood at which curvature is kept: noise precision 1 where there is one number to rescale by."""
    if isinstance(likelihood, Gaussian) and noise_precision(likelihood) is not None:
        return likelihood.with_noise(1.0)
    return likelihood


@dataclass(frozen=True, eq=False)
class EvidenceProblem:
    """Everything the evidence and its tuning need; a value.

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
    """

    curvature: Structure | None
    mean: Tensor
    prior: BoundPrior | StructuredPrior
    likelihood: Likelihood
    statistics: Statistics
    temperature: float = 1.0
    model: Model | None = None
    loader: Iterable[Any] | None = None
    params: Mapping[str, Tensor] | None = None
    mask_of: MaskOf | None = None

    def __post_init__(self) -> None:
        """Check that the pieces belong together."""
        if not 0 < self.temperature < math.inf:
            raise DataError(f"temperature is {self.temperature}; it has to be positive and finite.")
        if self.curvature is not None:
            self.curvature.layout.require_same(self.prior.layout)
        self.layout.check_length(self.mean, "mean")
        self.layout.check_finite(self.mean, "mean")
        if (noise_precision(self.likelihood) is None) != (self.statistics.sse is None):
            raise DataError(
                f"{self.likelihood}: give statistics.sse for a Gaussian with one noise precision, and "
                "statistics.log_likelihood for every other likelihood."
            )

    @property
    def layout(self) -> Layout:
        """Names and shapes of the weights."""
        return self.prior.layout

    @property
    def noise(self) -> Tensor | None:
        """The noise precision that can be tuned; None if there is none."""
        return noise_precision(self.likelihood)

    @property
    def grouped_prior(self) -> BoundPrior:
        """The prior, if it has precisions to tune.

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
        """What H is multiplied by in the posterior precision: beta/T, or 1/T."""
        noise = self.noise
        return 1.0 / self.temperature if noise is None else noise / self.temperature

    def scaled_curvature(self) -> Structure:
        """H at the present noise and temperature; gradients flow from it to a noise that requires them."""
        if self.curvature is None:
            raise UnsupportedOperationError(
                "this problem has no curvature matrix; fit one (Laplace.fit), or use tune(method='sampled')."
            )
        scale = self.scale()
        return self.curvature * (scale.to(self.curvature.device) if isinstance(scale, Tensor) else scale)

    def with_hyper(self, precision: Tensor | None = None, noise: Tensor | float | None = None) -> EvidenceProblem:
        """The same problem with another prior precision `[G]`, another noise precision, or both."""
        prior = self.prior if precision is None else self.grouped_prior.with_precision(precision)
        likelihood = self.likelihood
        if noise is not None:
            assert isinstance(likelihood, Gaussian)
            likelihood = likelihood.with_noise(noise)
        return replace(self, prior=prior, likelihood=likelihood)

    def require_data(self, method: str) -> tuple[Model, Iterable[Any]]:
        """Model and loader, for a method that runs over the data."""
        if self.model is None or self.loader is None:
            raise DataError(f"tune(method={method!r}) runs over the data: it needs the model and a labelled loader.")
        if hasattr(self.loader, "__next__"):
            raise DataError(
                f"the loader is a one-shot iterator ({type(self.loader).__name__}), but tune(method={method!r}) passes "
                "over the data many times; pass a list of batches or a DataLoader."
            )
        return self.model, self.loader

"""Predict from weight samples: by networks at sampled weights, or by the linearised network with JVPs alone.

Samples are the outer loop and inputs the inner one, so the same weights serve all inputs and never more of them exist
than fit. Letters: S samples, B inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marquis.curvature.planning.memory import AllocationMeter
from marquis.errors import NumericalError
from marquis.functional.checks import batch_size, samples_of
from marquis.functional.jacobian import BUDGET
from marquis.functional.linearise import jacobian_vector_product
from marquis.likelihoods import Bernoulli, Categorical, Likelihood, Predictive
from marquis.predictive.function import PosteriorFunction
from marquis.predictive.links import label_entropy, point

Deviations = dict[str, Tensor]


@dataclass(eq=False)
class WeightSamples:
    """Compute outputs of the network at weights sampled from the posterior; linearised, `J (theta_s - theta*)`."""

    function: PosteriorFunction
    x: Any
    linearised: bool
    limit: int | None = None
    _sizes: tuple[int, int] | None = field(default=None, init=False)
    _one_by_one: bool = field(default=False, init=False)

    def chunks(self, count: int, generator: torch.Generator | None) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield samples, inputs, and their outputs `[s, b, *rest]`, every sample with every input."""
        posterior = self.function.posterior
        samples, inputs = self.sizes()
        size = batch_size(self.x)
        for first in range(0, count, samples):
            last = min(count, first + samples)
            deviations = posterior.deviations_from(posterior.noise(last - first, generator))
            for start in range(0, size, inputs):
                stop = min(size, start + inputs)
                yield slice(first, last), slice(start, stop), self.evaluate(deviations, samples_of(self.x, start, stop))

    def sizes(self) -> tuple[int, int]:
        """Return the number of samples and inputs at once, from the measured memory of one of each."""
        if self._sizes is None:
            posterior = self.function.posterior
            budget = BUDGET if self.limit is None else self.limit
            size = batch_size(self.x)
            zero = {name: torch.zeros_like(value).unsqueeze(0) for name, value in posterior.mean.items()}
            with AllocationMeter() as meter:
                self.evaluate(zero, samples_of(self.x, 0, 1))
            pairs = max(1, budget // max(1, meter.peak))
            inputs = min(size, pairs)
            weights = 4 * posterior.layout.total * posterior.vector.element_size()
            self._sizes = max(1, min(pairs // inputs, budget // max(1, weights))), inputs
        return self._sizes

    @torch.no_grad()
    def evaluate(self, deviations: Deviations, x: Any) -> Tensor:
        """Return the outputs for `theta - mean`, by name `[s, *shape]`: `[s, b, *rest]`."""
        one = self._tangent(x) if self.linearised else self._network(x)
        if not self._one_by_one and not (self._has_kernels and not self.linearised):
            try:
                return torch.vmap(one)(deviations)
            except RuntimeError:  # an operation without a rule for vmap
                self._one_by_one = True
        count = next(iter(deviations.values())).shape[0]
        return torch.stack([one({name: d[s] for name, d in deviations.items()}) for s in range(count)])

    @property
    def _has_kernels(self) -> bool:
        """Return whether weights of convolutions are sampled: `vmap` makes grouped convolutions of them, a loop not."""
        return any(mean.dim() > 2 for mean in self.function.posterior.mean.values())

    def _network(self, x: Any) -> Callable[[Deviations], Tensor]:
        """Return the function from `theta - mean` to the network's outputs."""
        mean = self.function.posterior.mean
        return lambda d: self.function({name: mean[name] + d[name] for name in mean}, x)

    def _tangent(self, x: Any) -> Callable[[Deviations], Tensor]:
        """Return the function from `theta - mean` to `J (theta - mean)`."""
        mean = self.function.posterior.mean
        return lambda d: jacobian_vector_product(lambda params: self.function(params, x), mean, d)[1]

    def collect(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return all outputs `[S, B, *rest]`; the linearised ones with the outputs at the mean added."""
        result: Tensor | None = None
        for samples, inputs, values in self.chunks(count, generator):
            if result is None:
                result = values.new_empty(count, batch_size(self.x), *values.shape[2:])
            result[samples, inputs] = values
        assert result is not None
        return result + self.function.at_point(self.x) if self.linearised else result


@dataclass
class RunningMoments:
    """Merge means and sums of squared deviations chunk by chunk (Welford; Chan et al. 1983)."""

    count: int = 0
    mean: Tensor | None = None
    squares: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Add `[s, ...]` more samples."""
        n, mean = len(values), values.mean(0)
        squares = (values - mean).square().sum(0)
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = n, mean, squares
            return
        total = self.count + n
        delta = mean - self.mean
        self.squares = self.squares + squares + delta.square() * (self.count * n / total)
        self.mean = self.mean + delta * (n / total)
        self.count = total


class SampleSummary(NamedTuple):
    """Hold a summary of the samples; memory does not grow with their number.

    Attributes:
        mean: mean of the (mean half of the) outputs `[B, *rest]`.
        variance: unbiased for sampled networks; for the linearised ones the mean square, as their mean is known.
        noise_variance: averaged over samples, where there is noise.
        probs: averaged over samples, where there are classes.
        expected_entropy: average over samples of the entropy of the labels, where there are classes.
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor | None
    probs: Tensor | None
    expected_entropy: Tensor | None


@dataclass
class Averages:
    """Sum over samples what is to be averaged, for one range of inputs.

    Attributes:
        noise: of noise variances.
        probs: of probabilities.
        entropy: of the entropies of the labels.
    """

    noise: Tensor | None = None
    probs: Tensor | None = None
    entropy: Tensor | None = None

    def add(self, predictive: Predictive, likelihood: Likelihood | None, lead: torch.Size) -> None:
        """Add what the likelihood predicts for outputs `[s, b]`, flattened to `[s b]`."""
        self.noise = _plus(self.noise, predictive.noise_variance, lead)
        self.probs = _plus(self.probs, predictive.probs, lead)
        if predictive.probs is not None and isinstance(likelihood, (Categorical, Bernoulli)):
            self.entropy = _plus(self.entropy, label_entropy(likelihood, predictive.probs), lead)


def _plus(total: Tensor | None, values: Tensor | None, lead: torch.Size) -> Tensor | None:
    """Add the sum over samples to a total; None where there are no values."""
    if values is None:
        return total
    summed = values.unflatten(0, lead).sum(0)
    return summed if total is None else total + summed


def _average(parts: Iterable[Tensor | None], count: int) -> Tensor | None:
    """Return sums of consecutive ranges of inputs, joined and divided."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) / count if known else None


def summarise_networks(
    runner: WeightSamples, likelihood: Likelihood | None, count: int, generator: torch.Generator | None
) -> SampleSummary:
    """Return the moments over networks at sampled weights."""
    parts: dict[int, tuple[RunningMoments, Averages]] = {}
    for _, inputs, values in runner.chunks(count, generator):
        if not bool(torch.isfinite(values).all()):
            raise NumericalError(
                "a network with sampled weights gives NaN or infinite outputs: the posterior is too wide for "
                "method='sampled'. Use method='linearised', or tune the prior precision."
            )
        moments, sums = parts.setdefault(inputs.start, (RunningMoments(), Averages()))
        predictive = point(likelihood, values.flatten(0, 1))
        moments.add(predictive.mean.unflatten(0, values.shape[:2]))
        sums.add(predictive, likelihood, values.shape[:2])
    means = torch.cat([moments.mean for moments, _ in parts.values() if moments.mean is not None])
    squares = torch.cat([moments.squares for moments, _ in parts.values() if moments.squares is not None])
    noise, probs, entropy = (
        _average([getattr(sums, name) for _, sums in parts.values()], count) for name in ("noise", "probs", "entropy")
    )
    return SampleSummary(means, squares / max(1, count - 1), noise, probs, entropy)


def summarise_linearised(
    runner: WeightSamples, likelihood: Likelihood | None, count: int, generator: torch.Generator | None, probs: bool
) -> SampleSummary:
    """Return mean squares of `J (theta_s - theta*)`, whose mean is 0, and averaged probabilities if wanted."""
    mean = runner.function.at_point(runner.x)
    squares = torch.zeros_like(mean)
    parts: dict[int, Averages] = {}
    for _, inputs, values in runner.chunks(count, generator):
        squares[inputs] += values.square().sum(0)
        if probs:
            predictive = point(likelihood, (mean[inputs] + values).flatten(0, 1))
            parts.setdefault(inputs.start, Averages()).add(predictive, likelihood, values.shape[:2])
    averaged = [_average([getattr(sums, name) for sums in parts.values()], count) for name in ("probs", "entropy")]
    return SampleSummary(mean, squares / count, None, *averaged)

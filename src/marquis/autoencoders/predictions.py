"""Hold predictions of an uncertain autoencoder: mean and variance over its samples, computed in constant memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Hold mean and variance of one tensor over samples (docs/method/autoencoders.md#predictions-from-samples).

    Attributes:
        mean: Mean over the samples, in the space of the data (probabilities for a Bernoulli likelihood).
        variance: Unbiased variance over the samples: the uncertainty of the network (and, for a variational
            autoencoder, of the code). Zero for a model with a single network.
        draws: Number of samples.
        mean_known: Whether `mean` is exact and not estimated from the samples. Then `variance` is around it,
            `(1/S) sum_s (sample - mean)²`.
        noise_variance: Variance of the data around each sample, averaged over the samples; None for codes. Apart from
            `variance`, because more data shrink only that.
        samples: The samples themselves, `[draws, *mean.shape]`, if they were kept.
    """

    mean: Tensor
    variance: Tensor
    draws: int
    noise_variance: Tensor | None = None
    samples: Tensor | None = None
    mean_known: bool = False

    @property
    def total_variance(self) -> Tensor:
        """Return the variance of a new observation: over the samples and around them."""
        return self.variance if self.noise_variance is None else self.variance + self.noise_variance

    @property
    def std(self) -> Tensor:
        """Return the standard deviation, the square root of `variance`."""
        return self.variance.sqrt()


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Estimate):
    """Hold an estimate of the input itself, together with its code.

    Attributes:
        latent: Estimate of the code by the same samples.
        log_prob: `log (1/S) sum_s p(x | sample s)` per example, `[B]`: normalised, over the observed entries.
        expected_log_prob: `(1/S) sum_s log p(x | sample s)` per example, `[B]`: at most `log_prob` (Jensen).
    """

    latent: Estimate
    log_prob: Tensor
    expected_log_prob: Tensor


@runtime_checkable
class UncertainAutoencoder(Protocol):
    """Describe an uncertain autoencoder: any object with these three methods works with the tasks."""

    def encode(
        self, x: Tensor, samples: int = ..., *, generator: torch.Generator | None = ..., keep: bool = ...
    ) -> Estimate:
        """Return the code of `x [B, ...]`."""
        ...

    def decode(
        self, z: Tensor, samples: int = ..., *, generator: torch.Generator | None = ..., keep: bool = ...
    ) -> Estimate:
        """Return the data decoded from the codes `z [B, K]`."""
        ...

    def reconstruct(
        self, x: Tensor, samples: int = ..., *, generator: torch.Generator | None = ..., keep: bool = ...
    ) -> Reconstruction:
        """Return the reconstruction of `x`."""
        ...


class Output(NamedTuple):
    """Hold one sample's output, as the likelihood takes it and as the data look."""

    f: Tensor
    mean: Tensor
    noise_variance: Tensor | None


class SampledModel(NamedTuple):
    """Hold one sampled network as two functions.

    `joined` computes code and output at once, where that is not the one after the other.
    """

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Output]
    joined: Callable[[Tensor], tuple[Tensor, Output]] | None = None

    def reconstruct(self, x: Tensor) -> tuple[Tensor, Output]:
        """Return the code of `x` and its decoding."""
        if self.joined is not None:
            return self.joined(x)
        z = self.encode(x)
        return z, self.decode(z)


class SampleMoments:
    """Update mean and variance by Welford's rule: stable, one pass, memory of two tensors."""

    def __init__(self, keep: bool = False, mean: Tensor | None = None) -> None:
        """Keep every tensor that is added, if `keep`; a `mean` that is known beforehand is not estimated."""
        self.count, self.mean_known, self.noise = 0, mean is not None, Average()
        self.kept: list[Tensor] | None = [] if keep else None
        if mean is not None:
            self.mean, self.squares = mean, torch.zeros_like(mean)

    def add(self, value: Tensor, noise_variance: Tensor | None = None) -> None:
        """Add one sample, and the variance of the data around it."""
        self.count += 1
        if noise_variance is not None:
            self.noise.add(noise_variance)
        if self.kept is not None:
            self.kept.append(value)
        if self.count == 1 and not self.mean_known:
            self.mean, self.squares = value.clone(), torch.zeros_like(value)
            return
        difference = value - self.mean
        if self.mean_known:
            self.squares.addcmul_(difference, difference)
            return
        self.mean.add_(difference, alpha=1 / self.count)
        self.squares.addcmul_(difference, difference, value=1 - 1 / self.count)  # the mean has moved towards the value

    def estimate(self) -> Estimate:
        """Return mean and unbiased variance; the variance of a single sample whose mean is not known is zero."""
        return Estimate(
            mean=self.mean,
            variance=self.squares / (self.count if self.mean_known else max(self.count - 1, 1)),
            draws=self.count,
            noise_variance=self.noise.mean,
            samples=None if self.kept is None else torch.stack(self.kept),
            mean_known=self.mean_known,
        )


class Average:
    """Update a mean; one number expanded to a shape stays one number, so that constant noise costs no pass."""

    def __init__(self) -> None:
        self.count, self._mean, self._shape = 0, torch.zeros(()), torch.Size()

    def add(self, value: Tensor) -> None:
        """Add one sample."""
        self.count, self._shape = self.count + 1, value.shape
        if value.numel() and not any(value.stride()):
            value = value[(0,) * value.ndim]
        self._mean = value.clone() if self.count == 1 else self._mean.lerp_(value, 1 / self.count)

    @property
    def mean(self) -> Tensor | None:
        """Return the mean of all samples; None if there are none."""
        return self._mean.expand(self._shape) if self.count else None

"""Predictions of an uncertain autoencoder: mean and variance over its samples, computed in constant memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the draws of a model say about one tensor (docs/method/autoencoders.md#predictions-from-samples).

    Attributes:
        mean: Mean over the draws, in the space of the data (probabilities for a Bernoulli likelihood).
        variance: Unbiased variance over the draws: what is not known about the network (and, for a variational
            autoencoder, about the code). Zero for a model with a single network.
        draws: How many draws were averaged.
        mean_known: Whether `mean` is that of all draws that there could be, because the model knows it, and not only of
            those that were made. Then `variance` is around it, `(1/S) sum_s (draw - mean)²`.
        noise_variance: Variance of the data around each draw, averaged over the draws; None where there is no such
            thing (codes). Apart from `variance`, because more data shrinks only that.
        samples: The draws themselves, `[draws, *mean.shape]`, if they were asked for.
    """

    mean: Tensor
    variance: Tensor
    draws: int
    noise_variance: Tensor | None = None
    samples: Tensor | None = None
    mean_known: bool = False

    @property
    def total_variance(self) -> Tensor:
        """Variance of a new observation: over the draws and around them."""
        return self.variance if self.noise_variance is None else self.variance + self.noise_variance

    @property
    def std(self) -> Tensor:
        """Square root of `variance`."""
        return self.variance.sqrt()


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Estimate):
    """An estimate of the input itself, with the code on the way.

    Attributes:
        latent: Estimate of the code by the same draws.
        log_prob: `log (1/S) sum_s p(x | draw s)` per datum, `[B]`: normalised, over the observed entries.
        expected_log_prob: `(1/S) sum_s log p(x | draw s)` per datum, `[B]`: never larger than `log_prob` (Jensen).
    """

    latent: Estimate
    log_prob: Tensor
    expected_log_prob: Tensor


class Output(NamedTuple):
    """One draw's decoding, as the likelihood wants it and as the data look."""

    f: Tensor
    mean: Tensor
    noise_variance: Tensor | None


class Draw(NamedTuple):
    """One network out of the model's distribution: two functions that belong together.

    `joined` is both at once, code and output, where that is not the one after the other.
    """

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Output]
    joined: Callable[[Tensor], tuple[Tensor, Output]] | None = None

    def reconstruct(self, x: Tensor) -> tuple[Tensor, Output]:
        """The code of `x` and what it decodes to."""
        if self.joined is not None:
            return self.joined(x)
        z = self.encode(x)
        return z, self.decode(z)


class Moments:
    """Welford's running mean and variance: stable, one pass, memory of two tensors however many are added."""

    def __init__(self, keep: bool = False, mean: Tensor | None = None) -> None:
        """`keep` also stores every tensor that is added; `mean`, where it is known beforehand, is not estimated."""
        self.count, self.mean_known = 0, mean is not None
        self.kept: list[Tensor] | None = [] if keep else None
        if mean is not None:
            self.mean, self.squares = mean, torch.zeros_like(mean)

    def add(self, value: Tensor) -> None:
        """One more draw."""
        self.count += 1
        if self.kept is not None:
            self.kept.append(value)
        if self.count == 1 and not self.mean_known:
            self.mean, self.squares = value.clone(), torch.zeros_like(value)
            return
        away = value - self.mean
        if self.mean_known:
            self.squares.addcmul_(away, away)
            return
        self.mean.add_(away, alpha=1 / self.count)
        self.squares.addcmul_(away, away, value=1 - 1 / self.count)  # what is left of `away` once the mean has moved

    @property
    def variance(self) -> Tensor:
        """Unbiased; zero for a single draw whose mean is not known."""
        return self.squares / (self.count if self.mean_known else max(self.count - 1, 1))

    @property
    def samples(self) -> Tensor | None:
        """All that was added, `[count, ...]`, if it was kept."""
        return None if self.kept is None else torch.stack(self.kept)


class Average:
    """Running mean alone. A number expanded to a shape stays a number, so that constant noise costs no pass at all."""

    def __init__(self) -> None:
        self.count, self._mean, self._shape = 0, torch.zeros(()), torch.Size()

    def add(self, value: Tensor) -> None:
        """One more draw."""
        self.count, self._shape = self.count + 1, value.shape
        if value.numel() and not any(value.stride()):
            value = value[(0,) * value.ndim]
        self._mean = value.clone() if self.count == 1 else self._mean.lerp_(value, 1 / self.count)

    @property
    def mean(self) -> Tensor | None:
        """Of all that was added."""
        return self._mean.expand(self._shape) if self.count else None

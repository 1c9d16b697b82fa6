"""Define the autoencoder with learnt variance, in which a second decoder predicts the logarithm of the noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.arguments import checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.network import reinitialised
from marquis.autoencoders.predictions import SampledModel
from marquis.likelihoods import Heteroscedastic
from marquis.options import inherits_options

MIN_LOG_SIGMA = -3.0
"""Where log σ is softly clipped, in training and at test alike (docs/method/autoencoders.md#baselines)."""


def soft_clip(t: Tensor, minimum: float) -> Tensor:
    """Return `minimum + softplus(t - minimum)`: about `t` well above the minimum, never below it, and smooth."""
    return minimum + F.softplus(t - minimum)


def mean_and_variance(mean: Tensor, log_sigma: Tensor, minimum: float) -> Tensor:
    """Return `f = (mean, log σ²)` along dimension 1, as the heteroscedastic Gaussian takes it."""
    return torch.cat([mean, 2 * soft_clip(log_sigma, minimum)], 1)


class PredictedNoise(nn.Module):
    """Decode codes to `f = (mean, log σ²)`, the outputs of the heteroscedastic Gaussian, by two decoders.

    Args:
        mean: `[B, K] -> [B, C, ...]`.
        log_sigma: `[B, K] -> [B, C, ...]`, log σ before it is softly clipped; by default a copy of `mean` with new
            weights.
        min_log_sigma: Where log σ is clipped.
    """

    def __init__(
        self, mean: nn.Module, log_sigma: nn.Module | None = None, min_log_sigma: float = MIN_LOG_SIGMA
    ) -> None:
        super().__init__()
        self.mean, self.log_sigma = mean, reinitialised(mean) if log_sigma is None else log_sigma
        self.min_log_sigma = min_log_sigma

    def forward(self, z: Tensor) -> Tensor:
        """Return mean and log variance of the data, `[B, 2 C, ...]`."""
        return mean_and_variance(self.mean(z), self.log_sigma(z), self.min_log_sigma)


@inherits_options
class LearntVarianceAutoencoder(BaseAutoencoder):
    """Train an autoencoder that predicts its noise ("AE likelihood"): `1/2 (r/σ)² + log σ + 1/2 log 2π` per entry.

    `r` is the residual, `σ(z)` comes from a second decoder (docs/method/autoencoders.md#baselines). The published code
    leaves out the 1/2, and its σ² is then twice the mean squared residual. It has a single sample: all its uncertainty
    is `noise_variance`.

    Args:
        encoder: `[B, ...] -> [B, K]`.
        decoder: `[B, K] -> [B, ...]`, the mean.
        variance_decoder: `[B, K] -> [B, ...]`, log σ before the clip; by default a copy of the decoder with
            new weights.
        min_log_sigma: Where log σ is softly clipped.
        **options: `lr` and `missing`, as `BaseAutoencoder` takes them.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        variance_decoder: nn.Module | None = None,
        *,
        min_log_sigma: float = MIN_LOG_SIGMA,
        **options: Any,
    ) -> None:
        super().__init__(encoder, decoder, Heteroscedastic(), **options)
        self.variance_decoder = reinitialised(decoder) if variance_decoder is None else variance_decoder
        self.min_log_sigma = min_log_sigma

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield the network itself, once."""
        yield SampledModel(self.encoder, lambda z: self.output(self._outputs(z)))

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the negative log-likelihood per sample."""
        return -self.likelihood.log_prob(self._outputs(self.encoder(inputs)), x, mask).mean()

    def _outputs(self, z: Tensor) -> Tensor:
        return mean_and_variance(self.decoder(z), self.variance_decoder(z), self.min_log_sigma)

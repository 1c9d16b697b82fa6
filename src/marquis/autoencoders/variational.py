"""Define the variational autoencoder: two encoders, two decoders, and the evidence lower bound of each example."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, NotNegative, checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.learnt_variance import MIN_LOG_SIGMA, mean_and_variance
from marquis.autoencoders.network import code_size, reinitialised
from marquis.autoencoders.predictions import Estimate, Reconstruction, SampledModel
from marquis.autoencoders.training_noise import TrainingNoise
from marquis.errors import UnsupportedOperationError
from marquis.functional.checks import naming_shape
from marquis.likelihoods import Heteroscedastic, Likelihood
from marquis.options import inherits_options
from marquis.randomness import new_seeds, normal
from marquis.variational.base import evaluation_mode


@inherits_options
class VariationalAutoencoder(BaseAutoencoder):
    """Train a variational autoencoder: `-E_q log p(x|z) + w KL(q(z|x) ‖ N(0, I))` per example.

    Source: Kingma and Welling (2014); docs/method/autoencoders.md#baselines.

    `q(z|x) = N(μ(x), σ²(x))` and, for the Gaussian, `p(x|z) = N(m(z), s²(z))`: four networks that share nothing. Both
    terms are sums over the entries of one example, so `w = 1` is the evidence bound; the published code sets a sum
    against a mean, and its weights of 1e-4 and 1e-5 are about 4 and 0.4 on this scale (784 pixels, batches of 50).

    Its samples differ in the code, not in the network. Codes have the exact mean μ and variance σ²; one sample of
    `reconstruct` is one ε in `z = μ + σ ε`, the same ε for all data, so that results do not depend on the batch. The
    `log_prob` of a reconstruction is conditional, with codes from `q(z|x)`: for `log p(x)` use `elbo` or
    `log_marginal`.

    Args:
        encoder: μ, `[B, ...] -> [B, K]`.
        decoder: Mean (or logits) of the data, `[B, K] -> [B, ...]`.
        sigma_encoder: log σ of the code; by default a copy of the encoder with new weights.
        variance_decoder: log s of the data before the soft clip, Gaussian only; by default such a copy of the decoder.
        likelihood: "gaussian" learns the variance. "bernoulli", or an object such as `Gaussian(100.0)` with fixed
            noise, has one decoder.
        kl_weight: `w`.
        min_log_sigma: Where log s is softly clipped.
        **options: `lr` and `missing`, as `BaseAutoencoder` takes them.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        sigma_encoder: nn.Module | None = None,
        variance_decoder: nn.Module | None = None,
        likelihood: str | Likelihood = "gaussian",
        *,
        kl_weight: NotNegative = 1.0,
        min_log_sigma: float = MIN_LOG_SIGMA,
        **options: Any,
    ) -> None:
        learnt = likelihood == "gaussian"
        super().__init__(encoder, decoder, Heteroscedastic() if learnt else likelihood, **options)
        if variance_decoder is not None and not learnt:
            raise UnsupportedOperationError(
                f"variance_decoder= belongs to likelihood='gaussian'; {self.likelihood} has no variance to learn."
            )
        self.sigma_encoder = reinitialised(encoder) if sigma_encoder is None else sigma_encoder
        fresh = reinitialised(decoder) if learnt and variance_decoder is None else variance_decoder
        self.variance_decoder = fresh
        self.noise = TrainingNoise()
        self.kl_weight, self.min_log_sigma = float(kl_weight), min_log_sigma

    # The bound

    def code(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return μ and log σ of the code, `[B, K]` each; `x` has zeros at missing entries, `mask` is 1 elsewhere."""
        return self._code(self.inputs(x, mask))

    def _code(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and log σ of the code for the encoders' inputs."""
        return self.encoder(inputs), self.sigma_encoder(inputs)

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the negative bound per sample, with one sampled code each."""
        mu, log_sigma = self._code(inputs)
        z = mu + log_sigma.exp() * normal(mu.shape, mu, self.noise.next(mu.device))
        fit = self.likelihood.log_prob(self._outputs(z), x, mask)
        return (self.kl_weight * kl_to_prior(mu, log_sigma) - fit).mean()

    @torch.no_grad()
    @checked
    def elbo(self, x: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None) -> Tensor:
        """Estimate the evidence bound `E_q log p(x|z) - KL <= log p(x)` per example, `[B]`, whatever `kl_weight`.

        The KL is exact; the expectation is an average over `samples` codes of each example. Unbiased.
        """
        x, mask = self._data(x)
        with naming_shape(self, x, "elbo"):
            fit = [fit for fit, _, _ in self._log_terms_of_samples(x, mask, samples, generator)]
        return torch.stack(fit).mean(0) - kl_to_prior(*self.code(x, mask))

    @torch.no_grad()
    @checked
    def log_marginal(
        self, x: Tensor, samples: AtLeastOne = 1000, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Estimate `log p(x)` per example, `[B]`, by importance sampling from `q(z|x)` (Burda et al. 2016).

        `log (1/S) Σ_s p(x|z_s) p(z_s) / q(z_s|x)` with `z_s ~ q(z|x)`: below `log p(x)` on average, closer with more
        samples; above the ELBO on average. Cost: `samples` decoder passes, memory `samples` numbers per example.
        """
        x, mask = self._data(x)
        with naming_shape(self, x, "log_marginal"):
            terms = list(self._log_terms_of_samples(x, mask, samples, generator))
        weights = [fit + prior - q for fit, prior, q in terms]
        return torch.logsumexp(torch.stack(weights), 0) - math.log(samples)

    def _log_terms_of_samples(
        self, x: Tensor, mask: Tensor | None, samples: int, generator: torch.Generator | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield `log p(x|z)`, `log p(z)`, `log q(z|x)` for codes sampled from q, with independent noise per row."""
        mu, log_sigma = self.code(x, mask)
        for _ in range(samples):
            yield self.log_terms(x, mask, mu, log_sigma, normal(mu.shape, mu, generator))

    def log_terms(
        self, x: Tensor, mask: Tensor | None, mu: Tensor, log_sigma: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return `log p(x|z)`, `log p(z)`, `log q(z|x)` per row at `z = μ + σ noise`."""
        z = mu + log_sigma.exp() * noise
        constant = 0.5 * mu.shape[1] * math.log(2 * math.pi)
        prior = -0.5 * z.square().sum(1) - constant
        q = -(0.5 * noise.square() + log_sigma).sum(1) - constant
        return self.likelihood.log_prob(self._outputs(z), x, mask), prior, q

    # The protocol

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield samples with one ε each, the same for all data; the encoders run once per batch."""
        code = functools.lru_cache(maxsize=1)(self._code)
        for seed in new_seeds(samples, generator).tolist():
            yield SampledModel(lambda x, seed=seed: _moved(code(x), seed), lambda z: self.output(self._outputs(z)))

    @torch.no_grad()
    @checked
    def encode(
        self, x: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Estimate:
        """Return the code of `x`: exactly μ and σ²; sampled only where the samples are to be kept."""
        estimate = super().encode(x, samples if keep else 1, generator=generator, keep=keep)
        return self._exact(estimate, x, samples)

    @checked
    def decode(
        self, z: Tensor, samples: AtLeastOne = 1, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Estimate:
        """Return the data decoded from the codes `z`: one pass, because nothing else varies."""
        return super().decode(z, 1, generator=generator, keep=keep)

    @torch.no_grad()
    @checked
    def reconstruct(
        self, x: Tensor, samples: AtLeastOne = 100, *, generator: torch.Generator | None = None, keep: bool = False
    ) -> Reconstruction:
        """Return the reconstruction of `x`, with the exact moments of the code."""
        estimate = super().reconstruct(x, samples, generator=generator, keep=keep)
        return replace(estimate, latent=self._exact(estimate.latent, x, samples))

    def _exact(self, latent: Estimate, x: Tensor, samples: int) -> Estimate:
        """Return the estimate of a code with its exact mean and variance."""
        with evaluation_mode(self):
            mu, log_sigma = self.code(*self._filled(x))
        return replace(latent, mean=mu, variance=(2 * log_sigma).exp(), draws=samples)

    @torch.no_grad()
    @checked
    def sample(
        self,
        n: AtLeastOne,
        generator: torch.Generator | None = None,
        *,
        latent: AtLeastOne | None = None,
        noise: bool = True,
    ) -> Tensor:
        """Sample `n` new rows: codes from the prior N(0, I), then data from `p(x|z)`.

        Args:
            n: Number of rows.
            generator: Source of the samples.
            latent: K, where the encoder's last dense layer does not tell.
            noise: Whether to sample from `p(x|z)`; False gives its mean, which is what is usually shown.
        """
        like = next(self.decoder.parameters())
        z = normal((n, code_size(self.encoder) if latent is None else latent), like, generator)
        with evaluation_mode(self):
            f = self._outputs(z)
        return self.likelihood.sample(f, generator) if noise else self.output(f).mean

    def _outputs(self, z: Tensor) -> Tensor:
        """Return the decoder's outputs for codes, with the log variance where it is learnt."""
        if self.variance_decoder is None:
            return self.decoder(z)
        return mean_and_variance(self.decoder(z), self.variance_decoder(z), self.min_log_sigma)


def kl_to_prior(mu: Tensor, log_sigma: Tensor) -> Tensor:
    """Return `KL(N(μ, σ²) ‖ N(0, I)) = -1/2 Σ (1 + log σ² - μ² - σ²)` per example, `[B]`."""
    return 0.5 * (mu.square() + (2 * log_sigma).exp() - 1 - 2 * log_sigma).sum(1)


def _moved(code: tuple[Tensor, Tensor], seed: int) -> Tensor:
    """Return `μ + σ ε` with the one ε of this seed."""
    mu, log_sigma = code
    noise = normal((1, *mu.shape[1:]), mu, torch.Generator().manual_seed(seed))
    return mu + log_sigma.exp() * noise

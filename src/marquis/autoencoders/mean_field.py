"""Train an autoencoder by Bayes by Backprop, the mean-field VI of `marquis.variational`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.inputs import Missing, num_data_of
from marquis.autoencoders.network import EncoderDecoder
from marquis.autoencoders.predictions import SampledModel
from marquis.autoencoders.training_noise import TrainingNoise
from marquis.errors import DataError
from marquis.likelihoods import Likelihood
from marquis.posterior import Posterior
from marquis.variational import MeanFieldVI


class MeanFieldAutoencoder(BaseAutoencoder):
    """Train an autoencoder with a factorised Gaussian over all weights by sampling (Bayes by Backprop).

    Source: Blundell et al. (2015); docs/method/autoencoders.md#baselines.

    Loss per example: `-log p(x | w) + KL / N`, `w = μ + σ ε` sampled once per batch. Means and widths start as in the
    paper's baseline, μ ~ U(-0.2, 0.2) and ρ ~ U(-5, -4) with σ = softplus(ρ), prior N(0, 1), so only the *shape* of
    the networks passed matters, and they stay as they are. The paper found it too brittle to report.

    Args:
        encoder: `[B, ...] -> [B, K]`.
        decoder: `[B, K] -> [B, ...]`.
        likelihood: "gaussian" (unit noise) or "bernoulli", or an object with that interface.
        num_data: N; by default the number of rows behind the trainer's training loader.
        generator: Source of initial values and random numbers in training; by default torch's global random stream.
        lr: Learning rate of Adam.
        missing: Whether NaN marks a missing entry; see `BaseAutoencoder`.
        **options: Options of `MeanFieldVI`: `prior_scale`, `tempering`, `multiplier`.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: str | Likelihood = "gaussian",
        *,
        num_data: int | None = None,
        generator: torch.Generator | None = None,
        lr: float = 1e-3,
        missing: Missing = False,
        **options: Any,
    ) -> None:
        method = MeanFieldVI.bayes_by_backprop(
            EncoderDecoder(encoder, decoder),
            likelihood,
            num_data=1 if num_data is None else num_data,
            generator=generator,
            **options,
        )
        means = method.network
        assert isinstance(means, EncoderDecoder)
        # One set of means under two names: `encoder` and `method.network.encoder` are the same module.
        super().__init__(means.encoder, means.decoder, method.likelihood, lr=lr, missing=missing)
        self.method = method
        self.noise = TrainingNoise(generator)
        self.num_data = num_data

    def begin(self, num_data: int) -> None:
        """Take N from the training data, unless it was passed."""
        if self.num_data is None:
            self.num_data = num_data

    def on_train_start(self) -> None:
        """Take N from the loader, unless it was passed."""
        if self.num_data is None:
            self.begin(num_data_of(self))

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute `-log p(x | w) + KL / N` per sample at one sample of the weights."""
        if self.num_data is None:
            raise DataError("the weight of the KL is 1 / N: pass num_data=, or use fit_in_memory or a Trainer.")
        self.method.num_data = self.num_data
        self.method.generator = self.noise.next(x.device)
        return self.method.step(inputs, x, mask)

    def posterior(self) -> Posterior:
        """Return the weights as a Gaussian posterior, which samples, predicts and saves."""
        return self.method.posterior()

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield networks with weights sampled from the posterior."""
        return self.sampled_networks(self.posterior(), samples, generator)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return means and widths, each with its learning rate."""
        return self.method.parameter_groups(self.lr)

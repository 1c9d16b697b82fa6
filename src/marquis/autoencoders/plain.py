"""The plain autoencoder: one network, constant noise."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.predictions import Draw


class Autoencoder(BaseAutoencoder):
    """Plain autoencoder ("AE MSE"): minimises `-log p(x | dec(enc(x)))` per example with fixed noise.

    Source: docs/method/autoencoders.md#baselines. With the Gaussian likelihood of unit noise that is half the squared
    error. It has a single sample and no variance.
    """

    def draws(self, samples: int, generator: torch.Generator | None = None) -> Iterator[Draw]:
        """Yield the network itself, once."""
        yield Draw(self.encoder, lambda z: self.output(self.decoder(z)))

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the negative log-likelihood per sample."""
        return -self.likelihood.log_prob(self.decoder(self.encoder(inputs)), x, mask).mean()

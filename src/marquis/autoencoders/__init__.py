"""Laplacian autoencoders and their baselines behind one protocol: `encode`, `decode`, `reconstruct`."""

from __future__ import annotations

from marquis.autoencoders.base import BaseAutoencoder, UncertainAutoencoder
from marquis.autoencoders.estimate import Estimate, Reconstruction
from marquis.autoencoders.plain import Autoencoder

__all__ = ["Autoencoder", "BaseAutoencoder", "Estimate", "Reconstruction", "UncertainAutoencoder"]

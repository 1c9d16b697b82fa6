"""Train Laplacian autoencoders and their baselines behind one protocol: `encode`, `decode`, `reconstruct`."""

from __future__ import annotations

from marquis.autoencoders.architectures import build, for_data
from marquis.autoencoders.base import Autoencoder, BaseAutoencoder
from marquis.autoencoders.dropout import DropoutAutoencoder, UnitDropout
from marquis.autoencoders.ensemble import EnsembleAutoencoder
from marquis.autoencoders.kinds import KINDS, ModelSpec
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.learnt_variance import LearntVarianceAutoencoder
from marquis.autoencoders.linearised import LinearisedAutoencoder, linearised
from marquis.autoencoders.loop import TrainingResult, fit_in_memory
from marquis.autoencoders.mean_field import MeanFieldAutoencoder
from marquis.autoencoders.network import EncoderDecoder
from marquis.autoencoders.posthoc import PosteriorAutoencoder, fit_posthoc, from_posterior
from marquis.autoencoders.predictions import Estimate, Reconstruction, UncertainAutoencoder
from marquis.autoencoders.saving import load, save
from marquis.autoencoders.training import fit
from marquis.autoencoders.variational import VariationalAutoencoder
from marquis.lazy import lazy_names

__all__ = [
    "KINDS",
    "Autoencoder",
    "BaseAutoencoder",
    "DropoutAutoencoder",
    "EncoderDecoder",
    "EnsembleAutoencoder",
    "Estimate",
    "LaplacianAutoencoder",
    "LearntVarianceAutoencoder",
    "LinearisedAutoencoder",
    "MeanFieldAutoencoder",
    "ModelSpec",
    "PosteriorAutoencoder",
    "Reconstruction",
    "TrainingResult",
    "UncertainAutoencoder",
    "UnitDropout",
    "VariationalAutoencoder",
    "build",
    "fit",
    "fit_in_memory",
    "fit_posthoc",
    "for_data",
    "from_posterior",
    "linearised",
    "load",
    "save",
]

__getattr__ = lazy_names(__name__, {"TrainingResult": "loop"}, {"Trained": "TrainingResult"})

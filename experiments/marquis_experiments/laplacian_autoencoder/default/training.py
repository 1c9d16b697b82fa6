"""Networks of the study `lae-default`: training, their files, and the posteriors that are made of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders import Autoencoder, LaplacianAutoencoder, ModelSpec, fit_posthoc
from marquis.autoencoders.learnt_variance import MIN_LOG_SIGMA, PredictedNoise
from marquis.errors import DataError, NumericalError
from marquis.io.tensors import load_tensors, save_tensors, split_prefix
from marquis.laplace import Laplace
from marquis.likelihoods import Gaussian, Heteroscedastic, Likelihood
from marquis.posterior import Posterior
from marquis_experiments.common.training import Shuffled, descend
from marquis_experiments.laplacian_autoencoder.default.candidates import Training, options_of

FILE_KIND = "lae-default"
LOWEST_VARIANCE = float(torch.tensor(2 * MIN_LOG_SIGMA).exp())
"""Smallest noise variance of an output, estimated or predicted."""


@dataclass(frozen=True, eq=False)
class Trained:
    """Hold a trained network.

    Attributes:
        model: The autoencoder with its mean weights.
        posterior: Posterior of online training at temperature 1; None for a plain training.
        likelihood: Likelihood with the noise of online training.
        seconds: CPU time of the training.
    """

    model: Autoencoder
    posterior: Posterior | None
    likelihood: Likelihood
    seconds: float


def networks(settings: Mapping[str, Any], noise: str, seed: int, shape: torch.Size) -> tuple[nn.Module, nn.Module]:
    """Return encoder and decoder with new weights; those of the mean are the same for every noise."""
    spec = ModelSpec("ae", tuple(shape), 2, settings["architecture"], settings["width"])
    encoder, decoder = spec.networks(seed)
    return encoder, PredictedNoise(decoder, spec.networks(seed + 1000)[1]) if noise == "predicted" else decoder


def train(training: Training, x: Tensor, settings: Mapping[str, Any], seed: int) -> Trained:
    """Train one network for a fixed number of epochs.

    Raises:
        NumericalError: Training diverged.
    """
    pair = networks(settings, training.noise, seed, x.shape[1:])
    likelihood: Likelihood = Heteroscedastic() if training.noise == "predicted" else Gaussian("learnt")
    model: Autoencoder | LaplacianAutoencoder = Autoencoder(*pair, likelihood)
    if training.structure is not None:
        generator = torch.Generator().manual_seed(1000 + seed)
        model = LaplacianAutoencoder(*pair, likelihood, num_data=len(x), generator=generator, **options_of(training))
    optimiser = torch.optim.Adam(model.parameter_groups(), 1e-3, fused=True)
    started = time.process_time()
    batches = Shuffled((x,), settings["batch"], seed)
    for _, loss in descend(optimiser, batches, settings["epochs"], lambda rows: model.loss(rows, None)):
        if not bool(loss.isfinite()):
            raise NumericalError(f"the loss of {training.name} is {float(loss)}.")
    seconds = time.process_time() - started
    plain = Autoencoder(*pair, likelihood).eval()
    if isinstance(model, Autoencoder):
        return Trained(plain, None, likelihood, seconds)
    return Trained(plain, model.posterior(1.0), model.likelihood, seconds)


def save(path: Path, trained: Trained) -> None:
    """Write a trained network to one file."""
    tensors = {f"weights.{name}": value.detach().contiguous() for name, value in trained.model.state_dict().items()}
    if trained.posterior is not None:
        tensors |= {f"posterior.{name}": value for name, value in trained.posterior.state_dict().items()}
    if isinstance(trained.likelihood, Gaussian) and trained.likelihood.noise_precision is not None:
        tensors["noise"] = trained.likelihood.noise_precision.detach().clone()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, FILE_KIND, {"seconds": trained.seconds}, tensors)


def load(path: Path, training: Training, settings: Mapping[str, Any], shape: torch.Size) -> Trained:
    """Read a trained network back.

    Raises:
        DataError: There is no such file, or it is of something else.
    """
    _, header, tensors = load_tensors(path, (FILE_KIND,))
    likelihood: Likelihood = Gaussian(tensors["noise"]) if "noise" in tensors else Heteroscedastic()
    model = Autoencoder(*networks(settings, training.noise, 0, shape), likelihood)
    model.load_state_dict(split_prefix(tensors, "weights."))
    state = split_prefix(tensors, "posterior.")
    if (training.structure is None) == bool(state):
        raise DataError(f"{path} is not a network of the training {training.name}.")
    return Trained(model.eval(), Posterior.from_state_dict(state) if state else None, likelihood, header["seconds"])


def refitted(trained: Trained, x: Tensor, structure: str, noise: str) -> Laplace:
    """Return the curvature in one pass at the mean weights, with prior and noise by the evidence.

    Args:
        trained: The network.
        x: Its training images.
        structure: Structure of the curvature.
        noise: "one", "per output" (from the residuals of the mean network) or "predicted".
    """
    model = trained.model
    likelihood: Likelihood = Heteroscedastic()
    if noise == "one":
        likelihood = Gaussian("learnt")
    elif noise == "per output":
        with torch.no_grad():
            likelihood = Gaussian(noise_per_output(torch.cat([model(part) - part for part in x.split(500)])))
    plain = Autoencoder(model.encoder, model.decoder, likelihood).eval()
    generator = torch.Generator().manual_seed(0)
    fitted = fit_posthoc(plain, x.split(128), structure, "sketched", generator=generator, progress=False)
    assert fitted.laplace is not None
    return fitted.laplace


def noise_per_output(residuals: Tensor) -> Tensor:
    """Return a noise precision for every output from residuals `[n, ...]`, with the protocol's floor."""
    return residuals.square().mean(0).clamp_min(LOWEST_VARIANCE).reciprocal()

"""Linearise an autoencoder: its samples are linear functions of the weights, tangent to the network at their mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from marquis.arguments import checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.network import parts_of
from marquis.autoencoders.posthoc import PosteriorAutoencoder
from marquis.autoencoders.predictions import Output, SampledModel
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import call_module, copied_buffers, laid_out_like
from marquis.functional.linearise import Linearisation, Weights
from marquis.functional.unwrap import named_parameters
from marquis.likelihoods import Gaussian
from marquis.online.settings import NEW_NAMES
from marquis.options import renamed_arguments
from marquis.variational.base import evaluation_mode


class LinearisedAutoencoder(PosteriorAutoencoder):
    """Predict with a `PosteriorAutoencoder` that is linearised in its weights; made by `linearised`.

    It has no file of its own: save the model that it was made of.
    """

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield linear functions at weights sampled from the posterior, one at a time."""
        weights = named_parameters(self)
        at = {name: weights[name].detach() for name in self.posterior.mean}
        tangent = Linearisation(at, samples)
        for _ in range(samples):
            moved = self.posterior.deviations_from(self.posterior.noise(1, generator))
            step = {name: laid_out_like(value[0].to(at[name]), at[name]) for name, value in moved.items()}
            yield self._along(tangent, step)

    def mean_code(self, inputs: Tensor) -> Tensor:
        """Return the code of the mean weights: a linear function's mean is its value there."""
        with evaluation_mode(self):
            return _call(self.encoder, {}, inputs)

    def mean_output(self, z: Tensor) -> Tensor | None:
        """Return the output of the mean weights if the decoder gives the data themselves and not, say, logits."""
        if not isinstance(self.likelihood, Gaussian):
            return None
        with evaluation_mode(self):
            return _call(self.decoder, {}, z)

    def _along(self, tangent: Linearisation, step: Weights) -> SampledModel:
        """Return encoder, decoder and their composition to first order in a step from the mean weights."""

        def reconstruct(x: Tensor) -> tuple[Tensor, Output]:
            z, f = tangent.along(self._code_and_output, x, step)
            return z, self.output(f)

        return SampledModel(
            lambda x: tangent.along(self._code, x, step),
            lambda z: self.output(tangent.along(self._decoded, z, step)),
            reconstruct,
        )

    def _code(self, weights: Weights, x: Tensor) -> Tensor:
        """Return the code of `x` at these weights."""
        return _call(self.encoder, parts_of(weights, self.encoder, self.decoder)[0], x)

    def _decoded(self, weights: Weights, z: Tensor) -> Tensor:
        """Return the decoder's outputs for codes at these weights."""
        return _call(self.decoder, parts_of(weights, self.encoder, self.decoder)[1], z)

    def _code_and_output(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return code and reconstruction of the networks at these weights."""
        z = self._code(weights, x)
        return z, self._decoded(weights, z)


def _call(network: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    """Call the network at these weights, with copies of its buffers: torch differentiates no writing to them."""
    return call_module(network, {**weights, **copied_buffers(network)}, (x,))


@renamed_arguments(**NEW_NAMES)
@checked
def linearised(
    model: BaseAutoencoder, posterior_temperature: float | Literal["laplace"] | None = None
) -> LinearisedAutoencoder:
    """Return the model with its predictive linearised at the mean weights (docs/method/autoencoders.md).

    A sample is `f(x; μ) + J (θ - μ)` instead of `f(x; θ)`; for the code the same with the encoder's part of J. So
    predictions are Gaussian with the covariance `J Σ J^T`, however wide the posterior is. Far from the mean weights the
    curvature says nothing about the network, and networks sampled there may be bad for all data; linearised samples are
    as far from the mean prediction as that covariance says, and no further. So this is how to evaluate a posterior that
    was trained cold at temperature 1, that of the Laplace approximation. Means are those of the mean weights, exactly
    (of outputs: with a Gaussian likelihood), and variances are taken around them.

    Outputs are linearised before the likelihood's link, so that a Bernoulli's predictions are probabilities. Codes that
    are passed to `decode` are kept, and the decoder's weights vary. Cost: about three passes of the network per sample;
    from 20 samples on about two where they are of one batch, whose linear map is traced, in memory of a backward pass.

    Args:
        model: Trained, with a posterior over its weights; copied.
        posterior_temperature: T, as in `LaplacianAutoencoder.posterior`; by default that of the model. "laplace"
            is the Laplace posterior for any settings: with the preset "paper-code", whose curvature counts the data
            500 times, T = 500 would weaken the prior too.

    Raises:
        UnsupportedOperationError: The model has no Laplace posterior over its weights.
        DataError: A temperature for a model whose posterior has been made already.
    """
    if isinstance(model, LaplacianAutoencoder):
        posterior, laplace = model.posterior(posterior_temperature), None
    elif not isinstance(model, PosteriorAutoencoder):
        raise UnsupportedOperationError(
            f"{type(model).__name__} has no Laplace posterior over its weights; there is one in LaplacianAutoencoder "
            "and in what fit_posthoc and from_posterior return."
        )
    elif posterior_temperature is not None:
        raise DataError(
            f"posterior_temperature={posterior_temperature}: this posterior has its own; choose it in fit_posthoc."
        )
    else:
        posterior, laplace = model.posterior, model.laplace
    networks = model.encoder, model.decoder
    return LinearisedAutoencoder(*networks, posterior, model.likelihood, laplace=laplace, missing=model.missing).eval()

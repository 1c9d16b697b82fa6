"""The linearised autoencoder: draws move along the tangent of the network at the mean weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from marquis.autoencoders.estimate import Draw, Output
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.network import parts_of
from marquis.autoencoders.posthoc import PosteriorAutoencoder
from marquis.autoencoders.tangent import Tangent, Weights
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import at_state, laid_out_like
from marquis.likelihoods import Gaussian
from marquis.variational.base import evaluating


class LinearisedAutoencoder(PosteriorAutoencoder):
    """A posterior read through the linearised network, see `linearised`; everything else as `PosteriorAutoencoder`.

    It has no file of its own: save the model that it was made of.
    """

    def draws(self, samples: int, generator: torch.Generator | None = None) -> Iterator[Draw]:
        """Linear functions of weights drawn from the posterior, one at a time."""
        at = {name: self.get_parameter(name).detach() for name in self.posterior.mean}
        tangent = Tangent(at, samples)
        for _ in range(samples):
            moved = self.posterior.deviations_from(self.posterior.noise(1, generator))
            step = {name: laid_out_like(value[0].to(at[name]), at[name]) for name, value in moved.items()}
            yield self._along(tangent, step)

    def mean_code(self, inputs: Tensor) -> Tensor:
        """That of the mean weights: a linear function's mean is its value there."""
        with evaluating(self):
            return _call(self.encoder, {}, inputs)

    def mean_output(self, z: Tensor) -> Tensor | None:
        """Likewise, if what the decoder gives are the data themselves and not, say, the logits of probabilities."""
        if not isinstance(self.likelihood, Gaussian):
            return None
        with evaluating(self):
            return _call(self.decoder, {}, z)

    def _along(self, tangent: Tangent, step: Weights) -> Draw:
        """Encoder and decoder, and both together, to first order in a step from the mean."""

        def reconstruct(x: Tensor) -> tuple[Tensor, Output]:
            z, f = tangent.along(self._both, x, step)
            return z, self.output(f)

        return Draw(
            lambda x: tangent.along(self._code, x, step),
            lambda z: self.output(tangent.along(self._image, z, step)),
            reconstruct,
        )

    def _code(self, weights: Weights, x: Tensor) -> Tensor:
        return _call(self.encoder, parts_of(weights, self.encoder, self.decoder)[0], x)

    def _image(self, weights: Weights, z: Tensor) -> Tensor:
        return _call(self.decoder, parts_of(weights, self.encoder, self.decoder)[1], z)

    def _both(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self._code(weights, x)
        return z, self._image(weights, z)


def _call(network: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    """The network at these weights, with copies of its buffers: torch differentiates nothing that writes to them."""
    copies = {name: buffer.clone() for name, buffer in network.named_buffers()}
    return at_state(network, {**weights, **copies}, (x,))


def linearised(
    model: LaplacianAutoencoder | PosteriorAutoencoder, temperature: float | None = None
) -> LinearisedAutoencoder:
    """The same posterior, read through the network's tangent at its mean weights (methods.md 4.2).

    A draw is `f(x; μ) + J (θ - μ)` instead of `f(x; θ)`; for the code likewise, with the encoder's part of J. Answers
    are Gaussian with the covariance `J Σ J^T`, however wide the posterior is. Far from the mean weights the curvature
    says nothing about the network, and networks drawn there may be bad for all data; linear draws are as far from the
    mean answer as that covariance says, and no further. So this is how to read a posterior that was trained cold at
    temperature 1, that of the Laplace approximation. Means are those of the mean weights, exactly (of outputs: with a
    Gaussian likelihood), and variances are taken around them.

    Outputs are linearised before the likelihood's link, so that a Bernoulli's answers are probabilities. Codes given to
    `decode` are kept, and the decoder's weights move. Cost: some three passes of the network per draw; of 20 draws or
    more about two, as the linear map is traced once per batch, in memory of a backward pass.

    Args:
        model: Trained, with a posterior over its weights; copied.
        temperature: T of what is read, as in `LaplacianAutoencoder.posterior`; by default that of the model. That of
            the Laplace posterior is the one at which the effective temperature is 1: T = 1 for the default settings,
            some 500 for the preset "paper-code".

    Raises:
        UnsupportedOperationError: The model has no Laplace posterior over its weights.
        DataError: A temperature for a model whose posterior has been made already.
    """
    if isinstance(model, LaplacianAutoencoder):
        found, laplace = model.posterior(temperature), None
    elif not isinstance(model, PosteriorAutoencoder):
        raise UnsupportedOperationError(
            f"{type(model).__name__} has no Laplace posterior over its weights; there is one in LaplacianAutoencoder "
            "and in what fit_posthoc and from_posterior return."
        )
    elif temperature is not None:
        raise DataError(
            f"temperature={temperature}: this posterior has its own; choose it where it is made (fit_posthoc)."
        )
    else:
        found, laplace = model.posterior, model.laplace
    options: dict[str, Any] = {"laplace": laplace, "missing": model.missing}
    return LinearisedAutoencoder(model.encoder, model.decoder, found, model.likelihood, **options).eval()

"""The linearised autoencoder: draws move along the tangent of the network at the mean weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.utils._pytree import tree_map

from marquis.autoencoders.estimate import Draw, Output
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.network import parts_of
from marquis.autoencoders.posthoc import PosteriorAutoencoder
from marquis.curvature.call import laid_out_like
from marquis.errors import DataError, UnsupportedOperationError
from marquis.predictive.function import plain_attention

Weights = dict[str, Tensor]
NO_TANGENT = ("forward AD", "jvp", "functorch", "data pointer")
"""What torch says of operations that have no forward-mode derivative, the last of those that leave torch."""


class LinearisedAutoencoder(PosteriorAutoencoder):
    """A posterior read through the linearised network, see `linearised`; everything else as `PosteriorAutoencoder`."""

    def draws(self, samples: int, generator: torch.Generator | None = None) -> Iterator[Draw]:
        """Linear functions of weights drawn from the posterior, one at a time."""
        for _ in range(samples):
            moved = self.posterior.deviations_from(self.posterior.noise(1, generator))
            yield self._along({name: value[0] for name, value in moved.items()})

    def _along(self, deviation: Mapping[str, Tensor]) -> Draw:
        """Encoder and decoder, and both together, to first order in a deviation from the mean."""
        at = {name: self.get_parameter(name).detach() for name in deviation}
        step = {name: laid_out_like(value.to(at[name]), at[name]) for name, value in deviation.items()}

        def code(weights: Weights, x: Tensor) -> Tensor:
            return _call(self.encoder, parts_of(weights, self.encoder, self.decoder)[0], x)

        def image(weights: Weights, z: Tensor) -> Tensor:
            return _call(self.decoder, parts_of(weights, self.encoder, self.decoder)[1], z)

        def both(weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
            z = code(weights, x)
            return z, image(weights, z)

        def along(function: Callable[[Weights, Tensor], Any], x: Tensor) -> Any:
            try:
                with plain_attention():
                    value, change, *_ = jvp(lambda weights: function(weights, x), (at,), (step,))
            except (NotImplementedError, RuntimeError) as error:
                if not any(word in str(error) for word in NO_TANGENT):
                    raise
                said = str(error).splitlines()[0].rstrip(".")
                raise UnsupportedOperationError(
                    f"the network has an operation without a forward-mode derivative: {said}. "
                    "Read the posterior by networks drawn, without `linearised`."
                ) from error
            return tree_map(torch.add, value, change)

        def reconstruct(x: Tensor) -> tuple[Tensor, Output]:
            z, f = along(both, x)
            return z, self.output(f)

        return Draw(lambda x: along(code, x), lambda z: self.output(along(image, z)), reconstruct)


def _call(network: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    """The network at these weights, with copies of its buffers: torch differentiates nothing that writes to them."""
    copies = {name: buffer.clone() for name, buffer in network.named_buffers()}
    return functional_call(network, {**weights, **copies}, (x,))


def linearised(
    model: LaplacianAutoencoder | PosteriorAutoencoder, temperature: float | None = None
) -> LinearisedAutoencoder:
    """The same posterior, read through the network's tangent at its mean weights (methods.md 4.1).

    A draw is `f(x; μ) + J (θ - μ)` instead of `f(x; θ)`; for the code likewise, with the encoder's part of J. Answers
    are Gaussian with the covariance `J Σ J^T`, however wide the posterior is. Far from the mean weights the curvature
    says nothing about the network, and networks drawn there are bad for all data; the linear ones are not. So this is
    how to read a posterior that was trained cold at temperature 1, that of the Laplace approximation.

    Outputs are linearised before the likelihood's link, so that a Bernoulli's answers are probabilities. Codes given to
    `decode` are kept, and the decoder's weights move. Cost: one forward-mode pass per draw, some three passes of the
    network.

    Args:
        model: Trained, with a posterior over its weights; copied.
        temperature: Of what is read; by default that of the model.

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
    return LinearisedAutoencoder(model.encoder, model.decoder, found, model.likelihood, **options)

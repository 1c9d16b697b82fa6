"""Give a trained autoencoder a posterior over its weights, behind the same protocol as models that train with one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from marquis.arguments import checked
from marquis.autoencoders.base import Autoencoder, BaseAutoencoder
from marquis.autoencoders.inputs import Missing, inputs_of
from marquis.autoencoders.network import EncoderDecoder
from marquis.autoencoders.predictions import SampledModel
from marquis.errors import ModelMismatchError, UnsupportedOperationError
from marquis.functional.unwrap import named_parameters
from marquis.laplace import Laplace
from marquis.likelihoods import Likelihood
from marquis.posterior import Posterior


class PosteriorAutoencoder(BaseAutoencoder):
    """Predict with a trained autoencoder and a posterior over its weights; made by `from_posterior`.

    Attributes:
        posterior: Over the weights `encoder.*` and `decoder.*`, or some of them.
        laplace: The Laplace approximation it came from, if it came from one.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        posterior: Posterior,
        likelihood: str | Likelihood = "gaussian",
        *,
        laplace: Laplace | None = None,
        missing: Missing = False,
    ) -> None:
        copied = copy.deepcopy(EncoderDecoder(encoder, decoder)).eval()
        _require_fit(copied, posterior)
        weights = named_parameters(copied)
        with torch.no_grad():
            for name, value in posterior.mean.items():
                weights[name].copy_(value)
        super().__init__(copied.encoder, copied.decoder, likelihood, missing=missing)
        self.posterior, self.laplace = posterior, laplace

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield networks with weights sampled from the posterior, one at a time."""
        return self.sampled_networks(self.posterior, samples, generator)

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Raise `UnsupportedOperationError`: there is nothing left to train."""
        raise UnsupportedOperationError(
            "this autoencoder was trained before its posterior was made; train an Autoencoder and call fit_posthoc, or "
            "use LaplacianAutoencoder, which trains with its posterior."
        )


@checked
def from_posterior(
    encoder: nn.Module,
    decoder: nn.Module,
    posterior: Posterior | Laplace,
    likelihood: str | Likelihood | None = None,
    *,
    missing: Missing = False,
) -> PosteriorAutoencoder:
    """Return an uncertain autoencoder from trained networks and a posterior over their weights, of any structure.

    Args:
        encoder: `[B, ...] -> [B, K]`; copied.
        decoder: `[B, K] -> [B, ...]`; copied.
        posterior: Over parameters of `EncoderDecoder(encoder, decoder)`; or the `Laplace` that was fitted to it.
        likelihood: Likelihood of the data; by default that of the `Laplace`, else Gaussian with unit noise.
        missing: Whether NaN marks a missing entry; see `BaseAutoencoder`.

    Raises:
        ModelMismatchError: The posterior is over other parameters.
    """
    laplace = posterior if isinstance(posterior, Laplace) else None
    if likelihood is None:
        likelihood = "gaussian" if laplace is None else laplace.likelihood
    gaussian = posterior.posterior if isinstance(posterior, Laplace) else posterior
    return PosteriorAutoencoder(encoder, decoder, gaussian, likelihood, laplace=laplace, missing=missing)


@checked
def fit_posthoc(
    autoencoder: BaseAutoencoder,
    loader: Iterable[Any],
    structure: str = "diagonal",
    estimator: str | None = None,
    *,
    tune: bool | str = True,
    generator: torch.Generator | None = None,
    progress: bool = True,
    prior: Any = None,
    temperature: float = 1.0,
    posterior_temperature: float = 1.0,
    **options: Any,
) -> PosteriorAutoencoder:
    """Give a trained autoencoder a posterior: curvature in one pass, prior and noise by the evidence.

    Source: LAE, section 2; docs/method/autoencoders.md#post-hoc-laplacian-autoencoder.

    Args:
        autoencoder: Trained, plain: its encoder, decoder, likelihood and treatment of missing entries are used.
        loader: Its training data; batches `x` or `(x, ...)`, of which the rest is ignored.
        structure: "diagonal", "kronecker", "block", "full" or "lowrank".
        estimator: "exact", "sketched", "approximate" or "mixed"; None: exact up to 64 outputs, else sketched.
        tune: Whether prior precision and, for the Gaussian, noise precision are chosen by the evidence; or the name of
            a method of `Laplace.tune`.
        generator: Source of the sketches.
        progress: Whether to show a progress bar.
        prior: Prior of the weights, as in `Laplace`.
        temperature: Temperature of the likelihood, as in `Laplace`.
        posterior_temperature: Temperature of the whole posterior, as in `Laplace`.
        **options: Options of `Laplace.fit`.

    Returns:
        A model with the protocol; its `laplace` has evidence, check and saving.
    """
    if not isinstance(autoencoder, Autoencoder):
        raise UnsupportedOperationError(
            f"a posterior is fitted to one network with fixed noise, and {type(autoencoder).__name__} may be more than "
            "that; pass Autoencoder(encoder, decoder, likelihood) with the networks you mean."
        )
    network = copy.deepcopy(EncoderDecoder(autoencoder.encoder, autoencoder.decoder)).eval()
    laplace = Laplace(
        network,
        autoencoder.likelihood,
        structure,
        estimator,
        prior=prior,
        temperature=temperature,
        posterior_temperature=posterior_temperature,
    )
    data = _InputsAsLabels(loader, autoencoder)
    mask_of = itemgetter(2) if autoencoder.missing else None
    laplace.fit(data, generator=generator, progress=progress, mask_of=mask_of, **options)
    if tune:
        laplace.tune("evidence" if tune is True else tune)
    return from_posterior(network.encoder, network.decoder, laplace, missing=autoencoder.missing)


class _InputsAsLabels:
    """Iterate over a loader with its inputs as labels."""

    def __init__(self, loader: Iterable[Any], autoencoder: BaseAutoencoder) -> None:
        self._loader, self._autoencoder = loader, autoencoder

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        device = next(self._autoencoder.parameters()).device
        for batch in self._loader:
            x, mask = self._autoencoder._data(inputs_of(batch).to(device))
            inputs = self._autoencoder.inputs(x, mask)
            if not self._autoencoder.missing:
                yield inputs, x
            else:
                yield inputs, x, torch.ones_like(x, dtype=torch.bool) if mask is None else mask


def _require_fit(network: EncoderDecoder, posterior: Posterior) -> None:
    """Refuse a posterior over parameters that the networks do not have."""
    shapes = {name: tuple(parameter.shape) for name, parameter in named_parameters(network).items()}
    wrong = [name for name, mean in posterior.mean.items() if shapes.get(name) != tuple(mean.shape)]
    if wrong:
        raise ModelMismatchError(
            f"the posterior is over {wrong[0]!r} of shape {list(posterior.mean[wrong[0]].shape)} (and {len(wrong) - 1} "
            "more like it), which these networks do not have. Fit it to EncoderDecoder(encoder, decoder), whose "
            f"parameters are called {next(iter(shapes), 'encoder.*')!r} and so on."
        )

"""Sample autoencoders by Monte Carlo dropout: a network thinned at random is a sample of the model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marquis.arguments import checked
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.predictions import Output, SampledModel
from marquis.autoencoders.training_noise import TrainingNoise
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.replica import replicate
from marquis.likelihoods import Likelihood
from marquis.options import inherits_options
from marquis.randomness import new_seeds


class UnitDropout(nn.Module):
    """Drop units at random; a seed names the thinned network.

    In training, ordinary dropout: units are dropped independently for every example, by `source` if there is one. In
    evaluation with a `seed`, this seed determines the dropped units, the same ones for all data: one network. In
    evaluation without one, none is. The others are divided by `1 - p`, so that the expectation is the input.

    Args:
        p: Probability of dropping a unit.
    """

    seed: int | None = None
    source: torch.Generator | None = None

    @checked
    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise DataError(f"p={p}: the probability of dropping a unit is at least 0 and below 1.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return `x [B, ...]` with dropped units."""
        if self.training:
            if self.source is None:
                return F.dropout(x, self.p, True)
            stay = torch.rand(x.shape, generator=self.source, device=x.device) >= self.p
            return x * (stay.to(x) / (1 - self.p))
        return x if self.seed is None else x * (self.kept(x.shape[1:], self.seed).to(x) / (1 - self.p))

    def kept(self, shape: torch.Size, seed: int) -> Tensor:
        """Return which units of one sample stay, for this seed; the same on every device and in every precision."""
        return torch.rand(1, *shape, generator=torch.Generator().manual_seed(seed)) >= self.p

    def extra_repr(self) -> str:
        """Return the probability for `repr`."""
        return f"p={self.p}"


@inherits_options
class DropoutAutoencoder(BaseAutoencoder):
    """Train an autoencoder with Monte-Carlo dropout ("MC-AE"): dropout between all layers, kept at test.

    Source: Gal and Ghahramani (2016); docs/method/autoencoders.md#baselines.

    In *copies* of the networks a `UnitDropout` is put directly before every trainable layer (dense, convolutional:
    with a weight of at least two dimensions) except the first of each network: neither data nor code are thinned. The
    paper's "between all trainable layers" could include the code; `on_code=True` does that. Networks that contain
    `UnitDropout` keep just those.

    Args:
        encoder: `[B, ...] -> [B, K]`, an `nn.Sequential` (nested ones too).
        decoder: `[B, K] -> [B, ...]`, an `nn.Sequential` as well.
        likelihood: "gaussian" (unit noise) or "bernoulli", or an object with that interface.
        p: Probability of dropping a unit.
        on_code: Whether the code too is thinned, before the decoder.
        **options: `lr` and `missing`, as `BaseAutoencoder` takes them.
    """

    @checked
    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: str | Likelihood = "gaussian",
        *,
        p: float = 0.2,
        on_code: bool = False,
        **options: Any,
    ) -> None:
        thinned = with_dropout(decoder, p)
        if on_code:
            thinned = nn.Sequential(UnitDropout(p), thinned)
        super().__init__(with_dropout(encoder, p), thinned, likelihood, **options)
        self.noise = TrainingNoise()

    @property
    def _dropouts(self) -> list[UnitDropout]:
        return [module for module in self.modules() if isinstance(module, UnitDropout)]

    def sampled_models(self, samples: int, generator: torch.Generator | None = None) -> Iterator[SampledModel]:
        """Yield thinned networks, which do not depend on the data."""
        layers = self._dropouts
        for _ in range(samples):
            seeds = new_seeds(len(layers), generator).tolist()

            def encode(x: Tensor, seeds: list[int] = seeds) -> Tensor:
                return _thinned(self.encoder, layers, seeds)(x)

            def decode(z: Tensor, seeds: list[int] = seeds) -> Output:
                return self.output(_thinned(self.decoder, layers, seeds)(z))

            yield SampledModel(encode, decode)

    def objective(self, inputs: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the negative log-likelihood per sample, each through a thinned network of its own."""
        layers, source = self._dropouts, self.noise.next(x.device)
        for layer in layers:
            layer.source = source
        try:
            return -self.likelihood.log_prob(self.decoder(self.encoder(inputs)), x, mask).mean()
        finally:
            for layer in layers:
                layer.source = None


def _thinned(network: nn.Module, layers: list[UnitDropout], seeds: list[int]) -> nn.Module:
    """Return a replica of the network, thinned by these seeds; the network itself may be in use by another thread."""
    replica, parts = replicate(network, {})
    for layer, seed in zip(layers, seeds, strict=True):
        part = parts.get(id(layer))
        if isinstance(part, UnitDropout):
            part.seed = seed
    return replica


def with_dropout(network: nn.Module, p: float) -> nn.Module:
    """Return a copy with dropout before every trainable layer but the first.

    Raises:
        UnsupportedOperationError: Layers inside a module that is not `nn.Sequential`, whose order is not known.
    """
    if any(isinstance(module, UnitDropout) for module in network.modules()):
        return copy.deepcopy(network)
    return _insert(copy.deepcopy(network), p, [])


def _insert(module: nn.Module, p: float, seen: list[str]) -> nn.Module:
    """Return `module` with dropout before its layers; `seen` holds the layers before it."""
    if isinstance(module, nn.Sequential):
        return nn.Sequential(*(_insert(child, p, seen) for child in module))
    layers = [part for part in module.modules() if any(w.ndim >= 2 for w in part.parameters(recurse=False))]
    if not layers:
        return module
    if len(layers) > 1:
        raise UnsupportedOperationError(
            f"dropout goes between layers, but {type(module).__name__} is not an nn.Sequential and holds "
            f"{len(layers)} of them in an order of its own. Put marquis.autoencoders.UnitDropout(p) between them "
            "yourself: networks that have it are taken as they are."
        )
    first = not seen
    seen.append(type(module).__name__)
    return module if first else nn.Sequential(UnitDropout(p), module)

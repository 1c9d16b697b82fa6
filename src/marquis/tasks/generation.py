"""New data: codes near those of known data, decoded by networks that are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods import Bernoulli
from marquis.tasks.batches import SameDraws, at_least_one, batches, data_tensor, naming_shape, normal, require

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder


@torch.no_grad()
def sample(
    model: UncertainAutoencoder,
    known: Tensor,
    n: int,
    *,
    networks: int = 10,
    noise: bool = False,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> Tensor:
    """`n` new data `[n, ...]` like the known ones.

    An autoencoder has no distribution of codes of its own, so that of the codes of `known` is smoothed: the code of a
    datum at random and a Gaussian step, together shrunk so that mean and covariance of the codes stay what they are
    (smoothed bootstrap, Silverman 1986, 6.4; see `near`). Codes of few data are smoothed much, those of many hardly;
    long codes are as good as Gaussian. Networks take turns; codes of one are decoded by the same one, so that an
    ensemble, whose members do not share a code, can be asked too. A variational autoencoder has a prior: use its own
    `sample`. Cost: `networks` passes of the encoder over `known` and of the decoder over `n` codes.

    Args:
        model: Anything with `encode` and `decode`.
        known: Data `[N, ...]`, such as a thousand of the training data.
        n: How many.
        networks: How many draws of the model take turns; a model with fewer (a plain autoencoder) has as many.
        noise: Whether the noise of the data is added, where the model claims one. Without, these are means: what is
            shown of images. With it, a table's columns vary as the data do.
        generator: For all that is random.
        batch_size: How many data at a time.
        progress: Show a bar on a terminal.
    """
    for method in ("encode", "decode"):
        require(model, method)
    at_least_one(n=n, networks=networks)
    if noise and isinstance(getattr(model, "likelihood", None), Bernoulli):
        raise UnsupportedOperationError(
            "noise=True adds a Gaussian's noise, and this model has a Bernoulli likelihood: leave it out, what comes "
            "are probabilities; torch.bernoulli draws zeros and ones from them."
        )
    known, same = data_tensor(model, known, "known data"), SameDraws(model, generator)
    found = []
    for x in batches(model, known, batch_size, "codes", progress):
        with naming_shape(model, x, "known data"):
            found.append(_kept(model.encode(x, networks, generator=same.again(), keep=True).samples))
    codes, parts = torch.cat(found, 1), []
    shape = codes.shape[2:]
    for number, size in enumerate(_shares(n, len(codes))):
        for count in _shares(size, -(-size // batch_size)):
            z = near(codes[number].flatten(1), count, generator).unflatten(1, shape)
            said = model.decode(z, networks, generator=same.again(), keep=True)
            drawn = _kept(said.samples)[number]
            if noise and said.noise_variance is not None:
                drawn = drawn + said.noise_variance.sqrt() * normal(drawn.shape, drawn, generator)
            parts.append(drawn)
    place = "cpu" if generator is None else generator.device
    order = torch.randperm(n, generator=generator, device=place)  # or the same network would have neighbours only
    return torch.cat(parts)[order.to(parts[0].device)].to(known.device)


def near(codes: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """`n` new codes by the smoothed bootstrap: `m + (z_i - m + h e) / sqrt(1 + h²)`, `e ~ N(0, C)`.

    m and C are mean and covariance of the codes, i is drawn at random, and `h = (4 / ((K + 2) N))^(1 / (K + 4))` is
    Silverman's width for Gaussian codes.

    Args:
        codes: `[N, K]`.
        n: How many.
        generator: For the choice and the steps.
    """
    count, size = codes.shape
    place = codes.device if generator is None else generator.device
    rows = torch.randint(count, (n,), generator=generator, device=place).to(codes.device)
    mean = codes.mean(0)
    away = codes - mean
    h = (4 / ((size + 2) * count)) ** (1 / (size + 4))
    values, vectors = torch.linalg.eigh((away.T @ away).double() / count)
    root = (vectors * values.clamp_min(0).sqrt()).to(codes.dtype)
    steps = normal((n, size), codes, generator) @ root.T
    return mean + (away[rows] + h * steps) / (1 + h * h) ** 0.5


def _shares(total: int, parts: int) -> list[int]:
    """As equal as whole numbers can be; none of them zero."""
    return [size for size in (total // parts + (number < total % parts) for number in range(parts)) if size]


def _kept(samples: Tensor | None) -> Tensor:
    if samples is None:
        raise DataError("encode and decode with keep=True must give their draws, samples [S, B, ...]; got None.")
    return samples

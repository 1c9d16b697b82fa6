"""Generate data: codes near those of known data, decoded by sampled networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marquis.arguments import AtLeastOne, checked, checked_arrays
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import all_finite, check_finite
from marquis.likelihoods import Bernoulli
from marquis.randomness import device_for, normal, permutation
from marquis.tasks.batches import SameSeed, batches, data_tensor, naming_shape, require_method

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder


@torch.no_grad()
@checked_arrays
def sample(
    model: UncertainAutoencoder,
    known: Tensor,
    n: AtLeastOne,
    *,
    networks: AtLeastOne = 10,
    noise: bool = False,
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> Tensor:
    """Generate `n` new samples `[n, ...]` like the known data.

    An autoencoder has no distribution of codes, so that of the codes of `known` is smoothed: the code of a random
    sample and a Gaussian step, both shrunk so that mean and covariance of the codes stay the same
    (smoothed bootstrap, Silverman 1986, 6.4; see `near`). Codes of few data are smoothed much, those of many hardly;
    long codes are as good as Gaussian. Networks take turns; codes of one are decoded by the same one, so that an
    ensemble, whose members do not share a code, can be used too. A variational autoencoder has a prior: use its method
    `sample`. Cost: `networks` passes of the encoder over `known` and of the decoder over `n` codes.

    Args:
        model: Anything with `encode` and `decode`.
        known: Data `[N, ...]`, such as a thousand of the training data.
        n: Number of new samples.
        networks: Number of sampled networks, which take turns; a model may have fewer (a plain autoencoder has one).
        noise: Whether to add the noise of the data, where the model has one. Without, these are means, as is usual for
            images. With it, a table's columns vary as the data do.
        generator: Source of all random numbers.
        batch_size: Number of samples at a time.
        progress: Show a bar on a terminal.
    """
    for method in ("encode", "decode"):
        require_method(model, method)
    if noise and isinstance(getattr(model, "likelihood", None), Bernoulli):
        raise UnsupportedOperationError(
            "noise=True adds a Gaussian's noise, and this model has a Bernoulli likelihood: leave it out. The "
            "samples are probabilities; torch.bernoulli turns them into zeros and ones."
        )
    known, same = data_tensor(model, known, "known data"), SameSeed(model, generator)
    encoded = []
    for x in batches(model, known, batch_size, "codes", progress):
        with naming_shape(model, x, "known data"):
            encoded.append(_required_samples(model.encode(x, networks, generator=same.generator(), keep=True).samples))
    codes, parts = torch.cat(encoded, 1), []
    shape = codes.shape[2:]
    for number, size in enumerate(_shares(n, len(codes))):
        for count in _shares(size, -(-size // batch_size)):
            z = near(codes[number].flatten(1), count, generator).unflatten(1, shape)
            decoded = model.decode(z, networks, generator=same.generator(), keep=True)
            new = _required_samples(decoded.samples)[number]
            if noise and decoded.noise_variance is not None:
                new = new + decoded.noise_variance.sqrt() * normal(new.shape, new, generator)
            parts.append(new)
    order = permutation(n, generator)  # or the samples of one network would lie side by side
    return torch.cat(parts)[order.to(parts[0].device)].to(known.device)


@checked
def near(codes: Tensor, n: AtLeastOne, generator: torch.Generator | None = None) -> Tensor:
    """Return `n` new codes by the smoothed bootstrap: `m + (z_i - m + h e) / sqrt(1 + h²)`, `e ~ N(0, C)`.

    m and C are mean and covariance of the codes, i is random, and `h = (4 / ((K + 2) N))^(1 / (K + 4))` is
    Silverman's width for Gaussian codes.

    Args:
        codes: `[N, K]`.
        n: Number of new codes.
        generator: Source of the choice and the steps.
    """
    if codes.dim() != 2 or not codes.is_floating_point() or not len(codes):
        raise DataError(f"codes of shape {list(codes.shape)} ({codes.dtype}): floating-point [N, K] are needed.")
    check_finite(codes, "codes")
    count, size = codes.shape
    place = device_for(generator, codes.device)
    rows = torch.randint(count, (n,), generator=generator, device=place).to(codes.device)
    mean = codes.mean(0)
    centred = codes - mean
    h = (4 / ((size + 2) * count)) ** (1 / (size + 4))
    covariance = (centred.T @ centred).double() / count
    if not all_finite(covariance):
        raise DataError("the covariance of the codes overflows: some of them are too large; scale them.")
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp_min(0).sqrt()).to(codes.dtype)
    steps = normal((n, size), codes, generator) @ root.T
    return mean + (centred[rows] + h * steps) / (1 + h * h) ** 0.5


def _shares(total: int, parts: int) -> list[int]:
    """Split a total into integers as equal as possible, without zeros."""
    return [size for size in (total // parts + (number < total % parts) for number in range(parts)) if size]


def _required_samples(samples: Tensor | None) -> Tensor:
    """Return samples, if the model kept them."""
    if samples is None:
        raise DataError("encode and decode with keep=True must return samples [S, B, ...]; got None.")
    return samples

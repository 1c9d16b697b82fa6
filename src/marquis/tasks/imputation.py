"""Impute missing entries in two stages, and generate data as the case in which everything is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marquis.arguments import AtLeastOne, FromZero, checked, checked_arrays, describe_value
from marquis.choices import match_choice
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import check_finite
from marquis.options import warn_renamed
from marquis.tasks.batches import as_tensor, batches, data_tensor, device_of, dtype_of, naming_shape, require_method
from marquis.tasks.imputation_results import Imputation, ImputationErrors, WeightedImputation, errors
from marquis.tasks.imputation_weighted import impute_weighted
from marquis.tasks.masks import FILLS, as_mask, initial_fill, minmax_noise, top_half

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder


__all__ = [
    "Imputation",
    "ImputationErrors",
    "WeightedImputation",
    "class_probabilities",
    "errors",
    "generate",
    "impute",
    "impute_weighted",
    "minmax_noise",
    "top_half",
]


@torch.no_grad()
@partial(checked, arrays=True, nan=True)  # a fill of NaN is refused below, by its own words
def impute(
    model: UncertainAutoencoder,
    x: Tensor,
    missing: Tensor | None = None,
    *,
    samples: AtLeastOne = 5,
    averaged: AtLeastOne = 5,
    rounds: FromZero = 1,
    fill: str | float | Tensor = "noise",
    generator: torch.Generator | None = None,
    batch_size: AtLeastOne = 256,
    progress: bool = True,
) -> Imputation:
    """Fill the missing entries in two stages (LAE A.3; docs/method/tasks.md#imputation-and-generation).

    1. The missing entries are filled with noise; S1 networks reconstruct that, giving S1 versions.
    2. The observed entries are put back into each version.
    3. S2 networks reconstruct each version; their average replaces it.

    `rounds` repeats 2 and 3. Networks are sampled anew everywhere (the published code reuses the same few).
    Cost: `S1 (1 + rounds S2)` passes of the network; memory of S1 copies of `x`. An ensemble or a plain
    autoencoder gives as many networks as it has.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        x: Data `[B, ...]`. What stands at the missing entries does not matter; it may be NaN.
        missing: Boolean, True where missing; of the shape of `x` or of one sample. None: where `x` is NaN.
        samples: S1, number of versions.
        averaged: S2, number of networks that each version averages.
        rounds: How often the observed entries are put back; 1 in the paper. With 0 the first reconstructions stay: for
            models that know which entries are missing, and would take a reconstruction for an observation.
        fill: What missing entries start from: "noise" (normal numbers, scaled to [0, 1] per sample: for images), a
            number, or a tensor that broadcasts against `x` (column means for tables). "missing" passes
            NaN to the model, which has learnt to handle it (`missing=` of autoencoders).
        generator: Source of the noise and the networks.
        batch_size: Number of samples at a time.
        progress: Show a bar on a terminal.
    """
    require_method(model, "reconstruct")
    x = data_tensor(model, x, "imputation")
    missing = as_mask(x, missing)
    filled = torch.where(missing, initial_fill(x, missing, fill, generator), x)
    left_to_model = match_choice(fill, FILLS) == "missing"
    parts, start = [], 0
    for first in batches(model, filled, batch_size, "imputation", progress):
        rows = slice(start, start + len(first))
        start += len(first)
        masked = missing[rows].to(first.device)
        inputs = torch.where(masked, torch.nan, first) if left_to_model else first
        with naming_shape(model, first, "imputation"):
            results = _two_stages(model, inputs, masked, samples, averaged, rounds, generator)
        parts.append([part.to(x.device) for part in results])
    reconstructions = torch.cat([part[0] for part in parts], 1)
    within, noise = (torch.where(missing, torch.cat([part[i] for part in parts]), 0) for i in (1, 2))
    put_back = torch.where(missing, reconstructions, x)
    return Imputation(put_back, reconstructions, missing, filled, within, noise, parts[0][3].item())


def condition(
    model: UncertainAutoencoder, x: Tensor, donors: Tensor, *arguments: Any, **options: Any
) -> WeightedImputation:
    """Call `impute_weighted`, by its deprecated name."""
    warn_renamed("imputation.condition", "imputation.impute_weighted")
    return impute_weighted(model, x, donors, *arguments, **options)


@checked_arrays
def generate(
    model: UncertainAutoencoder, n: AtLeastOne, shape: Sequence[int], *, rounds: AtLeastOne = 1, **options: Any
) -> Imputation:
    """Generate data as an imputation of which everything is missing: `samples` versions from each of `n` noises.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        n: Number of initial noises.
        shape: Shape of one sample.
        rounds: How often the versions are passed through the second stage, at least once.
        **options: Options of `impute`: `samples`, `averaged`, `fill`, `generator`, `batch_size`, `progress`.
    """
    nothing = torch.zeros(n, *shape, dtype=dtype_of(model), device=device_of(model))
    return impute(model, nothing, torch.ones_like(nothing, dtype=torch.bool), rounds=rounds, **options)


@torch.no_grad()
@checked_arrays
def class_probabilities(classifier: Callable[[Tensor], Tensor], versions: Tensor) -> Tensor:
    """Return the mean class probabilities of imputed images, `(1/S1) Σ_i softmax(classifier(x_i))`, `[B, C]`.

    The paper classifies `Imputation.reconstructions`; `Imputation.samples` has the observed pixels as they were.

    Args:
        classifier: Images to logits; a module has to be in evaluation mode (the published results had dropout on).
        versions: `[S1, B, ...]`.
    """
    if isinstance(classifier, nn.Module) and any(module.training for module in classifier.modules()):
        raise UnsupportedOperationError(
            f"the classifier {type(classifier).__name__} is in training mode: dropout and batch statistics would "
            "change its predictions. Call classifier.eval() first."
        )
    versions = as_tensor(versions, "versions")
    if versions.dim() < 3 or versions.numel() == 0:
        raise DataError(f"versions are [S1, B, ...], none of them empty; got {list(versions.shape)}.")
    check_finite(versions, "versions")
    with naming_shape(classifier, versions[0], "versions"):
        logits = [classifier(version) for version in versions]
    if not all(isinstance(one, Tensor) and one.dim() > 0 for one in logits):
        raise DataError(f"the classifier returns {describe_value(logits[0])}; it has to return logits [B, C].")
    return torch.stack([one.softmax(-1) for one in logits]).mean(0)


def _two_stages(
    model: Any,
    first: Tensor,
    masked: Tensor,
    samples: int,
    averaged: int,
    rounds: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return reconstructions `[S1, B, ...]`, mean variance within, mean noise, and the number S2 of networks.

    S2 is infinite where the networks' mean is exact.
    """
    result = model.reconstruct(first, samples, generator=generator, keep=True)
    versions = result.samples
    if versions is None or versions.shape[1:] != first.shape:
        got = None if versions is None else list(versions.shape)
        raise DataError(
            f"reconstruct(x, keep=True) of x {list(first.shape)} must give samples [S, *x.shape], got {got}."
        )
    within, noise, networks = torch.zeros_like(first), _noise_of(result, first), 1
    for _ in range(rounds):  # variances of the last round stay
        means, within, noise = [], torch.zeros_like(first), torch.zeros_like(first)
        for version in versions:
            result = model.reconstruct(torch.where(masked, version, first), averaged, generator=generator)
            means.append(result.mean)
            within += result.variance / len(versions)
            noise += _noise_of(result, first) / len(versions)
            networks = math.inf if getattr(result, "mean_known", False) else result.draws
        versions = torch.stack(means)
    return versions, within, noise, torch.tensor(networks)


def _noise_of(result: Any, x: Tensor) -> Tensor:
    """Return the model's noise variance in the shape of the data; zero where it has none."""
    return torch.zeros_like(x) if result.noise_variance is None else result.noise_variance.expand_as(x)

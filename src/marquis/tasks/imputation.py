"""Missing entries filled by the two-stage procedure, and generation as the case in which all are missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marquis.choices import match_choice
from marquis.errors import DataError, UnsupportedOperationError
from marquis.tasks.batches import (
    at_least,
    at_least_one,
    batches,
    data_tensor,
    device_of,
    dtype_of,
    naming_shape,
    require,
)
from marquis.tasks.imputation_results import Imputation, ImputationErrors, WeightedImputation, errors
from marquis.tasks.imputation_weighted import condition
from marquis.tasks.masks import FILLS, as_mask, initial_fill, minmax_noise, top_half

if TYPE_CHECKING:
    from marquis.autoencoders import UncertainAutoencoder


__all__ = [
    "Imputation",
    "ImputationErrors",
    "WeightedImputation",
    "class_probabilities",
    "condition",
    "errors",
    "generate",
    "impute",
    "minmax_noise",
    "top_half",
]


@torch.no_grad()
def impute(
    model: UncertainAutoencoder,
    x: Tensor,
    missing: Tensor | None = None,
    *,
    samples: int = 5,
    averaged: int = 5,
    rounds: int = 1,
    fill: str | float | Tensor = "noise",
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> Imputation:
    """Fill the missing entries in two stages (LAE A.3, methods.md 8.2).

    1. The missing entries are filled with noise; S1 networks reconstruct that, giving S1 versions.
    2. The observed entries are put back into each version.
    3. S2 networks reconstruct each version; their average replaces it.

    `rounds` repeats 2 and 3. Networks are drawn afresh everywhere (the published code reuses the same few).
    Cost: `S1 (1 + rounds S2)` passes of the network; memory of S1 copies of `x`. A model with fewer draws than asked
    for (an ensemble, a plain autoencoder) gives as many as it has.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        x: Data `[B, ...]`. What stands at the missing entries does not matter; it may be NaN.
        missing: Boolean, True where missing; of the shape of `x` or of one datum. None: where `x` is NaN.
        samples: S1, how many versions.
        averaged: S2, how many networks each version averages.
        rounds: How often the observed entries are put back; 1 in the paper. With 0 the first answers stand: for models
            that have learnt to answer without what is missing, which would take an answer for an observation.
        fill: What missing entries start from: "noise" (normal numbers, scaled to [0, 1] per datum: for images), a
            number, or a tensor that broadcasts against `x` (column means for tables). "missing" leaves the first
            answer to the model, which is given NaN and has learnt what to do about it (`missing=` of autoencoders).
        generator: For the noise and the draws.
        batch_size: How many data at a time.
        progress: Show a bar on a terminal.
    """
    require(model, "reconstruct")
    at_least_one(samples=samples, averaged=averaged)
    at_least(0, "rounds", rounds)
    x = data_tensor(model, x, "imputation")
    missing = as_mask(x, missing)
    filled = torch.where(missing, initial_fill(x, missing, fill, generator), x)
    left_to_model = match_choice(fill, FILLS) == "missing"
    parts, start = [], 0
    for first in batches(model, filled, batch_size, "imputation", progress):
        rows = slice(start, start + len(first))
        start += len(first)
        hidden = missing[rows].to(first.device)
        told = torch.where(hidden, torch.nan, first) if left_to_model else first
        with naming_shape(model, first, "imputation"):
            found = _two_stages(model, told, hidden, samples, averaged, rounds, generator)
        parts.append([part.to(x.device) for part in found])
    reconstructions = torch.cat([part[0] for part in parts], 1)
    within, noise = (torch.where(missing, torch.cat([part[i] for part in parts]), 0) for i in (1, 2))
    put_back = torch.where(missing, reconstructions, x)
    return Imputation(put_back, reconstructions, missing, filled, within, noise, parts[0][3].item())


def generate(
    model: UncertainAutoencoder,
    n: int,
    shape: Sequence[int],
    *,
    samples: int = 5,
    averaged: int = 5,
    rounds: int = 1,
    fill: str | float | Tensor = "noise",
    generator: torch.Generator | None = None,
    batch_size: int = 256,
    progress: bool = True,
) -> Imputation:
    """New data: imputation with everything missing. `n` starts from noise, `samples` versions of each.

    Args:
        model: Anything with `encode`, `decode` and `reconstruct`.
        n: How many.
        shape: Shape of one datum.
        samples: As for `impute`; likewise all other arguments.
        averaged: S2.
        rounds: How often the versions are passed through the second stage.
        fill: What to start from.
        generator: For the noise and the draws.
        batch_size: How many data at a time.
        progress: Show a bar on a terminal.
    """
    at_least_one(n=n, rounds=rounds)
    nothing = torch.zeros(n, *shape, dtype=dtype_of(model), device=device_of(model))
    options = {"samples": samples, "averaged": averaged, "rounds": rounds, "generator": generator}
    everything = torch.ones_like(nothing, dtype=torch.bool)
    return impute(model, nothing, everything, fill=fill, batch_size=batch_size, progress=progress, **options)


@torch.no_grad()
def class_probabilities(classifier: Callable[[Tensor], Tensor], versions: Tensor) -> Tensor:
    """What a classifier makes of imputed images: `(1/S1) Σ_i softmax(classifier(x_i))`, `[B, C]`.

    The paper classifies `Imputation.reconstructions`; `Imputation.samples` has the observed pixels as they were.

    Args:
        classifier: Images to logits; a module has to be in evaluation mode (the published results had dropout on).
        versions: `[S1, B, ...]`.
    """
    if isinstance(classifier, nn.Module) and any(module.training for module in classifier.modules()):
        raise UnsupportedOperationError(
            f"the classifier {type(classifier).__name__} is in training mode: dropout and batch statistics would "
            "change its answers. Call classifier.eval() first."
        )
    if versions.dim() < 3 or versions.numel() == 0:
        raise DataError(f"versions are [S1, B, ...], none of them empty; got {list(versions.shape)}.")
    return torch.stack([classifier(version).softmax(-1) for version in versions]).mean(0)


def _two_stages(
    model: Any,
    first: Tensor,
    hidden: Tensor,
    samples: int,
    averaged: int,
    rounds: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reconstructions `[S1, B, ...]`, mean variance within, mean noise, and how many draws S2 really were.

    Infinitely many, where the model knows their mean.
    """
    said = model.reconstruct(first, samples, generator=generator, keep=True)
    versions = said.samples
    if versions is None or versions.shape[1:] != first.shape:
        got = None if versions is None else list(versions.shape)
        raise DataError(
            f"reconstruct(x, keep=True) of x {list(first.shape)} must give samples [S, *x.shape], got {got}."
        )
    within, noise, draws = torch.zeros_like(first), _noise_of(said, first), 1
    for _ in range(rounds):  # what is said of the last one stays
        answers, within, noise = [], torch.zeros_like(first), torch.zeros_like(first)
        for version in versions:
            said = model.reconstruct(torch.where(hidden, version, first), averaged, generator=generator)
            answers.append(said.mean)
            within += said.variance / len(versions)
            noise += _noise_of(said, first) / len(versions)
            draws = math.inf if getattr(said, "mean_known", False) else said.draws
        versions = torch.stack(answers)
    return versions, within, noise, torch.tensor(draws)


def _noise_of(said: Any, x: Tensor) -> Tensor:
    """Variance of the data around what a model says, in the shape of the data; zero where it claims none."""
    return torch.zeros_like(x) if said.noise_variance is None else said.noise_variance.expand_as(x)

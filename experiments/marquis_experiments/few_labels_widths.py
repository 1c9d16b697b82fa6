"""Clouds of several widths around the labelled codes of `few-labels`; the labels themselves choose the width.

Our own way. The covariance of the codes is multiplied by a few factors, without training again; the factor and k (which
counts images) are chosen together by the same cross-validation that chooses k elsewhere, on the labelled images only.
The clouds are those of the linearised encoder: far from its mean a network bends, and drawn networks' codes with it.
The plain autoencoder gets round clouds of the same widths: what any smoothing buys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import Autoencoder, LaplacianAutoencoder, PosteriorAutoencoder, linearised
from marquis.autoencoders.base import BaseAutoencoder
from marquis.errors import DataError
from marquis.tasks.embedding import label_sets, others
from marquis.tasks.neighbours import CANDIDATES, FOLDS, cross_validated, flat, grouped_folds, predict
from marquis.tasks.semi_supervised import embed
from marquis.variational.base import evaluating

FACTORS = (1.0, 10.0, 100.0, 1000.0)
"""On the covariance."""
ROUND = (0.008, 0.025, 0.08, 0.25)
"""Standard deviation of round clouds, relative to that of the mean codes over images: about those of our default."""


def mean_codes(own: BaseAutoencoder, x: Tensor) -> Tensor:
    """Codes `[n, K]` of the network at its mean weights."""
    with torch.no_grad(), evaluating(own):
        return own.encoder(own.inputs(x, None))


def round_clouds(means: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """Deviations `[S, n, K]` that know nothing of the posterior, as wide as the mean codes are spread."""
    return means.var(0, correction=0).mean().sqrt() * torch.randn(copies, *means.shape, generator=generator)


def clouds(own: BaseAutoencoder, x: Tensor, copies: int, seed: int) -> dict[float, tuple[Tensor, Tensor]]:
    """By factor (of a plain autoencoder: by relative width) copies `[S, n, K]` around mean codes `[n, K]`."""
    generator, means = torch.Generator().manual_seed(seed), mean_codes(own, x)
    if isinstance(own, Autoencoder):
        unit = round_clouds(means, copies, generator)
        return {width: (means + width * unit, means) for width in ROUND}
    if not isinstance(own, (LaplacianAutoencoder, PosteriorAutoencoder)):
        raise DataError(f"only a Laplacian autoencoder's clouds can be widened, not those of {type(own).__name__}.")
    options: dict[str, Any] = {"generator": generator, "batch_size": len(x), "progress": False}
    unit = embed(linearised(own), x, copies, copies=True, **options) - means
    return {factor: (means + factor**0.5 * unit, means) for factor in FACTORS}


def best_cloud(
    copies: Mapping[float, Tensor], means: Mapping[float, Tensor], labels: Tensor, fold: Tensor, ks: Sequence[int]
) -> tuple[float, int]:
    """Width and k with the best cross-validated accuracy; of equals the narrowest, then the smallest k.

    Args:
        copies: Of the labelled images `[S, n, K]`, by width, narrow ones first.
        means: Their mean codes `[n, K]`, where held-out images are classified.
        labels: `[n]`.
        fold: Of every labelled image; the same for all widths.
        ks: In codes.
    """
    scores = {
        (width, k): right
        for width, own in copies.items()
        for k, right in cross_validated(own, labels, fold, candidates=ks, at=means[width]).items()
    }
    return max(scores, key=lambda choice: scores[choice])


def by_chosen_width(
    found: Mapping[float, tuple[Tensor, Tensor]],
    labels: Tensor,
    per_class: Sequence[int],
    repetitions: int,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Accuracies and chosen widths `[numbers of labels][repetitions]`; labelled images and folds as for other ways.

    With one label per class there is nothing to cross-validate: the first width and one image.
    """
    accuracy: list[list[float]] = []
    chosen: list[list[float]] = []
    for n, sets in zip(per_class, label_sets(labels, per_class, repetitions, generator), strict=True):
        accuracy.append([])
        chosen.append([])
        for rows in sets:
            width, k = next(iter(found)), len(next(iter(found.values()))[0])
            ks = [k * candidate for candidate in CANDIDATES]
            if n > 1:
                copies = {width: codes[:, rows] for width, (codes, _) in found.items()}
                at = {width: means[rows] for width, (_, means) in found.items()}
                width, k = best_cloud(copies, at, labels[rows], grouped_folds(labels[rows], FOLDS, generator), ks)
            codes, means = found[width]
            rest = others(len(labels), rows)
            answers = predict(*flat(codes[:, rows], labels[rows]), means[rest], [k])[0]
            accuracy[-1].append(float((answers == labels[rest]).double().mean()))
            chosen[-1].append(width)
    return {"accuracy": accuracy, "chosen": chosen}

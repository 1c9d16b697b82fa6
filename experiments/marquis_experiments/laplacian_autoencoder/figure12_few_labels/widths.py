"""Sampled codes of several widths around the labelled images; the labels themselves choose the width.

Our own procedure. The covariance of the codes is multiplied by a few factors, without training again; the factor and k
(which counts images) are chosen together by the cross-validation on the labelled images that otherwise chooses k. The
samples are those of the linearised encoder, since sampled networks are not linear far from their mean. The control is
the plain autoencoder with isotropic noise of the same widths: what any smoothing gains.
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
from marquis.variational.base import evaluation_mode

FACTORS = (1.0, 10.0, 100.0, 1000.0)
"""Factors on the covariance."""
ROUND = (0.008, 0.025, 0.08, 0.25)
"""Standard deviations of isotropic noise, relative to that of the mean codes over images: about our default's."""


def mean_codes(autoencoder: BaseAutoencoder, x: Tensor) -> Tensor:
    """Compute codes `[n, K]` of the network at its mean weights."""
    with torch.no_grad(), evaluation_mode(autoencoder):
        return autoencoder.encoder(autoencoder.inputs(x, None))


def isotropic(means: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """Return isotropic noise `[S, n, K]` with the standard deviation of the mean codes over images."""
    return means.var(0, correction=0).mean().sqrt() * torch.randn(copies, *means.shape, generator=generator)


def clouds(autoencoder: BaseAutoencoder, x: Tensor, copies: int, seed: int) -> dict[float, tuple[Tensor, Tensor]]:
    """Return sampled codes `[S, n, K]` and mean codes `[n, K]` by factor (of a plain autoencoder: by width)."""
    generator, means = torch.Generator().manual_seed(seed), mean_codes(autoencoder, x)
    if isinstance(autoencoder, Autoencoder):
        unit = isotropic(means, copies, generator)
        return {width: (means + width * unit, means) for width in ROUND}
    if not isinstance(autoencoder, (LaplacianAutoencoder, PosteriorAutoencoder)):
        kind = type(autoencoder).__name__
        raise DataError(f"only a Laplacian autoencoder's codes can be widened, not those of {kind}.")
    options: dict[str, Any] = {"generator": generator, "batch_size": len(x), "progress": False}
    unit = embed(linearised(autoencoder), x, copies, copies=True, **options) - means
    return {factor: (means + factor**0.5 * unit, means) for factor in FACTORS}


def best_cloud(
    copies: Mapping[float, Tensor], means: Mapping[float, Tensor], labels: Tensor, fold: Tensor, ks: Sequence[int]
) -> tuple[float, int]:
    """Return width and k with the best cross-validated accuracy; of equals the narrowest, then the smallest k.

    Args:
        copies: Sampled codes of the labelled images `[S, n, K]` by width, narrow ones first.
        means: Their mean codes `[n, K]`, where held-out images are classified.
        labels: Labels `[n]`.
        fold: Fold of every labelled image; the same for all widths.
        ks: Candidates for k, in codes.
    """
    scores = {
        (width, k): right
        for width, codes in copies.items()
        for k, right in cross_validated(codes, labels, fold, candidates=ks, at=means[width]).items()
    }
    return max(scores, key=lambda choice: scores[choice])


def by_chosen_width(
    widths: Mapping[float, tuple[Tensor, Tensor]],
    labels: Tensor,
    per_class: Sequence[int],
    repetitions: int,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Return accuracies and chosen widths `[numbers of labels][repetitions]`; labelled images as in `measured`.

    With one label per class there is nothing to cross-validate: the first width and one image.
    """
    accuracy: list[list[float]] = []
    chosen: list[list[float]] = []
    for n, sets in zip(per_class, label_sets(labels, per_class, repetitions, generator), strict=True):
        accuracy.append([])
        chosen.append([])
        for rows in sets:
            width, k = next(iter(widths)), len(next(iter(widths.values()))[0])
            ks = [k * candidate for candidate in CANDIDATES]
            if n > 1:
                copies = {width: codes[:, rows] for width, (codes, _) in widths.items()}
                at = {width: means[rows] for width, (_, means) in widths.items()}
                width, k = best_cloud(copies, at, labels[rows], grouped_folds(labels[rows], FOLDS, generator), ks)
            codes, means = widths[width]
            rest = others(len(labels), rows)
            answers = predict(*flat(codes[:, rows], labels[rows]), means[rest], [k])[0]
            accuracy[-1].append(float((answers == labels[rest]).double().mean()))
            chosen[-1].append(width)
    return {"accuracy": accuracy, "chosen": chosen}

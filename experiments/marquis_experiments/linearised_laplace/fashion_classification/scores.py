"""Probabilities and scores of `fashion-classification`: links, multiples of the prior, outliers, AUROC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.data import load
from marquis.errors import DataError
from marquis.laplace import Laplace
from marquis.posterior import Posterior
from marquis.tasks.calibration import reliability
from marquis.tasks.ranking import auroc, roc_curve
from marquis_experiments.common.images import ImageData, entropy
from marquis_experiments.common.metrics import with_error_of_nll

LINKS = PROBIT, MONTE_CARLO = "probit", "mc"


def linked(mean: Tensor, covariance: Tensor, draws: int) -> dict[str, Tensor]:
    """Return class probabilities of Gaussian logits: probit with variances alone, and Monte-Carlo averages."""
    variance = covariance.diagonal(dim1=1, dim2=2)
    probit = (mean / (1 + torch.pi / 8 * variance).sqrt()).softmax(1)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    z = torch.randn(draws, mean.shape[1], generator=torch.Generator().manual_seed(0)).to(mean)
    averaged = (mean.unsqueeze(1) + z @ root.mT).softmax(-1).mean(1)
    return {PROBIT: probit, MONTE_CARLO: averaged}


def with_multiple(laplace: Laplace, multiple: float) -> Posterior:
    """Return the posterior with prior precisions times a number and the same curvature."""
    if multiple == 1.0:
        return laplace.posterior
    prior = laplace.problem().grouped_prior
    changed = prior.with_precision(prior.precision * multiple)
    return Posterior(
        laplace.fitted.layout, laplace.fitted.mean, changed.add_to(laplace.curvature * (1 / laplace.temperature))
    )


def outliers(
    data: ImageData, name: str, count: int, data_dir: str | Path | None, or_negatives: Tensor | None
) -> tuple[Tensor, str]:
    """Return test images of another data set in the units of the training images, and their name.

    With `or_negatives` the negatives of these images stand in for a missing data set.
    """
    try:
        return data.standardised(load(name, "test", data_dir, download=or_negatives is None)[:count].x), name
    except DataError:
        if or_negatives is None:
            raise
        return data.standardised(1 - (or_negatives[:count] * data.spread + data.centre)), "negatives"


def scored(in_distribution: Tensor, ood: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return scores, and the curves of the figures.

    The outlier scores are `1 - max_k p_k` and the entropy.
    """
    sure, surely = in_distribution.double().max(1).values, ood.double().max(1).values
    bins = reliability(in_distribution, labels)
    curve = roc_curve(-sure, -surely)
    at = torch.linspace(0, 1, 101, dtype=torch.float64)
    place = torch.searchsorted(curve.false_positive_rate, at, right=True) - 1
    return {
        **with_error_of_nll(in_distribution, labels),
        "auroc": auroc(-sure, -surely),
        "auroc_entropy": auroc(entropy(in_distribution.double()), entropy(ood.double())),
        "confidence_inside": float(sure.mean()),
        "confidence_outside": float(surely.mean()),
        "reliability": [
            [mean, share, count]
            for mean, share, count in zip(
                bins.confidence.tolist(), bins.accuracy.tolist(), bins.count.tolist(), strict=True
            )
            if count
        ],
        "roc": curve.true_positive_rate[place].tolist(),
        "histogram_inside": torch.histc(sure, 20, 0, 1).tolist(),
        "histogram_outside": torch.histc(surely, 20, 0, 1).tolist(),
    }

"""Compute metrics of a model on rows that it was not trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from marquis.autoencoders import BaseAutoencoder
    from marquis.data import Data

SAMPLES, BATCH = 50, 256
MEAN_ROWS = 2000
"""Random training rows of which the mean is taken."""
WORST_RATIO = 0.95
"""Error over that of the mean row from which on a model counts as untrained."""
ERROR, ERROR_OF_MEAN = "held-out squared error", "squared error of the mean row"


def held_out_metrics(
    model: BaseAutoencoder, data: Data, samples: int = SAMPLES, seed: int = 0
) -> dict[str, float | int]:
    """Return log-likelihood, squared error and standard deviations, as means over held-out rows."""
    from torch.utils.data import DataLoader

    from marquis.tasks import ood

    loader = DataLoader(data.tensor_dataset(), batch_size=BATCH)
    generator = torch.Generator().manual_seed(seed)
    scores = ood.scores(model, loader, samples, generator=generator)
    return {
        "held-out rows": len(data),
        "held-out log-likelihood": -float(scores["nll"].double().mean()),
        ERROR: float(scores["error"].double().mean()),
        "std of reconstructions (sum)": float(scores["output_std"].double().mean()),
        "std of codes (sum)": float(scores["latent_std"].double().mean()),
    }


def error_of_mean(train: Data, held_out: Data) -> float:
    """Return the squared error of predicting the mean training row, averaged over held-out rows: a baseline."""
    mean = train.random_rows(MEAN_ROWS, 0).x.double().nanmean(0)
    error = (held_out.random_rows(MEAN_ROWS, 0).x.double() - mean).square().nan_to_num(0.0)
    return float(error.flatten(1).sum(1).mean())


def untrained_warning(metrics: dict[str, float | int]) -> str | None:
    """Return a warning about a model that is no better than the mean row; None for others."""
    if not metrics.get(ERROR, 0) >= WORST_RATIO * metrics.get(ERROR_OF_MEAN, float("inf")):
        return None
    return (
        f"the model reconstructs held-out rows no better than the mean of the training rows ({ERROR} "
        f"{metrics[ERROR]:.4g}, {ERROR_OF_MEAN} {metrics[ERROR_OF_MEAN]:.4g}): it has learnt nothing. Train for longer "
        "(--patience, --epochs), with a higher --lr or a smaller --batch-size, or with a longer code (--latent)"
    )

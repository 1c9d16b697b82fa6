"""How well a model reconstructs rows that it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from marquis.autoencoders import BaseAutoencoder
    from marquis.data import Data

SAMPLES, BATCH = 50, 256
MEAN_ROWS = 2000
"""Training rows, at random, of which the mean is taken."""
NOTHING = 0.95
"""Of the mean's error: a model that is not better than that has not begun to learn."""
ERROR, ERROR_OF_MEAN = "held-out squared error", "squared error of the mean row"


def quality(model: BaseAutoencoder, data: Data, samples: int = SAMPLES, seed: int = 0) -> dict[str, float | int]:
    """Means per datum over held-out rows: log-likelihood, squared error, and the size of the error bars."""
    from torch.utils.data import DataLoader

    from marquis.tasks import ood

    loader = DataLoader(data.tensor_dataset(), batch_size=BATCH)
    generator = torch.Generator().manual_seed(seed)
    scores = ood.scores(model, loader, samples, generator=generator)
    found = {
        "held-out rows": len(data),
        "held-out log-likelihood": -float(scores["nll"].double().mean()),
        ERROR: float(scores["error"].double().mean()),
        "std of reconstructions (sum)": float(scores["output_std"].double().mean()),
        "std of codes (sum)": float(scores["latent_std"].double().mean()),
    }
    return found


def error_of_mean(train: Data, held_out: Data) -> float:
    """Squared error per held-out datum of always saying the mean training datum: what a model has to be better than."""
    from marquis.run.rows import at_random

    mean = at_random(train, MEAN_ROWS, 0).x.double().nanmean(0)
    error = (at_random(held_out, MEAN_ROWS, 0).x.double() - mean).square().nan_to_num(0.0)
    return float(error.flatten(1).sum(1).mean())


def learnt_nothing(found: dict[str, float | int]) -> str | None:
    """What to say of a model that is no better than the mean; None for others."""
    if not found.get(ERROR, 0) >= NOTHING * found.get(ERROR_OF_MEAN, float("inf")):
        return None
    return (
        f"the model reconstructs held-out rows no better than the mean of the training rows ({ERROR} "
        f"{found[ERROR]:.4g}, {ERROR_OF_MEAN} {found[ERROR_OF_MEAN]:.4g}): it has learnt nothing. Train for longer "
        "(--patience, --epochs), with a higher --lr or a smaller --batch-size, or with a longer code (--latent)"
    )

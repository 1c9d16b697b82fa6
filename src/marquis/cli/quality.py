"""How well a model reconstructs rows that it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from marquis.autoencoders import BaseAutoencoder
    from marquis.data import Data

SAMPLES, BATCH = 50, 256


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
        "held-out squared error": float(scores["error"].double().mean()),
        "std of reconstructions (sum)": float(scores["output_std"].double().mean()),
        "std of codes (sum)": float(scores["latent_std"].double().mean()),
    }
    return found

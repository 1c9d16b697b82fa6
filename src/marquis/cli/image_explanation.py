"""Write which pixels make an image an outlier, for `marquis score --explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from marquis.autoencoders.base import BaseAutoencoder

SHOWN = 8
"""Largest number of images in the picture: those with the largest scores."""
BATCH = 64


def write_pixel_maps(out: Path, model: BaseAutoencoder, x: Tensor, samples: int, seed: int) -> None:
    """Write for each image what was expected of every pixel, and what the pixel adds to the score `nll`.

    The contributions of an image add up to its `nll` among the scores of the same seed. An .npz file holds `x`,
    `expected`, `low`, `high` (of the 90 % interval) and `contributions`; a .png file shows the images with the largest
    scores.

    Args:
        out: The file.
        model: Trained autoencoder.
        x: Images `[n, C, H, W]`.
        samples: Number of sampled networks.
        seed: Their seed.
    """
    import torch

    from marquis.cli.outputs import ARRAYS, write_columns, write_figure
    from marquis.tasks.ood import contributions

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    terms = contributions(model, x, samples, generator=generator())
    as_arrays = out.suffix.lower() in ARRAYS
    chosen = torch.arange(len(x)) if as_arrays else terms.flatten(1).sum(1).argsort(descending=True)[:SHOWN]
    parts = [model.reconstruct(part, samples, generator=generator()) for part in x[chosen].split(BATCH)]
    mean = torch.cat([part.mean for part in parts])
    if not as_arrays:
        write_figure(out, lambda: _figure(chosen.numpy(), *(part.numpy() for part in (x[chosen], mean, terms[chosen]))))
        return
    half = 1.6448536269514722 * torch.cat([part.total_variance for part in parts]).sqrt()
    arrays = {"x": x, "expected": mean, "low": mean - half, "high": mean + half, "contributions": terms}
    write_columns(out, {name: value.numpy() for name, value in arrays.items()})


def _figure(rows: np.ndarray, x: np.ndarray, expected: np.ndarray, terms: np.ndarray) -> Any:
    """Draw image, expectation and contributions, one line per image, on one scale of colours."""
    from marquis.plots import new_figure

    figure = new_figure(6.4, 2.0 * len(rows))
    axes = figure.subplots(len(rows), 3, squeeze=False)
    maps = terms.sum(1)  # over channels
    limit = max(float(np.quantile(np.abs(maps), 0.995)), 1e-12)
    for i, row in enumerate(rows):
        for axis, image in zip(axes[i], (x[i], expected[i]), strict=False):
            pixels = np.clip(np.nan_to_num(image.transpose(1, 2, 0)), 0, 1)
            axis.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)
        axes[i, 2].imshow(maps[i], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes[i, 0].set_title(f"row {row}", fontsize=8)
        axes[i, 1].set_title("expected", fontsize=8)
        axes[i, 2].set_title(f"adds up to {terms[i].sum():.4g}", fontsize=8)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.colorbar(axes[0, 2].images[0], ax=axes[:, 2], label="contribution to nll (red: more of an outlier)")
    return figure

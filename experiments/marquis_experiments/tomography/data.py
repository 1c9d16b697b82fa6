"""Images of the study: KMNIST characters, slices of clinical CT scans, and random rectangles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.data import load
from marquis.data.search import data_roots

CT_FILE = Path("ct") / "ct100_256.npz"
CT_RANGE = (0.0, 2.5)


def character(index: int, data_dir: Path | None) -> Tensor:
    """Return KMNIST's test image of this index, `[28, 28]` in [0, 1]."""
    images = load("kmnist", "test", data_dir, limit=index + 1).x
    return images[index].reshape(28, 28).double()


def ct_slice(index: int, size: int, data_dir: Path | None) -> Tensor | None:
    """Return a CT slice as `clip((HU + 1000) / 1000, 0, 2.5)`, averaged to `size` pixels; None without the file."""
    for root in data_roots(data_dir):
        if (root / CT_FILE).is_file():
            with np.load(root / CT_FILE) as file:
                units = torch.from_numpy(file["hu"][index].astype(np.float64))
            density = ((units + 1000) / 1000).clamp(*CT_RANGE)
            return F.avg_pool2d(density[None, None], density.shape[0] // size)[0, 0]
    return None


def rectangles(seed: int, size: int = 28) -> Tensor:
    """Return an image of a few axis-aligned rectangles of random place, size and brightness, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(size, size, dtype=torch.float64)
    for _ in range(4):
        top, left = (int(torch.randint(2, size - 10, (), generator=generator)) for _ in range(2))
        height, width = (int(torch.randint(3, 13, (), generator=generator)) for _ in range(2))
        value = 0.3 + 0.7 * float(torch.rand((), generator=generator))
        image[top : min(top + height, size - 2), left : min(left + width, size - 2)] = value
    return image


def save_arrays(path: Path, images: dict[str, Tensor]) -> None:
    """Write images as float32 to an .npz file, for the page's pictures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: value.float().numpy() for name, value in images.items()}
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]

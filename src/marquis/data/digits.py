"""Scikit-learn's digits: 1797 real handwritten digits that come with the package."""

from __future__ import annotations

import torch

from marquis.data.value import Data, held_out_rows


def load_digits(split: str) -> Data:
    """Load images 8x8 in [0, 1] (the sixteen grey levels over 16) and their labels.

    One image in five is held out as the test set: 359 rows chosen with seed 42, 1438 remain for training.
    """
    from sklearn.datasets import load_digits as from_package

    pixels, labels = from_package(return_X_y=True)
    images = pixels.reshape(-1, 8, 8)
    train, test = held_out_rows(len(labels), len(labels) // 5)
    rows = {"train": train, "test": test, "all": slice(None)}[split]
    # Levels 0..16 do not fit 0..255 evenly, so these few are kept as floats.
    x = torch.from_numpy(images[rows] / 16).float().unsqueeze(1)
    return Data(x, torch.from_numpy(labels[rows]).long(), "digits", split, source="scikit-learn")

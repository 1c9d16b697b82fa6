"""Read the data that a run is trained on, and recognise them later."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from marquis.autoencoders.inputs import Missing
from marquis.data import Data, load
from marquis.data.images import SUFFIXES
from marquis.data.registry import SETS
from marquis.run.settings import TrainingSettings


def largest_of(data: Data) -> float:
    """Return the largest absolute value, without making floats of bytes, which might not fit into memory."""
    if data.stored.dtype == torch.uint8:
        return float(data.stored.max()) / 255
    return float(data.stored.nan_to_num(0.0).abs().max())


def load_rows(settings: TrainingSettings, split: str) -> Data:
    """Load rows as they are in the file: differences of times in seconds would be lost in float32."""
    options: dict[str, Any] = {name: getattr(settings, name) for name in ("size", "header")}
    options["limit"] = settings.limit if split == "train" else None  # test rows are not training rows
    options["target"] = settings.target or None
    options["categories"] = True if has_text(settings.data) else None
    data = load(settings.data, split, settings.data_dir, dtype=torch.float64, **options)
    return data if len(data.shape) == 2 else replace(data, dtype=torch.float32)


def has_text(data: str | os.PathLike[str]) -> bool:
    """Return whether data are of a kind of file that can have columns of text."""
    return data not in SETS and Path(data).suffix.lower() in (".csv", ".parquet")


def missing_in(train: Data) -> Missing:
    """Return how the model treats missing entries: tables may have some later on, even if there are none now."""
    incomplete = bool(train.stored.isnan().any())
    if len(train.shape) == 2:
        return "mask" if incomplete else True
    return incomplete


def fingerprint(data: str) -> str | None:
    """Return the SHA-256 of a file's content, or of the images' names and sizes in a folder; None for named sets.

    Held-out rows are chosen by their number in the file: a row more, and rows that were trained on would be held out.
    Cost: the file is read once, of a folder nothing but its lists.
    """
    path = Path(data)
    if data in SETS or not path.exists():
        return None
    digest = hashlib.sha256()
    if path.is_file():
        with open(path, "rb") as file:
            for part in iter(lambda: file.read(1 << 20), b""):
                digest.update(part)
        return digest.hexdigest()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(folder) / name
            if file.suffix.lower() in SUFFIXES and not name.startswith(".") and file.is_file():
                digest.update(f"{file.relative_to(path).as_posix()} {file.stat().st_size}\n".encode())
    return digest.hexdigest()

"""Read named sets: scikit-learn's digits, MNIST and its relatives (idx files), UCI regression tables."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch

from marquis.choices import choose
from marquis.data.download import find_or_download
from marquis.data.files import read_known, read_npz
from marquis.data.registry import NamedSet
from marquis.data.value import Data, rows_of_split
from marquis.errors import DataError

_ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""Big-endian element type by the third byte of an idx file."""
_MASKS = {"standard": "std_test_mask", "gap": "gap_test_mask"}
"""Masks of the test rows in the UCI files, by kind of split."""


def load_digits(split: str) -> Data:
    """Load images 8x8 in [0, 1] (the sixteen grey levels over 16) and their labels.

    One image in five is held out as the test set: 359 rows chosen with seed 42, 1438 remain for training.
    """
    from sklearn.datasets import load_digits as from_package

    pixels, labels = from_package(return_X_y=True)
    images = pixels.reshape(-1, 8, 8)
    rows = rows_of_split(len(labels), split)
    # Levels 0..16 do not fit 0..255 evenly, so these few are kept as floats.
    x = torch.from_numpy(images[rows] / 16).float().unsqueeze(1)
    return Data(x, torch.from_numpy(labels[rows]).long(), "digits", split, source="scikit-learn")


def load_idx_set(named: NamedSet, split: str, data_dir: str | os.PathLike[str] | None, *, download: bool) -> Data:
    """Read images and labels of one split (`"all"`: training rows, then test rows)."""
    paths = find_or_download(named, split, data_dir, download=download)
    arrays = []
    for path, known in zip(paths, named.files_of(split), strict=True):
        array = read_known(path, known, parse_idx)
        if array.shape != known.shape or array.dtype != np.uint8:
            raise DataError(
                f"{path} holds {array.dtype} of shape {array.shape}, but {named.name} has bytes of shape {known.shape}"
            )
        arrays.append(array)
    # Copies, because arrays over a file's bytes are read-only and torch needs to be able to write.
    images = torch.from_numpy(np.concatenate(arrays[0::2])).unsqueeze(1)
    labels = torch.from_numpy(np.concatenate(arrays[1::2])).long()
    return Data(images, labels, named.name, split, source=str(paths[0].parent))


def parse_idx(content: bytes, where: object) -> np.ndarray:
    """Turn the bytes of an (uncompressed) idx file into an array.

    Raises:
        DataError: If the header is not idx, or the length is not what the header says.
    """
    element_type = _ELEMENT_TYPES.get(content[2]) if len(content) >= 4 and content[:2] == b"\0\0" else None
    if element_type is None:
        raise DataError(f"{where} is not an idx file: it begins with the bytes {content[:4].hex(' ') or '(none)'}")
    axes = content[3]
    start = 4 + 4 * axes
    if axes == 0 or len(content) < start:
        raise DataError(f"{where} is not an idx file: its header ends too early or says that it has no axes")
    shape = tuple(np.frombuffer(content, ">u4", axes, 4).tolist())
    expected = start + math.prod(shape) * np.dtype(element_type).itemsize
    if len(content) != expected:
        raise DataError(
            f"{where} is truncated or corrupt: its header promises shape {shape}, {expected} bytes in all, "
            f"but it has {len(content)}; delete it and fetch it again"
        )
    return np.frombuffer(content, element_type, offset=start).reshape(shape)


def load_uci(
    named: NamedSet,
    split: str,
    data_dir: str | os.PathLike[str] | None,
    *,
    fold: int = 0,
    kind: str = "standard",
    dtype: torch.dtype = torch.float32,
) -> Data:
    """Load one fold of a UCI set, not normalised.

    Args:
        named: The data set.
        split: `"train"`, `"test"` or `"all"`.
        data_dir: The first folder to look in.
        fold: Which of the splits, from 0. The standard kind has 20 (protein 5), the gap kind one per feature.
        kind: `"standard"` (random 90 : 10) or `"gap"` (the middle third of one feature is the test set:
            Foong et al. 2019, arXiv:1906.11537).
        dtype: Floating type of the result.
    """
    kind = choose(f"{named.name}: kind", kind, _MASKS, error=DataError)
    (path,) = find_or_download(named, "all", data_dir)
    arrays = read_known(path, named.files[0], read_npz)
    _check(arrays, named, path)
    masks = arrays[_MASKS[kind]]
    if not 0 <= fold < len(masks):
        raise DataError(f"{named.name}: fold {fold} of kind {kind!r} does not exist; there are 0 to {len(masks) - 1}")
    test = masks[fold]
    rows = {"train": ~test, "test": test, "all": np.ones_like(test)}[split]
    x, y = (torch.from_numpy(arrays[key][rows]).to(dtype) for key in ("X", "y"))
    return Data(x, y.unsqueeze(1), named.name, split, source=str(path), dtype=dtype)


def _check(arrays: dict[str, np.ndarray], named: NamedSet, path: Path) -> None:
    """Refuse a file whose arrays contradict each other."""
    shape = named.files[0].shape
    rows = shape[0]
    absent = [key for key in ("X", "y", *_MASKS.values()) if key not in arrays]
    if absent:
        raise DataError(f"{path} lacks {', '.join(absent)}; it has {', '.join(arrays) or 'nothing'}")
    masks_fit = all(arrays[m].dtype == bool and arrays[m].shape[1:] == (rows,) for m in _MASKS.values())
    if arrays["X"].shape != shape or arrays["y"].shape != (rows,) or not masks_fit:
        shapes = {key: (str(a.dtype), a.shape) for key, a in arrays.items()}
        raise DataError(f"{path} does not hold {named.name}: expected X of shape {shape}, found {shapes}")

"""UCI regression sets with the splits that the literature compares on."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from marquis.choices import choose
from marquis.data.download import find_or_download
from marquis.data.files import read_known, read_npz
from marquis.data.registry import NamedSet
from marquis.data.value import Data
from marquis.errors import DataError

_MASKS = {"standard": "std_test_mask", "gap": "gap_test_mask"}


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

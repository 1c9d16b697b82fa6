"""Tell the arrays of an npz file apart: the data, their targets, a mask of what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from marquis.errors import DataError

_X_KEYS, _Y_KEYS = ("x", "X", "data", "images"), ("y", "Y", "target", "targets", "labels")
_MISSING_KEYS = ("missing", "mask")
_IMPUTED = {"x", "std", "missing", "samples"}
"""What `marquis impute` writes. There `missing` says what was filled in, and `x` is complete."""


def sort_arrays(arrays: dict[str, np.ndarray], path: Path) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return data, targets, and a mask that is True where data are missing; raise where that is ambiguous.

    Raises:
        DataError: There is no array of data or more than one, a mask that is none, or an array that would be ignored.
    """
    if set(arrays) == _IMPUTED:
        return arrays["x"], None, None
    xs, ys, masks = ([key for key in arrays if key in keys] for keys in (_X_KEYS, _Y_KEYS, _MISSING_KEYS))
    if len(arrays) == 1:
        xs, ys, masks = list(arrays), [], []
    if len(xs) != 1 or len(ys) > 1 or len(masks) > 1:
        raise DataError(
            f"{path} holds the arrays {', '.join(arrays) or '(none)'}; call the data x, the targets, if any, y, and a "
            "mask of what is missing, if any, missing"
        )
    unknown = [key for key in arrays if key not in (*xs, *ys, *masks)]
    if unknown:
        raise DataError(
            f"{path} holds {', '.join(unknown)} beside {xs[0]}, which would be ignored: only targets (y) and a mask "
            "(missing) are read; leave it out"
        )
    x = arrays[xs[0]]
    return x, arrays[ys[0]] if ys else None, _checked_mask(arrays[masks[0]], masks[0], x, path) if masks else None


def _checked_mask(mask: np.ndarray, name: str, x: np.ndarray, path: Path) -> np.ndarray | None:
    """Return the mask, or None where it marks nothing, so that images stay bytes."""
    if mask.dtype != np.bool_:
        raise DataError(
            f"{path}: {name} holds {mask.dtype}; a mask must be boolean, True where the data are missing "
            f"(numpy: {name}.astype(bool))"
        )
    if mask.shape != x.shape:
        raise DataError(f"{path}: {name} has shape {mask.shape}, but the data {x.shape}; a mask needs the same shape")
    return mask if mask.any() else None

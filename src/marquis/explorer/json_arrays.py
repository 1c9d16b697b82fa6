"""Encode responses as JSON: arrays are base64 of little-endian numbers, with their shape."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np


def packed(value: Any) -> Any:
    """Return a value that JSON can hold: arrays become `{shape, type, data}`, numbers that are not finite None."""
    if isinstance(value, np.ndarray):
        kind = {"f": "<f4", "i": "<i4", "u": "<u1", "b": "<u1"}[value.dtype.kind]
        data = np.ascontiguousarray(value, dtype=kind)
        return {"shape": list(value.shape), "type": kind[1:], "data": base64.b64encode(data.tobytes()).decode()}
    if isinstance(value, dict):
        return {str(key): packed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [packed(part) for part in value]
    if isinstance(value, np.generic):
        return packed(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_json(value: Any) -> bytes:
    """Return the packed value as JSON text."""
    return json.dumps(packed(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

"""Reader of the idx format, in which MNIST and its relatives come."""

from __future__ import annotations

import math

import numpy as np

from marquis.errors import DataError

# third byte of the file -> big-endian element type
_ELEMENT_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse_idx(content: bytes, where: object) -> np.ndarray:
    """Turn the bytes of an (uncompressed) idx file into an array.

    Args:
        content: The whole file.
        where: What to call it in an error message.

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

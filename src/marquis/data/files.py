"""Read files so that a truncated, corrupt or wrong one is refused by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from marquis.data.limits import bytes_in_npy, bytes_in_npz, require_fits
from marquis.data.registry import KnownFile
from marquis.errors import DataError

Parsed = TypeVar("Parsed")
_PIECE = 2**24
GZIP_MAGIC, NPY_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"\x93NUMPY", b"PK\x03\x04"
_NUMPY_COMPLAINTS = (
    *(ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error),
    *(MemoryError, RuntimeError),  # a header that claims terabytes; a password
)


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes; errors of the file system become a `DataError` with the file's name."""
    try:
        described = path.stat()
        if stat.S_ISCHR(described.st_mode) or stat.S_ISFIFO(described.st_mode) or stat.S_ISSOCK(described.st_mode):
            raise DataError(f"{path} is a device or a pipe, which may never end; save its contents to a file first")
        require_fits(described.st_size, path, "the file itself")
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}") from problem


def gunzip(packed: bytes, where: object) -> bytes:
    """Unpack gzip, or return the bytes unchanged if they are not gzip."""
    if packed[:2] != GZIP_MAGIC:
        return packed
    try:
        content = _decompressed(packed, where)
    except (EOFError, OSError, zlib.error) as problem:
        raise DataError(f"{where} is truncated or corrupt ({problem}); delete it and fetch it again") from problem
    return content


def _decompressed(packed: bytes, where: object) -> bytes:
    """Unpack gzip piece by piece: its stated size cannot be trusted, so the budget is checked on the way."""
    pieces, size = [], 0
    with gzip.open(io.BytesIO(packed)) as file:
        while piece := file.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            require_fits(size, where, "gzip, so far")
    return b"".join(pieces)


def check_sha256(packed: bytes, content: bytes, known: KnownFile, where: object) -> None:
    """Compare with the registry: the hash of the unpacked content, or of the packed file where only that is known.

    The content comes first because the same content is packed differently in different places.
    """
    if known.sha256 is not None:
        expected, actual, what = known.sha256, hashlib.sha256(content).hexdigest(), "content"
    elif known.packed_sha256 is not None:
        expected, actual, what = known.packed_sha256, hashlib.sha256(packed).hexdigest(), "packed file"
    else:
        return
    if expected != actual:
        raise DataError(
            f"{where} is not the file it should be: SHA-256 of the {what} is {actual}, expected {expected}; "
            "delete or move it and fetch it again"
        )


def read_known(path: Path, known: KnownFile, parse: Callable[[bytes, object], Parsed]) -> Parsed:
    """Read, unpack, parse and check one file of the registry.

    Parsing comes before the hash only because its message says more about what is wrong; nothing is
    returned before the hash is right. Costs one pass of SHA-256 (about 0.1 s for MNIST).
    """
    packed = read_bytes(path)
    content = gunzip(packed, path)
    parsed = parse(content, path)
    check_sha256(packed, content, known, path)
    return parsed


def read_npz(content: bytes, where: object) -> dict[str, np.ndarray]:
    """Return all arrays of an npz file; pickled objects are refused, because loading them runs code."""
    if content.startswith(NPY_MAGIC):
        raise DataError(f"{where} is not an npz file: it holds a single array; call it .npy")
    require_fits(bytes_in_npz(content), where, "the arrays in the npz file")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except _NUMPY_COMPLAINTS as problem:
        raise DataError(f"{where} cannot be read as npz: {_reason(problem)}") from problem
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):  # other files in a zip archive come as bytes
            raise DataError(f"{where} is a zip file that holds {key}, which is no array; write it with numpy.savez")
    return arrays


def read_npy(content: bytes, where: object) -> np.ndarray:
    """Return the array of an npy file; pickled objects are refused, because loading them runs code."""
    if content.startswith(ZIP_MAGIC):
        raise DataError(f"{where} is not an npy file: it holds several arrays; call it .npz")
    require_fits(bytes_in_npy(content), where, "the array in the npy file")
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except _NUMPY_COMPLAINTS as problem:
        raise DataError(f"{where} cannot be read as npy: {_reason(problem)}") from problem


def _reason(problem: Exception) -> str:
    """Return numpy's reason, without its advice `allow_pickle=True`, which we never follow."""
    if "pickle" in str(problem):
        return "it is corrupt, or holds pickled Python objects, which are refused; save plain numeric arrays instead"
    return f"it is truncated or corrupt ({problem})"

"""Store checksums inside the files they protect, so that a damaged file is noticed before its contents are used.

Safetensors files carry theirs in the header (`io.tensors`). JSON files carry it as an entry, torch's checkpoints as the
comment of their zip archive: both stay readable by every other program.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

from marquis.errors import DataError
from marquis.io.atomic import storage_errors, write_text

_KEY = "sha256"
_COMMENT = b"marquis sha256 "
_COMMENT_SIZE = len(_COMMENT) + 64
_PIECE = 2**20


def write_json(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Write an object as JSON with a checksum among its entries, completely or not at all."""
    value = json.loads(json.dumps(value))  # as it will be read: tuples are lists, keys are strings
    write_text(path, json.dumps({**value, _KEY: _digest_of_json(value)}, indent=1) + "\n")


def read_json(path: str | os.PathLike[str], *, unsealed: tuple[int | None, ...] = ()) -> dict[str, Any]:
    """Return the object that `write_json` wrote, without its checksum.

    Args:
        path: The file.
        unsealed: Values of the entry "version" in old files that carry no checksum; None where they have no such entry.
            They differ from later versions in more than one bit, so that one flipped bit makes no new file an old one.

    Raises:
        DataError: It is no JSON object, or its contents do not match its checksum.
        StorageError: The system cannot read it.
    """
    path = Path(path)
    with storage_errors(path, "read"):
        raw = path.read_bytes()
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: it is no JSON ({error}).") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged: it holds no JSON object.")
    digest = value.pop(_KEY, None)
    if digest is None and value.get("version") in unsealed:
        return value
    if digest != _digest_of_json(value):
        raise DataError(
            f"{path} is damaged or was edited: its contents do not match its checksum (the entry {_KEY!r}). Restore it "
            "from a copy, or write it anew."
        )
    return value


def _digest_of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def seal_archive(path: str | os.PathLike[str]) -> None:
    """Append the checksum of a zip archive (what `torch.save` writes) as the archive's comment.

    Raises:
        DataError: The file is no zip archive, or has a comment already.
    """
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 22))
        end = file.read()
        if len(end) != 22 or not end.startswith(b"PK\x05\x06") or end[-2:] != b"\0\0":
            raise DataError(f"{path} is no zip archive without a comment, so no checksum can be put into it.")
        digest = _digest_of_start(file, size - 2)
        file.seek(size - 2)
        file.write(struct.pack("<H", _COMMENT_SIZE) + _COMMENT + digest)


def check_archive(path: str | os.PathLike[str]) -> bool:
    """Verify the checksum that `seal_archive` appended; returns whether there was one.

    Raises:
        DataError: The contents do not match the checksum.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _COMMENT_SIZE + 22:
            return False
        file.seek(size - _COMMENT_SIZE - 2)
        length, comment = struct.unpack("<H", file.read(2))[0], file.read()
        if comment[: len(_COMMENT)] != _COMMENT and length != _COMMENT_SIZE:
            return False  # both would have to be damaged at once for a sealed file to be taken for an unsealed one
        digest = _digest_of_start(file, size - _COMMENT_SIZE - 2)
    if length != _COMMENT_SIZE or comment != _COMMENT + digest:
        raise DataError(f"{path} is damaged: its contents do not match its checksum.")
    return True


def _digest_of_start(file: Any, size: int) -> bytes:
    """Return the SHA-256 of the first `size` bytes, in pieces."""
    file.seek(0)
    total = hashlib.sha256()
    while size > 0:
        piece = file.read(min(_PIECE, size))
        if not piece:
            break
        total.update(piece)
        size -= len(piece)
    return total.hexdigest().encode()

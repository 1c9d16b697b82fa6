"""Save and load one safetensors file with a small JSON header; loading runs no code.

A file is written next to its destination and then renamed, so that a crash leaves the old file or the new one, never
half of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from marquis.errors import DataError, StorageError
from marquis.io.atomic import replacing, storage_errors
from marquis.io.previous import replacing_twice

VERSION = 1
_KEY = "marquis"


def save_tensors(
    path: str | Path,
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    keep_previous: bool = False,
) -> None:
    """Write tensors and a JSON header to a safetensors file, atomically.

    Args:
        path: destination; its folder has to exist.
        kind: what the file holds, checked on loading.
        header: anything that JSON can hold.
        tensors: by name; copied, made contiguous and moved to the CPU.
        keep_previous: whether a file that stands there stays as the previous generation (`io.previous`).
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DataError(f"cannot save to {path}: the folder {path.parent} does not exist; create it first.")
    plain = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    described = {"version": VERSION, "kind": kind, "header": dict(header)}
    text = json.dumps({**described, "sha256": _digest(described, plain)})
    with (replacing_twice if keep_previous else replacing)(path) as temporary:
        try:
            save_file(plain, temporary, metadata={_KEY: text})
        except SafetensorError as error:  # what the system said, in Rust's words
            raise StorageError(f"{path} cannot be written: {error}.") from error


def load_tensors(path: str | Path, kinds: tuple[str, ...]) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Return the kind, header and tensors of a file that `save_tensors` wrote.

    Raises:
        DataError: there is no such file, it is truncated or corrupt, or it is not one of ours.
    """
    path = Path(path)
    with storage_errors(path, "read"):
        if not path.is_file():
            folder = " (it is a folder; name a file in it)" if path.is_dir() else ""
            raise DataError(f"there is no file {path} to load{folder}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, MemoryError) as error:
        raise DataError(f"{path} is no safetensors file, or a truncated one ({error}).") from error
    try:
        described = json.loads(metadata[_KEY])
        digest = described.pop("sha256")
        version, kind, header = described["version"], described["kind"], dict(described["header"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} holds tensors, but not ours: the header {_KEY!r} is missing or broken.") from error
    if version != VERSION:
        raise DataError(f"{path} is of version {version}, this Marquis reads {VERSION}: use a matching release.")
    if digest != _digest(described, tensors):
        raise DataError(f"{path} is damaged: its contents do not match its checksum. Save it anew or fetch it again.")
    if kind not in kinds:
        raise DataError(f"{path} holds a {kind!r}; expected {' or '.join(map(repr, kinds))}.")
    return kind, header, tensors


def _digest(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the header and of every tensor: a flipped bit anywhere is noticed, not computed with."""
    total = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()


def split_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries below a prefix, without it."""
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}

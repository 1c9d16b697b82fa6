"""Convert structures to flat dictionaries of tensors for safetensors, and back; loading runs no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError
from marquis.structures.layout import Layout

META = "structure"
VERSION = 1


def pack(kind: str, layout: Layout, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as independent contiguous copies, and all else as JSON in a tensor of bytes."""
    header = {"kind": kind, "version": VERSION, "layout": layout.items, "meta": dict(meta)}
    text = json.dumps(header).encode()
    state = {META: torch.tensor(list(text), dtype=torch.uint8)}
    for key, tensor in tensors.items():
        state[key] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return state


def unpack(state: Mapping[str, Tensor]) -> tuple[str, Layout, dict[str, Any], dict[str, Tensor]]:
    """Return kind, layout, the values that JSON held, and the tensors."""
    if META not in state:
        raise DataError(f"no entry {META!r}: this is not the state of a structure; it has {sorted(state)[:10]}")
    try:
        header = json.loads(bytes(state[META].tolist()).decode())
        version, kind, meta = header["version"], header["kind"], header["meta"]
        layout = Layout(dict(header["layout"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the header {META!r} of the structure cannot be read ({error}): corrupt file?") from error
    if version != VERSION:
        raise DataError(f"structure of version {version}, this Marquis reads {VERSION}: use a matching release")
    return kind, layout, meta, {key: tensor for key, tensor in state.items() if key != META}

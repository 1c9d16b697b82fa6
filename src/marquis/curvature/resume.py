"""A sum over a data set that survives interruption: written now and then, read again by the next call.

The file is safetensors (no code runs on loading), replaced atomically, and says what it belongs to: parameters and
their values, likelihood, options, and the data that were summed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.errors import DataError, MarquisError, ModelMismatchError
from marquis.functional.call import Model, buffers_of
from marquis.io.atomic import replacing
from marquis.structures import Structure, from_state_dict

SECONDS = 30.0
"""Time between two writings."""

_HEADER, _GENERATOR, _SUM = "marquis", "generator", "sum/"


@dataclass(frozen=True, eq=False)
class Saved:
    """Where a pass over the data stands after a whole number of batches.

    Attributes:
        total: the sum so far.
        batches: how many batches are in it.
        rows: samples at a time, where batches had to be split; they are split alike after resuming.
        data: digest of the batches that are in it.
        generator: state of the random generator after them, or None.
    """

    total: Structure
    batches: int
    rows: int | None
    data: str
    generator: Tensor | None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The file of one sum.

    Attributes:
        path: where it is.
        identity: what the sum belongs to, by name; a file with another identity is refused.
    """

    path: Path
    identity: Mapping[str, str]

    def load(self) -> Saved | None:
        """What was saved, or None if there is no file.

        Raises:
            ModelMismatchError: the file belongs to another computation; names what differs.
            DataError: the file cannot be read.
        """
        if not self.path.exists():
            return None
        try:
            header, tensors = self._read()
            identity = header["identity"]
            batches, rows, data = int(header["batches"]), header["rows"], str(header["data"])
        except Exception as error:
            raise DataError(
                f"the checkpoint {self.path} cannot be read ({type(error).__name__}: {error}): corrupt, or not written "
                "by accumulate. Delete it to start anew."
            ) from error
        self._require_same(identity)
        generator = tensors.pop(_GENERATOR, None)
        state = {key.removeprefix(_SUM): tensor for key, tensor in tensors.items()}
        try:
            total = from_state_dict(state)
        except MarquisError as error:
            raise DataError(f"the sum in the checkpoint {self.path} cannot be used: {error} Delete it.") from error
        return Saved(total, batches, rows, data, generator)

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        from safetensors import safe_open

        with safe_open(str(self.path), framework="pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            return header, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)

    def _require_same(self, identity: Mapping[str, str]) -> None:
        for what, now in self.identity.items():
            before = identity.get(what)
            if before != now:
                raise ModelMismatchError(
                    f"the checkpoint {self.path} belongs to another computation: {what} was {_short(before)} and is "
                    f"now {_short(now)}. Call with the same arguments to continue, or delete the file to start anew."
                )

    def save(self, saved: Saved) -> None:
        """Write everything to a new file and put it in place of the old one in one step."""
        from safetensors.torch import save_file

        tensors = {f"{_SUM}{key}": tensor.cpu() for key, tensor in saved.total.state_dict().items()}
        if saved.generator is not None:
            tensors[_GENERATOR] = saved.generator
        header = {
            "identity": dict(self.identity),
            "batches": saved.batches,
            "rows": saved.rows,
            "data": saved.data,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as unfinished:
            save_file(tensors, str(unfinished), {_HEADER: json.dumps(header)})

    def remove(self) -> None:
        """The sum is finished: the file has done its work."""
        self.path.unlink(missing_ok=True)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def digest_of(tree: Any, before: str = "") -> str:
    """A fingerprint of a pytree's tensors and plain values, chained to that of what came before."""
    state = hashlib.blake2b(before.encode(), digest_size=16)
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        state.update(pytree.keystr(path).encode())
        if isinstance(leaf, Tensor):
            state.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            state.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            state.update(repr(leaf).encode())
    return state.hexdigest()


def digest_of_network(model: Model, params: Mapping[str, Tensor]) -> str:
    """A fingerprint of the values of all parameters and buffers."""
    return digest_of({"parameters": dict(params), "buffers": buffers_of(model)})

"""Save a sum over a data set now and then, so that the next call continues it after an interruption.

The file is safetensors (no code runs on loading) with a checksum, replaced atomically, and says what it belongs to:
parameters and their values, likelihood, options, and the data that were summed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.errors import DataError, MarquisError, ModelMismatchError
from marquis.functional.checks import batch_size
from marquis.io.atomic import make_folder
from marquis.io.lock import exclusive
from marquis.io.previous import any_generation, read_newest, remove_both
from marquis.io.tensors import load_tensors, save_tensors, split_prefix
from marquis.structures import Structure, from_state_dict

SECONDS = 30.0
"""Time between two writings."""

_KIND, _GENERATOR, _DONE, _SUM = "accumulate", "generator", "samples", "sum/"


@dataclass(frozen=True, eq=False)
class Saved:
    """Hold where a pass over the data stands after a whole number of batches.

    Attributes:
        total: the sum so far.
        batches: how many batches are in it.
        rows: samples at a time, where batches had to be split; they are split alike after resuming.
        data: digest of the batches that are in it.
        generator: state of the random generator after them, or None.
        done: digests of all samples in the sum, in any order.
        moved: if the sum began with another number of processes (`regroup.py`), that number, and how many files took
            over from them; `batches` then says nothing.
    """

    total: Structure
    batches: int
    rows: int | None
    data: str
    generator: Tensor | None
    done: Tensor
    moved: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Read and write the file of one process's sum.

    Attributes:
        base: where it is; in a group each process adds its rank and the number of processes to the name.
        identity: what the sum belongs to, by name; a file with another identity is refused.
        rank: this process.
        world: number of processes.
    """

    base: Path
    identity: Mapping[str, str]
    rank: int = 0
    world: int = 1

    @property
    def path(self) -> Path:
        """Return the file."""
        return self.base if self.world == 1 else self.base.with_name(f"{self.base.name}.{self.rank}-of-{self.world}")

    def of(self, rank: int, world: int) -> Checkpoint:
        """Return the checkpoint of another process, perhaps one of another number of them."""
        return replace(self, rank=rank, world=world)

    def present(self) -> list[tuple[int, int]]:
        """Return rank and number of processes of all files of this sum that this process sees."""
        pattern = re.compile(rf"{re.escape(self.base.name)}\.(\d+)-of-(\d+)")
        names = [path.name for path in self.base.parent.glob("*")] if self.base.parent.is_dir() else []
        shares = [(int(match[1]), int(match[2])) for name in names if (match := pattern.fullmatch(name))]
        return sorted(shares + ([(0, 1)] if any_generation(self.base) else []))

    def load(self) -> Saved | None:
        """Return what was saved, or None if there is no file; a damaged one falls back to the one before it.

        Raises:
            ModelMismatchError: the file belongs to another computation; names what differs.
            DataError: the file cannot be read, and neither can the one before it.
        """
        if not any_generation(self.path):
            return None
        return read_newest(self.path, self._read)

    def _read(self, path: Path) -> Saved:
        """Read one file of a checkpoint, and check that it belongs to this computation."""
        try:
            _, header, tensors = load_tensors(path, (_KIND,))
            identity = header["identity"]
            batches, rows, data = int(header["batches"]), header["rows"], str(header["data"])
        except (MarquisError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the checkpoint {path} cannot be read ({error}): corrupt, or not written by accumulate of this "
                "version. Delete it to start anew."
            ) from error
        self._require_same(identity)
        generator, done = tensors.pop(_GENERATOR, None), tensors.pop(_DONE, torch.zeros(0, dtype=torch.long))
        moved = header.get("moved")
        try:
            total = from_state_dict(split_prefix(tensors, _SUM))
        except MarquisError as error:
            raise DataError(f"the sum in the checkpoint {path} cannot be used: {error} Delete it.") from error
        return Saved(total, batches, rows, data, generator, done, None if moved is None else (moved[0], moved[1]))

    def _require_same(self, identity: Mapping[str, str]) -> None:
        """Refuse a checkpoint of another network, other data or other options."""
        for what, now in self.identity.items():
            before = identity.get(what)
            if before != now:
                raise ModelMismatchError(
                    f"the checkpoint {self.path} belongs to another computation: {what} was {_short(before)} and is "
                    f"now {_short(now)}. Call with the same arguments to continue, or delete the file to start anew."
                )

    def held(self) -> AbstractContextManager[None]:
        """Hold the only right to write the file, which the system releases when the process dies."""
        make_folder(self.path.parent)
        return exclusive(self.path, "another pass over data")

    def save(self, saved: Saved) -> None:
        """Write everything to a new file with a checksum; the old one stays as the previous generation."""
        tensors = {f"{_SUM}{key}": tensor for key, tensor in saved.total.state_dict().items()}
        tensors[_DONE] = saved.done
        if saved.generator is not None:
            tensors[_GENERATOR] = saved.generator
        header = {
            "identity": dict(self.identity),
            "batches": saved.batches,
            "rows": saved.rows,
            "data": saved.data,
            "moved": saved.moved,
        }
        save_tensors(self.path, _KIND, header, tensors, keep_previous=True)

    def remove(self) -> None:
        """Remove the file: the sum is finished."""
        remove_both(self.path)


def _short(value: object) -> str:
    """Return text of at most 80 characters."""
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def digest_of(tree: Any, before: str = "") -> str:
    """Return a fingerprint of a pytree's tensors and plain values, chained to that of what came before."""
    state = hashlib.blake2b(before.encode(), digest_size=16)
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        state.update(pytree.keystr(path).encode())
        if isinstance(leaf, Tensor):
            state.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            state.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            state.update(repr(leaf).encode())
    return state.hexdigest()


def row_digests(tree: Any) -> Tensor:
    """Return a fingerprint of each sample of a batch, 64 bits in an integer: `[B]`.

    Raises:
        DataError: As in `batch_size`.
    """
    size = batch_size(tree)
    about, columns = hashlib.blake2b(digest_size=16), []
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        about.update(pytree.keystr(path).encode())
        if isinstance(leaf, Tensor):
            about.update(f"{leaf.dtype}{tuple(leaf.shape[1:])}".encode())
            columns.append(
                leaf.detach().cpu().reshape(size, -1 if leaf.numel() else 0).contiguous().view(torch.uint8).numpy()
            )
        else:
            about.update(repr(leaf).encode())
    head = about.digest()
    rows = (hashlib.blake2b(head + b"".join(c[i].tobytes() for c in columns), digest_size=8) for i in range(size))
    return torch.tensor([int.from_bytes(row.digest(), "little", signed=True) for row in rows])

"""One pass over the batches of a loader: what is in the sum, and where to go on after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.planning.budget import Budget
from marquis.curvature.resume import SECONDS, Checkpoint, Saved, digest_of
from marquis.errors import DataError, MarquisError, MemoryBudgetError
from marquis.functional.checks import batch_size
from marquis.loaders import split_batch
from marquis.progress import ProgressBar
from marquis.structures import Structure


@dataclass(frozen=True, eq=False)
class Position:
    """Where the pass stands after a whole number of batches; replaced in one assignment, so that it is never half new.

    Attributes:
        parts: the sum so far; of a structure that grows, everything added, to be joined at the end.
        batches: how many are in it.
        data: digest of the batches seen.
        drawn: state of the generator after them.
    """

    parts: tuple[Structure, ...] = ()
    batches: int = 0
    data: str = ""
    drawn: Tensor | None = None


@dataclass(eq=False)
class DataPass:
    """One pass over the data.

    Attributes:
        each: curvature of one batch, from its inputs and its mask.
        budget: says how many samples fit at a time.
        home: device of the model.
        dtype: of the sum, or None for that of the batches.
        device: of the sum, or None for that of the batches.
        generator: whose state belongs to the position.
        mask_of: gives a batch's mask.
        file: where the position is written, or None.
        at: where the pass stands.
    """

    each: Callable[[Any, Tensor | None], Structure]
    budget: Budget
    home: torch.device
    dtype: torch.dtype | None
    device: torch.device | str | None
    generator: torch.Generator | None
    mask_of: Callable[[Any], Tensor] | None
    file: Checkpoint | None
    at: Position = field(default_factory=Position)

    def run(self, loader: Iterable[Any], bar: ProgressBar) -> None:
        """Sum all batches, from where the checkpoint left off."""
        saved = self._resume()
        written = time.monotonic()
        index, digest = -1, ""
        try:
            for index, batch in enumerate(loader):
                x, mask = self._inputs(batch, index)
                digest = digest_of((x, mask), digest) if self.file is not None else ""
                if index >= saved.batches:
                    parts = self._plus(self._curvature(x, mask, index))
                    drawn = None if self.generator is None else self.generator.get_state()
                    self.at = Position(parts, index + 1, digest, drawn)
                elif index + 1 == saved.batches and digest != saved.data:
                    raise DataError(self._other_data())
                bar.advance()
                if self.file is not None and time.monotonic() - written >= SECONDS:
                    self._save()
                    written = time.monotonic()
        except BaseException:
            if self.at.batches > saved.batches:
                self._save()
            raise
        if index + 1 < saved.batches:
            raise DataError(self._other_data())

    def total(self) -> Structure | None:
        """The sum so far."""
        if len(self.at.parts) > 1:  # only columns are kept apart: joining them at each batch would copy them each time
            columns = torch.cat([part.tensors()[0] for part in self.at.parts], dim=1)
            self.at = replace(self.at, parts=(self.at.parts[0].with_tensors([columns]),))
        return self.at.parts[0] if self.at.parts else None

    def _plus(self, part: Structure) -> tuple[Structure, ...]:
        if part.reduction == "gather" or not self.at.parts:
            return (*self.at.parts, part)
        return (self.at.parts[0] + part,)

    def _curvature(self, x: Any, mask: Tensor | None, index: int) -> Structure:
        """One batch, in as many pieces as the memory asks for."""
        try:
            size = batch_size(x)
            rows = self.budget.rows(x, size, self.at.batches)
            found: Structure | None = None
            for start in range(0, size, rows):
                piece = (x, mask) if rows >= size else _slice((x, mask), start, start + rows)
                part = self._converted(self.each(*piece))
                found = part if found is None else found + part
            assert found is not None
            return found
        except MarquisError as error:
            raise type(error)(f"batch {index}: {error}") from error
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "allocate" in str(error):
                raise MemoryBudgetError(
                    f"batch {index}: {error} Pass memory_limit to have batches split, or smaller batches."
                ) from error
            raise DataError(f"batch {index} cannot be used ({_shapes(x)}): {error}") from error
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise DataError(f"batch {index} cannot be used ({_shapes(x)}): {type(error).__name__}: {error}") from error

    def _converted(self, part: Structure) -> Structure:
        """In the dtype and on the device of the sum."""
        return part.to(dtype=self.dtype, device=self.device)

    def _inputs(self, batch: Any, index: int) -> tuple[Any, Tensor | None]:
        """Inputs and mask, on the model's device."""
        try:
            mask = None if self.mask_of is None else self.mask_of(batch)
            x, _ = split_batch(batch if mask is None else _without(batch, mask))
            if mask is not None and (mask.dim() == 0 or mask.shape[0] != batch_size(x)):
                raise DataError(
                    f"the mask has shape {list(mask.shape)}, but there are {batch_size(x)} samples; give it one row "
                    "per sample (mask.expand)."
                )
        except MarquisError as error:
            raise type(error)(f"batch {index}: {error}") from error
        x, mask = pytree.tree_map_only(Tensor, lambda t: t.to(self.home), (x, mask))
        return x, mask

    def _resume(self) -> Position:
        saved = self.file.load() if self.file is not None else None
        if saved is not None:
            total = saved.total.to(device=self.home if self.device is None else self.device)
            self.at = Position((total,), saved.batches, saved.data, saved.generator)
            self.budget.limit_rows = saved.rows
            if self.generator is not None and saved.generator is not None:
                self.generator.set_state(saved.generator)
        return self.at

    def _save(self) -> None:
        total = self.total()
        if self.file is not None and total is not None:
            self.file.save(Saved(total, self.at.batches, self.budget.limit_rows, self.at.data, self.at.drawn))

    def _other_data(self) -> str:
        assert self.file is not None
        return (
            f"the checkpoint {self.file.path} holds the sum over {self.at.batches} batches, but the loader does not "
            "yield the same ones again. Resuming needs the same batches in the same order: switch off shuffling and "
            "random augmentation, or seed them alike; or delete the file to start anew."
        )


def _without(batch: Any, mask: Tensor) -> Any:
    """The batch without the entry that is the mask."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if value is not mask}
    if isinstance(batch, (tuple, list)):
        return tuple(value for value in batch if value is not mask)
    return batch


def _slice(tree: Any, start: int, stop: int) -> Any:
    """Some samples of a batch."""
    return pytree.tree_map_only(Tensor, lambda t: t[start:stop], tree)


def _shapes(x: Any) -> str:
    shapes = [f"{list(leaf.shape)}" for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    return f"inputs of shape {', '.join(shapes)}"

"""Read the batches of a loader once: what is in the sum, and where to continue after an interruption."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.planning.budget import Budget
from marquis.curvature.regroup import take_over
from marquis.curvature.resume import SECONDS, Checkpoint, Saved, digest_of, row_digests
from marquis.errors import DataError, MarquisError, MemoryBudgetError
from marquis.functional.checks import batch_size, samples_of
from marquis.loaders import Batch, MaskOf, read_batches
from marquis.progress import ProgressBar
from marquis.structures import Structure


@dataclass(frozen=True, eq=False)
class Position:
    """Hold where the pass stands after a whole number of batches; replaced in one assignment.

    Attributes:
        parts: the sum so far; of a structure that grows, everything added, to be joined at the end.
        batches: how many are in it.
        data: digest of the batches seen.
        drawn: state of the generator after them.
        listed: how many entries of `DataPass.done` belong to it.
    """

    parts: tuple[Structure, ...] = ()
    batches: int = 0
    data: str = ""
    drawn: Tensor | None = None
    listed: int = 0


@dataclass(eq=False)
class DataPass:
    """Sum curvature in one pass over the data.

    Attributes:
        each: returns the curvature of one batch.
        skipped: called with a batch that is in the sum already, or None.
        budget: says how many samples fit at a time.
        home: device of the model.
        dtype: of the sum, or None for that of the batches.
        device: of the sum, or None for that of the batches.
        generator: whose state belongs to the position.
        mask_of: returns a batch's mask.
        file: where the position is written, or None.
        at: where the pass stands.
        done: digests of the samples in the sum, where there is a file.
        skip: samples of this process that others of an earlier group have summed already, with their numbers; None
            where this process continues behind its own batches.
        moved: as in `Saved`.
    """

    each: Callable[[Batch], Structure]
    skipped: Callable[[Batch], None] | None
    budget: Budget
    home: torch.device
    dtype: torch.dtype | None
    device: torch.device | str | None
    generator: torch.Generator | None
    mask_of: MaskOf | None
    file: Checkpoint | None
    at: Position = field(default_factory=Position)
    done: list[Tensor] = field(default_factory=list)
    skip: Counter[int] | None = None
    moved: tuple[int, int] | None = None

    def resume(self, loader: Iterable[Any]) -> None:
        """Take up the sum of the checkpoint, whoever wrote it; all processes of a group have to call this."""
        if self.file is None:
            return
        taken = take_over(self.file, loader, self.home, self.mask_of)
        saved, self.skip = (self.file.load(), None) if taken is None else taken
        if saved is None:
            return
        self.moved, self.done = saved.moved, [saved.done]
        total = saved.total.to(device=self.home if self.device is None else self.device)
        self.at = Position((total,), 0 if taken else saved.batches, saved.data, saved.generator, 1)
        self.budget.limit_rows = saved.rows
        if self.generator is not None and saved.generator is not None:
            self.generator.set_state(saved.generator)

    def run(self, loader: Iterable[Any], bar: ProgressBar) -> None:
        """Sum all batches, from where the checkpoint left off."""
        saved = self.at
        written = time.monotonic()
        index, digest = -1, ""
        try:
            for index, batch in enumerate(read_batches(loader, self.home, self.mask_of)):
                rows = self._digests(batch)
                digest = digest_of(rows, digest) if self.file is not None else ""
                if index + 1 == saved.batches and digest != saved.data:
                    raise DataError(self._other_data())
                fresh, parts = [], self.at.parts
                for start, stop, known in self._runs(rows, index < saved.batches):
                    piece = batch if stop is None else samples_of(batch, start, stop)
                    if known and self.skipped is not None:
                        self.skipped(piece)
                    if not known:
                        parts = plus(parts, self._curvature(piece, index))
                        fresh.append(rows[start:stop])
                if fresh:
                    del self.done[self.at.listed :]
                    self.done += fresh if self.file is not None else []
                    drawn = None if self.generator is None else self.generator.get_state()
                    self.at = Position(parts, index + 1, digest, drawn, len(self.done))
                bar.advance()
                if self.file is not None and time.monotonic() - written >= SECONDS:
                    self._save()
                    written = time.monotonic()
        except BaseException:
            if self.at is not saved:
                self._save()
            raise
        if index + 1 < saved.batches:
            raise DataError(self._other_data())

    def _digests(self, batch: Batch) -> Tensor:
        """Return one fingerprint per sample where there is a file; none of a batch that will be refused."""
        if self.file is not None:
            with suppress(DataError):
                return row_digests((batch.x, batch.mask))
        return torch.zeros(0, dtype=torch.long)

    def _runs(self, rows: Tensor, known: bool) -> Iterator[tuple[int, int | None, bool]]:
        """Yield the ends of runs of samples that all are in the sum already, or none; up to None is the whole batch."""
        if self.skip is None:
            yield 0, None, known
            return
        flags = []
        for row in rows.tolist():
            flags.append(self.skip[row] > 0)
            self.skip[row] -= flags[-1]
        start = 0
        for flag, group in itertools.groupby(flags):
            stop = start + len(list(group))
            yield start, stop, flag
            start = stop

    def total(self) -> Structure | None:
        """Return the sum so far."""
        if len(self.at.parts) > 1:
            self.at = replace(self.at, parts=(joined(self.at.parts),))
        return self.at.parts[0] if self.at.parts else None

    def _curvature(self, batch: Batch, index: int) -> Structure:
        """Return the curvature of one batch, computed in as many pieces as the memory asks for."""
        x = batch.x
        try:
            size = batch_size(x)
            rows = self.budget.rows(x, size, self.at.batches)
            total: Structure | None = None
            for start in range(0, size, rows):
                piece = batch if rows >= size else samples_of(batch, start, start + rows)
                part = self.each(piece).to(dtype=self.dtype, device=self.device)
                total = part if total is None else total + part
            assert total is not None
            return total
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

    def _save(self) -> None:
        """Write the sum so far to the checkpoint."""
        total = self.total()
        if self.file is not None and total is not None:
            at, done = self.at, torch.cat(self.done[: self.at.listed])
            saved = Saved(total, at.batches, self.budget.limit_rows, at.data, at.drawn, done, self.moved)
            self.file.save(saved)

    def _other_data(self) -> str:
        """Return the message for a loader whose batches are not those of the checkpoint."""
        assert self.file is not None
        return (
            f"the checkpoint {self.file.path} holds the sum over {self.at.batches} batches, but the loader does not "
            "yield the same ones again. Resuming needs the same batches in the same order: switch off shuffling and "
            "random augmentation, or seed them alike; or delete the file to start anew."
        )


def plus(parts: tuple[Structure, ...], part: Structure) -> tuple[Structure, ...]:
    """Return a sum with one more summand; columns stay apart, as joining them each time would copy them each time."""
    return (*parts, part) if part.reduction == "gather" or not parts else (parts[0] + part,)


def joined(parts: tuple[Structure, ...]) -> Structure:
    """Return the sum of what `plus` left, columns side by side."""
    if len(parts) == 1:
        return parts[0]
    return parts[0].with_tensors([torch.cat([part.tensors()[0] for part in parts], dim=1)])


def _shapes(x: Any) -> str:
    """Describe the shapes of inputs for a message."""
    shapes = [f"{list(leaf.shape)}" for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    return f"inputs of shape {', '.join(shapes)}"

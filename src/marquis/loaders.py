"""Read the batches of a loader: split them into inputs, labels and mask, move them to a device, and read each once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.distributed import this_or_first
from marquis.errors import DataError, MarquisError
from marquis.functional.checks import batch_size, check_ordinary

LABEL_KEYS = ("labels", "label", "y", "target", "targets")
"""Keys under which a dictionary batch may carry its labels."""

MaskOf = Callable[[Any], Tensor]
"""Returns a batch's mask, 1 where a label was observed."""


class Batch(NamedTuple):
    """Hold inputs, labels and mask of one batch; labels and mask are None where there are none."""

    x: Any
    y: Any
    mask: Tensor | None


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Split what a loader yields into inputs and labels; labels are `None` where there are none.

    `(x, y)` as a tuple or list of two; a tensor alone is `x`; a mapping is `x` without its label entry
    (one of `LABEL_KEYS`).
    """
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        labels = [key for key in LABEL_KEYS if key in batch]
        if len(labels) > 1:
            raise DataError(f"a batch has several label entries {labels}; keep one of them.")
        inputs = {key: value for key, value in batch.items() if key not in labels}
        return inputs, batch[labels[0]] if labels else None
    if isinstance(batch, (tuple, list)):
        if len(batch) == 2:
            return batch[0], batch[1]
        raise DataError(
            f"the loader yields a {type(batch).__name__} of {len(batch)} items; expected (x, y), with "
            "several inputs as ((x1, x2), y), a tensor, or a dict."
        )
    raise DataError(f"the loader yields {type(batch).__name__}; expected (x, y), a tensor, or a dict.")


def read_batch(batch: Any, device: torch.device | str | None = None, mask_of: MaskOf | None = None) -> Batch:
    """Return inputs, labels and mask of what a loader yields.

    Args:
        batch: What the loader yields.
        device: Where tensors are moved to; None leaves them where they are.
        mask_of: Returns the batch's mask. An entry of the batch that is this very tensor is neither input nor label.

    Raises:
        DataError: The batch has an unknown form, or a mask without one row per sample.
    """
    mask = None if mask_of is None else mask_of(batch)
    if mask is not None and isinstance(batch, Mapping):
        batch = {key: value for key, value in batch.items() if value is not mask}
    elif mask is not None and isinstance(batch, (tuple, list)):
        batch = tuple(value for value in batch if value is not mask)
    x, y = split_batch(batch)
    check_ordinary(x, "x")
    check_ordinary(y, "y")
    if mask is not None and (mask.dim() == 0 or mask.shape[0] != batch_size(x)):
        raise DataError(
            f"the mask has shape {list(mask.shape)}, but there are {batch_size(x)} samples; give it one row per sample "
            "(mask.expand)."
        )
    return Batch(*((x, y, mask) if device is None else to_device((x, y, mask), device)))


def read_batches(
    loader: Iterable[Any],
    device: torch.device | str | None = None,
    mask_of: MaskOf | None = None,
    *,
    labels_for: str | None = None,
) -> Iterator[Batch]:
    """Yield inputs, labels and mask of every batch; errors name the batch by its number.

    Args:
        loader: Any iterable of batches.
        device: As in `read_batch`.
        mask_of: As in `read_batch`.
        labels_for: What depends on labels; a batch without them is then refused.
    """
    for index, batch in enumerate(loader):
        try:
            read = read_batch(batch, device, mask_of)
        except MarquisError as error:
            raise type(error)(f"batch {index}: {error}") from error
        if labels_for is not None and read.y is None:
            raise DataError(f"batch {index} has no labels, but {labels_for} depends on them; yield (x, y).")
        yield read


def to_device(tree: Any, device: torch.device | str) -> Any:
    """Return the pytree with its tensors on a device."""
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), tree)


def number_of_batches(loader: Any) -> int | None:
    """Return the number of batches, where the loader knows it."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def is_one_shot(loader: Any) -> bool:
    """Return whether a loader can be iterated only once (`iter(loader)` would start a DataLoader's workers)."""
    return hasattr(loader, "__next__")


def refuse_one_shot(loader: Any, what: str) -> None:
    """Raise `DataError` if a loader can be iterated only once; `what` says what passes over the data again."""
    if is_one_shot(loader):
        raise DataError(
            f"{what} passes over the data more than once, but the loader is a one-shot iterator "
            f"({type(loader).__name__}); pass a list of batches or a DataLoader."
        )


class OpenedLoader:
    """Read the first batch of a loader; the first pass continues behind it, later passes begin anew.

    So nothing is read twice and no workers are started just to look at the first batch.

    Args:
        loader: Any iterable of batches.
        shared: Whether it is one process's share of the data, and all processes of the group open theirs now. An empty
            share then has another process's first batch as `first`, and yields nothing.

    Raises:
        DataError: It cannot be iterated, or yields no batches.
    """

    def __init__(self, loader: Iterable[Any], shared: bool = False) -> None:
        self._loader = loader
        try:
            self._rest: Iterator[Any] | None = iter(loader)
        except TypeError as error:
            raise DataError(
                f"the loader is a {type(loader).__name__}, which cannot be iterated ({error}); pass a DataLoader or a "
                "list of batches (x, y)."
            ) from error
        batch = next(self._rest, None)
        self.first = this_or_first(batch) if shared else batch
        self._before = [] if batch is None else [batch]
        if self.first is None:
            raise DataError("the loader yields no batches; there is no curvature without data.")

    def __iter__(self) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        return iter(self._loader) if rest is None else itertools.chain(self._before, rest)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

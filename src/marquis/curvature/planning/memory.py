"""Measure the free memory, predict what a structure will take, and refuse what does not fit before it is allocated."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from marquis.errors import MemoryBudgetError
from marquis.structures import Layout

CHUNK_BYTES = 20 * 2**20
"""Size of a chunk of columns at the widest tensor: larger ones only leave the cache."""

RESERVE = 0.9
"""Share of the free memory that may be planned with."""

Made = TypeVar("Made")

SMALL_BYTES = 2**20
"""A result up to this size needs no look at the free memory, which costs more than the result."""


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30


def allowed_bytes(device: torch.device, limit: int | None) -> int:
    """Return the bytes that may be used: the limit, or most of the free memory of a device."""
    return int(RESERVE * available_bytes(device)) if limit is None else limit


def result_bytes(
    structure: str, layout: Layout, columns: int, item: int, diagonal: Collection[str] = frozenset()
) -> int:
    """Return the bytes of the finished structure.

    Args:
        structure: its name.
        layout: the parameters.
        columns: outputs times samples.
        item: bytes of one number.
        diagonal: parameters that have no Kronecker form and that `kronecker` keeps as a diagonal.
    """
    total = layout.total
    if structure == "diagonal":
        return total * item
    if structure == "full":
        return total * total * item
    if structure == "lowrank":
        return total * columns * item
    if structure == "block":
        sizes = [sum(layout.sizes[name] for name in names) for names in layout.by_module().values()]
        return sum(size * size for size in sizes) * item
    entries = 0
    for name, shape in layout.shapes.items():
        if name in diagonal:
            entries += prod(shape)
        else:
            entries += shape[0] ** 2 + prod(shape[1:]) ** 2 if len(shape) > 1 else prod(shape) ** 2
    return entries * item


def check_memory(
    structure: str,
    layout: Layout,
    like: Tensor,
    columns: int,
    limit: int | None,
    diagonal: Collection[str] = frozenset(),
) -> None:
    """Refuse a structure that cannot fit, and say what would; arguments as in `result_bytes`."""
    item = like.element_size()
    needed = result_bytes(structure, layout, columns, item, diagonal)
    if structure in ("full", "block", "lowrank"):
        needed *= 2  # the sum, and one product while it is added
    if limit is None and needed <= SMALL_BYTES:
        return
    allowed = allowed_bytes(like.device, limit)
    if needed <= allowed:
        return
    sizes = {
        name: result_bytes(name, layout, columns, item, diagonal)
        for name in ("diagonal", "kronecker", "block", "lowrank", "full")
    }
    fitting = [
        f"'{name}' ({gigabytes(size)})" for name, size in sizes.items() if 2 * size <= allowed and name != structure
    ]
    advice = f"structure={' or '.join(fitting)}" if fitting else "fewer parameters (parameters=...)"
    raise MemoryBudgetError(
        f"structure='{structure}' over {layout.total:,} parameters takes about {gigabytes(needed)}, but "
        f"{gigabytes(allowed)} may be used. Use {advice}, or choose a subset with parameters=..., or raise "
        "memory_limit."
    )


def chunk_bytes(limit: int | None) -> int:
    """Return the target size of a chunk of columns under a memory limit."""
    return CHUNK_BYTES if limit is None else max(2**16, min(CHUNK_BYTES, limit // 8))


def gigabytes(size: float) -> str:
    """Return a readable amount of memory."""
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("kB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def made_within_memory(make: Callable[[], Made], what: str, copies: int = 1) -> Made:
    """Return the networks that `make` builds, after building them without entries and comparing their size.

    Args:
        make: Builds a module, or a tuple of modules; called twice.
        what: What was asked for, for the message.
        copies: How often the weights have to fit: 4 where they will be trained (gradient and Adam's two moments).

    Raises:
        MemoryBudgetError: They take more than is free.
    """
    remedy = "take fewer units"
    try:
        with torch.device("meta"):
            built = make()
        modules = [built] if isinstance(built, nn.Module) else list(built)  # type: ignore[call-overload]
        size = copies * sum(p.numel() * p.element_size() for module in modules for p in module.parameters())
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes that no integer of torch's holds
        raise MemoryBudgetError(f"{what} makes layers larger than any memory; {remedy}.") from error
    if size > SMALL_BYTES and size > (free := RESERVE * available_bytes(torch.device("cpu"))):
        use = "takes" if copies == 1 else "takes in training"
        raise MemoryBudgetError(
            f"{what} makes a network that {use} {gigabytes(size)}, but {gigabytes(free)} are free; {remedy}."
        )
    try:
        return make()
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise MemoryBudgetError(f"{what} makes a network of {gigabytes(size)}, which is refused; {remedy}.") from error


class AllocationMeter(TorchDispatchMode):
    """Count the bytes of the tensors that are made while it is active, and the most that were alive at once.

    Views count once, with what they are views of. It works on real tensors as well as on fake ones, which it takes for
    real.

    Attributes:
        live: bytes alive now.
        peak: the most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and take note of new storages among its results."""
        before = {leaf.untyped_storage()._cdata for leaf in tensors_in((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for leaf in tensors_in(result):
            storage = leaf.untyped_storage()
            key = storage._cdata
            size = storage.nbytes()
            # a symbolic size belongs to a trace that some releases of torch show to modes from outside: not memory
            if key not in self._sizes and key not in before and isinstance(size, int):
                self._sizes[key] = size
                self.live += self._sizes[key]
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._release, key).atexit = False
        return result

    def _release(self, key: int) -> None:
        """Subtract a tensor that was freed."""
        self.live -= self._sizes.pop(key, 0)


def tensors_in(tree: Any) -> list[Tensor]:
    """Return every tensor in a pytree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]

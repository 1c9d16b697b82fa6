"""Compare the size to which a file unpacks, from its header, with a memory budget before it is unpacked."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod

import numpy as np
import torch

from marquis.errors import MemoryBudgetError

SHARE = 0.5
"""Share of the free memory that data may take by default: training needs some as well."""

_allowed: ContextVar[int | None] = ContextVar("marquis_max_bytes", default=None)


@contextmanager
def allowing(max_bytes: int | None) -> Iterator[None]:
    """Set the budget for what is read in a block; None leaves it as it is."""
    token = _allowed.set(_allowed.get() if max_bytes is None else max_bytes)
    try:
        yield
    finally:
        _allowed.reset(token)


def budget() -> int:
    """Return the bytes that data may take: the caller's limit, or a share of what is free."""
    from marquis.curvature.planning.memory import available_bytes  # heavy, and reading data is to stay light

    limit = _allowed.get()
    return int(SHARE * available_bytes(torch.device("cpu"))) if limit is None else limit


def require_fits(needed: int, where: object, what: str) -> None:
    """Refuse data that would take more memory than is allowed.

    Raises:
        MemoryBudgetError: It would not fit.
    """
    limit = budget()
    if needed > limit:
        raise MemoryBudgetError(
            f"{where} unpacks to {needed / 2**20:,.0f} MB ({what}), more than the {limit / 2**20:,.0f} MB that data "
            "may take here; read a part of it, or allow more with max_bytes (`marquis --max-bytes BYTES COMMAND ...`)."
        )


def bytes_in_npz(content: bytes) -> int:
    """Return the unpacked size that a zip archive states; `zipfile` never unpacks more than it states."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError):
        return 0  # refused with its reason when it is read


def bytes_in_npy(content: bytes) -> int:
    """Return the size that the header of an npy file states."""
    try:
        file = io.BytesIO(content)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, OSError):
        return 0  # refused with its reason when it is read
    return prod(shape) * dtype.itemsize

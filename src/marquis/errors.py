"""Every error that Marquis raises on purpose.

Each message says what went wrong, where, and what to do instead. Catch `MarquisError` to catch them all.
"""

from __future__ import annotations


class MarquisError(Exception):
    """Base of all errors that Marquis raises on purpose."""


class DataError(MarquisError, ValueError):
    """The data cannot be used as given: wrong shape, NaN, empty loader, corrupt file."""


class UnsupportedOperationError(MarquisError, NotImplementedError):
    """A network, operation or combination of options that has no exact answer here."""


class MemoryBudgetError(MarquisError, MemoryError):
    """The work would not fit the memory budget; the message names alternatives."""


class ModelMismatchError(MarquisError, ValueError):
    """Saved state and model do not belong together: names, shapes or kinds differ."""


class NumericalError(MarquisError, ArithmeticError):
    """A matrix that is singular or not positive definite where it has to be."""


class StorageError(MarquisError, OSError):
    """A file cannot be read, written or locked: disk full, read-only, in use by another process, not a regular file."""

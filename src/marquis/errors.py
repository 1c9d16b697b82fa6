"""Define every error that Marquis raises on purpose.

Each message says what went wrong, where, and what to do instead. Catch `MarquisError` to catch them all.
"""

from __future__ import annotations


class MarquisError(Exception):
    """Report a problem on purpose: the base of all errors that Marquis raises."""


class DataError(MarquisError, ValueError):
    """Report data that cannot be used: wrong shape, NaN, empty loader, corrupt file."""


class UnsupportedOperationError(MarquisError, NotImplementedError):
    """Report a network, operation or combination of options that has no exact answer here."""


class MemoryBudgetError(MarquisError, MemoryError):
    """Report that the work would not fit the memory budget; the message names alternatives."""


class ModelMismatchError(MarquisError, ValueError):
    """Report that saved state and model do not belong together: names, shapes or kinds differ."""


class NumericalError(MarquisError, ArithmeticError):
    """Report numbers that are not finite, or a matrix that is singular or not positive definite where it has to be."""


class StorageError(MarquisError, OSError):
    """Report a file that cannot be read, written or locked: disk full, read-only, in use, not a regular file."""

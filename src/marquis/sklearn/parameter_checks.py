"""Check the parameters of an estimator, with errors that name them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from marquis.arguments import describe_value
from marquis.errors import DataError


def is_whole(value: Any, least: int) -> bool:
    """Return whether this is a whole number, at least `least`; 2.0 is one, as searches over numpy ranges give it."""
    return is_number(value) and int(value) == value and value >= least


def is_number(value: Any) -> bool:
    """Return whether this is a finite real number."""
    return isinstance(value, Real) and math.isfinite(value)


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return a count as an int.

    Raises:
        DataError: It is none, or smaller than `least`.
    """
    if not is_whole(value, least):
        raise DataError(f"{name}={value!r}: a whole number from {least} on.")
    return int(value)


def truth(name: str, value: Any) -> bool:
    """Return a switch as a bool; 0 and 1 are switches too.

    Raises:
        DataError: It is none.
    """
    if not (is_number(value) and value in (0, 1)) and not isinstance(value, np.bool_):
        raise DataError(f"{name} is {describe_value(value)}; True or False is needed.")
    return bool(value)


def positive(name: str, value: Any) -> float:
    """Return a positive finite number as a float.

    Raises:
        DataError: It is none.
    """
    if not (is_number(value) and value > 0):
        raise DataError(f"{name}={value!r}: a positive number.")
    return float(value)


def fraction(name: str, value: Any) -> float:
    """Return a fraction, from 0 to below 1, as a float.

    Raises:
        DataError: It is none.
    """
    if not (is_number(value) and 0 <= value < 1):
        raise DataError(f"{name}={value!r}: a fraction from 0 to below 1.")
    return float(value)


def layer_sizes(name: str, sizes: Any) -> list[int]:
    """Return sizes of hidden layers; one number for one layer.

    Raises:
        DataError: One of them is no whole number from 1 on.
    """
    listed = list(sizes) if isinstance(sizes, Iterable) else [sizes]
    if not all(is_whole(size, 1) for size in listed):
        raise DataError(f"{name}={sizes!r}: sizes are whole numbers from 1 on.")
    return [int(size) for size in listed]

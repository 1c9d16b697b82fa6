"""Check the parameters of an estimator; each function returns the value, or raises a `DataError` that names it."""

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
    """Return a count of at least `least` as an int."""
    _require(is_whole(value, least), name, value, f"a whole number from {least} on")
    return int(value)


def truth(name: str, value: Any) -> bool:
    """Return a switch as a bool; 0 and 1 are switches too."""
    if not (is_number(value) and value in (0, 1)) and not isinstance(value, np.bool_):
        raise DataError(f"{name} is {describe_value(value)}; True or False is needed.")
    return bool(value)


def positive(name: str, value: Any) -> float:
    """Return a positive finite number as a float."""
    _require(is_number(value) and value > 0, name, value, "a positive number")
    return float(value)


def fraction(name: str, value: Any) -> float:
    """Return a fraction, from 0 to below 1, as a float."""
    _require(is_number(value) and 0 <= value < 1, name, value, "a fraction from 0 to below 1")
    return float(value)


def layer_sizes(name: str, sizes: Any) -> list[int]:
    """Return sizes of hidden layers; one number for one layer."""
    listed = list(sizes) if isinstance(sizes, Iterable) else [sizes]
    _require(all(is_whole(size, 1) for size in listed), name, sizes, "sizes are whole numbers from 1 on")
    return [int(size) for size in listed]


def _require(condition: bool, name: str, value: Any, what: str) -> None:
    """Refuse a value by the parameter's name unless the condition holds."""
    if not condition:
        raise DataError(f"{name}={value!r}: {what}.")

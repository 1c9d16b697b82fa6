"""Check the arguments of public functions against their annotations, so that a wrong one is named where it enters."""

from __future__ import annotations

import collections.abc
import difflib
import functools
import inspect
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from marquis.errors import DataError

if typing.TYPE_CHECKING:
    import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class")
Check = Callable[[Any], bool]

LARGEST_COUNT = 10**6
"""Largest number of samples, bins or repetitions: more would not end, and are taken for a mistake."""
COUNTS = frozenset(("samples", "n_samples", "networks", "members", "averaged", "repetitions", "rounds"))
COUNTS |= {"epochs", "steps", "sweeps", "iterations", "latent", "channels", "detectors", "probes", "restarts"}
COUNTS |= {"copies", "points", "max_epochs", "hyper_steps", "inputs", "outputs", "hidden", "map_samples"}
COUNTS |= {"bins", "edge", "num_workers"}
"""Arguments that say how often something is done or how many there are: at most `LARGEST_COUNT`."""


@dataclass(frozen=True)
class Range:
    """Say in an annotation, `Annotated[int, Range(...)]`, which numbers an argument may be; `checked` refuses others.

    Attributes:
        holds: Whether a number is one of them.
        text: What they are, for the message.
    """

    holds: Check
    text: str


AtLeastOne = Annotated[int, Range(lambda value: value >= 1, "a whole number from 1")]
FromZero = Annotated[int, Range(lambda value: value >= 0, "a whole number from 0")]
Positive = Annotated[float, Range(lambda value: 0 < value < math.inf, "a positive, finite number")]
NotNegative = Annotated[float, Range(lambda value: 0 <= value < math.inf, "a finite number from 0")]
Share = Annotated[float, Range(lambda value: 0 < value < 1, "a number between 0 and 1")]
_RANGES = dict(AtLeastOne=AtLeastOne, FromZero=FromZero, Positive=Positive, NotNegative=NotNegative, Share=Share)

_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_LISTS = (list, tuple, range)
_PLAIN = frozenset((type(None), str, bool, int, float, dict, list, tuple, types.FunctionType))
_CONTAINERS = (collections.abc.Iterable, collections.abc.Sequence, collections.abc.Mapping, collections.abc.Collection)


def checked_arrays(function: Function) -> Function:
    """Check arguments as `checked` does, where tensors may also be arrays, tables or lists of numbers."""
    return checked(function, arrays=True)


def checked_on_any_device(function: Function) -> Function:
    """Check arguments as `checked` does, where all tensors may be on the device meta: only shapes are computed."""
    return checked(function, meta=True)


def checked(
    function: Function, *, arrays: bool = False, nan: bool = False, meta: bool = False, kind_of_counts: bool = True
) -> Function:
    """Refuse arguments that are not what the annotations say, before the function runs.

    Only what can be seen at a glance: the kind of a value and of the entries of a list, and how many arguments a
    callable takes; not the entries of a tensor. Names from a fixed set (`Literal`) are left to the function, which has
    a better message, and so is the kind of `COUNTS` without `kind_of_counts`. A number may be NaN only with `nan`,
    a tensor have no entries only with `meta`. Costs a few microseconds a call.

    Raises:
        DataError: An argument is of another kind; names it, what it is, and what was expected.
    """
    signature = inspect.signature(function)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    positional = [name for name, kind in kinds.items() if kind is _EITHER]
    plain = all(kind in (_EITHER, inspect.Parameter.KEYWORD_ONLY) for kind in kinds.values())
    required = {name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty}

    @functools.cache
    def checks() -> dict[str, tuple[Check, str]]:
        # later than the definition: annotations may name what is only imported for type checkers
        by_name = {}
        for name, parameter in signature.parameters.items():
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if variadic or parameter.annotation is parameter.empty:
                continue
            if arrays and parameter.annotation == "Data":
                continue
            check = _check_of(_resolved(parameter.annotation, function), arrays, meta)
            if check is not None and name in COUNTS and not kind_of_counts:
                check = lambda value: True  # noqa: E731
            expected = re.sub(r"\w+", _in_words, str(parameter.annotation))
            if check is not None and (name in COUNTS or (name == "n" and not nan)):  # a result may count more data
                by_name[name] = (_bounded(check), f"{expected}, at most {LARGEST_COUNT}")
            elif check is not None:
                by_name[name] = (check if nan else _never_nan(check), expected)
        return by_name

    title = function.__qualname__.removesuffix(".__init__")  # users call the class

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        bound = dict(zip(positional, arguments, strict=False)) | named
        complete = len(bound) == len(arguments) + len(named) and required <= bound.keys() <= kinds.keys()
        try:
            if not (plain and complete):  # a third of the time, and the message where something is wrong
                bound = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            raise DataError(f"{title}: {error}.{_meant(named, list(kinds))}") from None
        places = {_device(value) for value in bound.values()} - {None}
        if "meta" in places and len(places) > 1:
            raise DataError(f"{title}: some tensors have no entries (device meta) and others have.")
        for name, (check, expected) in checks().items():
            if name in bound and not check(bound[name]):
                value, remedy = describe_value(bound[name]), _remedy(bound[name], expected)
                raise DataError(f"{title}: {name} is {value}, but has to be {expected}.{remedy}")
        return function(*arguments, **named)

    wrapper.is_checked = True  # type: ignore[attr-defined]
    return typing.cast(Function, wrapper)


def _meant(named: collections.abc.Iterable[str], known: list[str]) -> str:
    """Return which argument an unknown name may stand for, as in other packages, or all that there are."""
    for name in named:
        if name not in known:
            nearest = [k for k in known if k in name] or difflib.get_close_matches(name, known, n=1)
            listed = ", ".join(k for k in known if k not in ("self", "cls"))
            return f" Did you mean {max(nearest, key=len)!r}?" if nearest else f" It takes {listed}."
    return ""


def _remedy(value: Any, expected: str) -> str:
    """Return what to do about a value of another kind, as the end of a message."""
    if "Iterable[Any]" in expected:
        problem = "Its rows are no batches" if hasattr(value, "shape") else "It cannot be iterated"
        return f" {problem}; give a DataLoader or a list of batches."
    if "Tensor" not in expected:
        return ""
    if hasattr(value, "to_numpy"):
        return " Pass torch.as_tensor of its to_numpy()."
    if type(value).__name__ == "ndarray" or isinstance(value, _LISTS):
        return " Pass torch.as_tensor of it."
    if "sparse" in str(getattr(value, "layout", "")):
        return " Pass its to_dense()."
    return " It has no entries (device meta)." if _device(value) == "meta" else ""


def _in_words(name: re.Match[str]) -> str:
    """Return what a part of an annotation stands for: a range of numbers in words, anything else as it is."""
    return typing.get_args(_RANGES[name[0]])[1].text if name[0] in _RANGES else name[0]


def _device(value: Any) -> str | None:
    """Return the kind of device of a tensor; None for anything else."""
    if type(value) in _PLAIN:  # most values of most calls
        return None
    return getattr(getattr(value, "device", None), "type", None)


def checked_methods(cls: type[Class]) -> type[Class]:
    """Check the arguments of a class's constructor and of its own public methods, as `checked` does for a function.

    Constructors of scikit-learn's estimators are left alone: by its rules they store what they get, and `fit` checks.
    So is the kind of the counts that their methods take, which say more about what is needed.
    Those of data classes, which hold results, take NaN: a measure may be undefined.
    """
    for name, value in list(vars(cls).items()):
        kind = type(value) if isinstance(value, (classmethod, staticmethod)) else None
        function = value.__func__ if kind else value
        public = (name == "__init__" and not hasattr(cls, "get_params")) or not name.startswith("_")
        if public and inspect.isfunction(function) and not hasattr(function, "is_checked"):
            nan = name == "__init__" and hasattr(cls, "__dataclass_fields__")
            wrapped = checked(function, nan=nan, kind_of_counts=not hasattr(cls, "get_params"))
            setattr(cls, name, kind(wrapped) if kind else wrapped)
    return cls


def describe_value(value: Any) -> str:
    """Describe a value in a few words for a message: its type, and its shape or contents where they are short."""
    kind = type(value).__name__ if not isinstance(value, type) else f"the class {value.__name__}"
    if isinstance(value, (str, bytes, int, float, complex)):
        text = repr(value)
        return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})"
    shape = getattr(value, "shape", None)
    if shape is not None:
        sparse = "" if str(getattr(value, "layout", "torch.strided")) == "torch.strided" else "sparse "
        return f"a {sparse}{kind} of shape {list(shape)} ({getattr(value, 'dtype', '')})"
    if isinstance(value, (list, tuple)) and value:
        return f"a {kind} of {', '.join(sorted({type(entry).__name__ for entry in value}))}"
    return kind if isinstance(value, type) or value is None else f"a {kind}"


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Return numbers in a tensor, an array, a table or a list as an array of double precision.

    Raises:
        DataError: It does not hold real numbers, or they cannot be read (sparse, device meta).
    """
    import numpy as np

    try:
        plain = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        array = np.asarray(plain)
        if array.dtype.kind in "biuf":
            return array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, sparse tensors, no entries
        pass
    raise DataError(f"{name} is {describe_value(value)}; an array or a list of numbers is needed.")


def require_probabilities(probs: np.ndarray) -> None:
    """Refuse what is no table `[n, classes]` of probabilities, up to the rounding of half precision."""
    import numpy as np

    if probs.ndim != 2 or probs.shape[1] == 0:
        raise DataError(f"probs has shape {probs.shape}, but has to be probabilities [n, classes].")
    if not np.all(probs >= 0) or np.any(np.abs(probs.sum(1) - 1) > 1e-2):
        raise DataError("probs must not be negative and add up to 1 in each row: apply softmax to logits first.")


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return the annotation as an object; `Any` where it names something that is not there at run time."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))  # our own source, not a user's
    except (NameError, TypeError, SyntaxError):
        return Any


def _is_array(value: Any, meta: bool = False) -> bool:
    """Return whether this is a dense tensor (with `meta` also one without entries), or may hold numbers otherwise."""
    device = _device(value)
    if device is not None:
        return (meta or device != "meta") and str(getattr(value, "layout", "torch.strided")) == "torch.strided"
    return hasattr(value, "__array__") or isinstance(value, (numbers.Number, *_LISTS))


def _takes(function: Any, count: int) -> bool:
    """Return whether a callable takes so many arguments by position; True where it does not say."""
    try:  # of a module, whose `__call__` says nothing, by its `forward`
        inspect.signature(getattr(function, "forward", function)).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # built in
        pass
    return True


def _container_check(concrete: Any, entry: Check | None, arrays: bool) -> Check:
    """Return a check of a container: no text, which is one by accident, and in lists every entry is right."""

    def check(value: Any) -> bool:
        if isinstance(value, (str, bytes, bytearray, type)) or not isinstance(value, concrete):
            return False
        if getattr(value, "shape", None) == ():  # a number in a tensor, which says that it can be iterated
            return False
        if concrete is collections.abc.Iterable and entry is None and hasattr(value, "shape"):
            return False  # rows, where batches are needed
        if entry is None or not isinstance(value, _LISTS):
            return True
        # where arrays will do, so do their numbers: list(tensor)
        return all(entry(item) or (arrays and getattr(item, "shape", None) == ()) for item in value)

    return check


def _bounded(check: Check) -> Check:
    """Return the check, for numbers up to `LARGEST_COUNT` only."""
    return lambda value: check(value) and not (isinstance(value, numbers.Real) and value > LARGEST_COUNT)  # type: ignore[operator]


def _never_nan(check: Check) -> Check:
    """Return the check, for anything but NaN."""
    return lambda value: check(value) and not (isinstance(value, float) and value != value)


def _check_of(annotation: Any, arrays: bool = False, meta: bool = False) -> Check | None:
    """Return a check of the kind, or None where anything goes."""
    origin = typing.get_origin(annotation)
    if annotation is Any or annotation is object:
        return None
    if origin in (typing.Union, types.UnionType):
        parts = [_check_of(part, arrays, meta) for part in typing.get_args(annotation)]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else lambda value: any(part(value) for part in known)
    if origin is Annotated:
        kind, *extras = typing.get_args(annotation)
        check, ranges = _check_of(kind, arrays, meta), [extra for extra in extras if isinstance(extra, Range)]
        return None if check is None else lambda value: check(value) and all(known.holds(value) for known in ranges)
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    if annotation is bool:
        return lambda value: type(value).__name__ in ("bool", "bool_")  # NumPy's too, without importing it
    if annotation is int:
        return lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if annotation is float:
        return lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool)
    if origin is typing.Literal:
        others = [known for known in typing.get_args(annotation) if not isinstance(known, str)]
        return lambda value: isinstance(value, str) or any(type(value) is type(o) and value == o for o in others)
    if origin is collections.abc.Callable:
        takes = typing.get_args(annotation)[:1]
        count = len(takes[0]) if takes and isinstance(takes[0], list) else None
        return lambda value: callable(value) and not isinstance(value, type) and (count is None or _takes(value, count))
    if annotation is os.PathLike or origin is os.PathLike:
        return lambda value: isinstance(value, os.PathLike)
    concrete = origin or annotation
    if getattr(concrete, "__name__", "") == "Tensor" and arrays:
        return _is_array  # of numbers or not is named by `as_tensor`
    if getattr(concrete, "__name__", "") == "Tensor":
        return lambda value: isinstance(value, concrete) and _is_array(value, meta)
    ordinary = isinstance(concrete, type) and (
        not getattr(concrete, "_is_protocol", False) or concrete.__name__ == "Measurement"
    )
    if not ordinary and concrete not in _CONTAINERS:
        return None
    entries = typing.get_args(annotation)
    alike = concrete is list or (concrete is tuple and entries[1:] == (Ellipsis,))
    if alike or (concrete in _CONTAINERS and concrete is not collections.abc.Mapping):
        return _container_check(concrete, _check_of(entries[0], arrays, meta) if entries else None, arrays)
    if concrete in (collections.abc.Mapping, dict) and entries:
        kind = entries[1]
        plain = not arrays and getattr(kind, "__name__", "") == "Tensor"  # of many tensors in every call the kind alone
        of_value = (lambda item: isinstance(item, kind)) if plain else _check_of(kind, arrays, meta)
        if of_value is not None:
            return lambda value: isinstance(value, concrete) and all(map(of_value, value.values()))
    return lambda value: isinstance(value, concrete) and not isinstance(value, type)

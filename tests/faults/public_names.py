"""Every public callable of the package by name: functions, classes and the methods that they define."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

MODULES = [
    "marquis",
    "autoencoders",
    "conformal",
    "curvature",
    "curvature.linop.linear_operator",
    "data",
    "evidence",
    "explorer",
    "integrations.botorch",
    "integrations.hub",
    "integrations.lightning",
    "integrations.pyod",
    "laplace",
    "likelihoods",
    "online",
    "plots",
    "predictive",
    "priors",
    "report",
    "run",
    "scores",
    "sklearn",
    "structures",
    "subnetwork",
    "tasks.calibration",
    "tasks.generation",
    "tasks.geometry",
    "tasks.imputation",
    "tasks.ood",
    "tasks.ranking",
    "tasks.semi_supervised",
    "testing",
    "tomography",
    "variational",
]


def public_callables() -> dict[str, Callable[..., Any]]:
    """Return functions, classes and public methods by the shortest name under which a user finds them."""
    result: dict[str, Callable[..., Any]] = {}
    seen: set[int] = set()
    for short in MODULES:
        module = importlib.import_module("marquis" if short == "marquis" else f"marquis.{short}")
        prefix = "" if short == "marquis" else f"{short}."
        for name, value in _names(module):
            for full, target in _targets(f"{prefix}{name}", value):
                if id(inspect.unwrap(target)) not in seen:
                    seen.add(id(inspect.unwrap(target)))
                    result[full] = target
    return result


def _names(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what `__all__` lists; where there is none, what the module itself defines."""
    for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
        value = getattr(module, name)
        own = hasattr(module, "__all__") or getattr(value, "__module__", "") == module.__name__
        if own and callable(value) and getattr(value, "__module__", "").startswith("marquis"):
            yield name, value


def _targets(name: str, value: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the callable and, of a class, the public methods that it or a base of ours defines."""
    if not inspect.isclass(value):
        yield name, value
        return
    if issubclass(value, (BaseException, Warning)):
        return
    yield name, value
    for attribute in dir(value):
        owner = next((base for base in value.__mro__ if attribute in vars(base)), None)
        if attribute.startswith("_") or owner is None or not owner.__module__.startswith("marquis"):
            continue
        method = inspect.getattr_static(value, attribute)
        method = getattr(method, "__func__", method)
        if inspect.isfunction(inspect.unwrap(method)):
            yield f"{name}.{attribute}", method

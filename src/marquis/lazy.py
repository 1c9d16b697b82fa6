"""Import names of a package when they are first used (PEP 562), and resolve deprecated names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from marquis.options import warn_renamed


def lazy_names(
    package: str, homes: Mapping[str, str], new_names: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package.

    Args:
        package: The package's full name.
        homes: The module, relative to the package, in which each name is defined.
        new_names: The present name for each deprecated one, which then warns.
    """

    def load(name: str) -> Any:
        if new_names and name in new_names:
            warn_renamed(f"{package}.{name}", new_names[name])
            name = new_names[name]
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load

"""Everything that can change what a model computes between two calls, as one comparable value.

Module types and identities, train/eval flags, plain attributes (also inside lists and dictionaries), functions kept as
attributes, hooks, which parameters are tied, and constant tensors with their version (changed in place or not). For a
function also what it refers to: closures, defaults, and the modules and plain values among its globals. Other objects
count by identity: looking inside them would cost more than it helps.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
INTERNAL = frozenset(vars(nn.Module())) - {"training"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
DEPTH = 4
"""How far containers within containers, and functions that call functions, are followed."""


class Same:
    """One particular object, without keeping it alive; never equal to a later one at the same address."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        try:
            self.reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self.reference = lambda: value

    def __hash__(self) -> int:
        """Identity."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Whether both are the same object, and it is alive."""
        if self is other:
            return True
        if not isinstance(other, Same) or self.number != other.number:
            return False
        mine = self.reference()
        return mine is not None and mine is other.reference()


def fingerprint(model: Any) -> Hashable:
    """Two calls may share a captured network if this has not changed in between."""
    return _Describer().model(model)


class _Describer:
    def __init__(self) -> None:
        self.order: dict[int, int] = {}  # parameters by first appearance: the same number means tied
        self.visited: set[int] = set()

    def model(self, model: Any) -> Hashable:
        if isinstance(model, (nn.Module, types.FunctionType, types.MethodType, functools.partial)):
            return self.value(model, DEPTH)
        return (self.value(type(model).__call__, DEPTH), self.value(getattr(model, "__dict__", {}), DEPTH))

    def module(self, module: nn.Module) -> Hashable:
        return tuple((name, *self._own(part)) for name, part in module.named_modules(remove_duplicate=False))

    def _own(self, module: nn.Module) -> Iterator[Hashable]:
        yield type(module)
        yield Same(module)
        yield Same(type(module).forward)
        for name, value in vars(module).items():
            if name not in INTERNAL:
                yield name, self.value(value, DEPTH)
        for name in HOOKS:
            yield tuple((key, Same(hook)) for key, hook in getattr(module, name).items())
        for name, parameter in module._parameters.items():
            yield name, self.order.setdefault(id(parameter), len(self.order))
        for name, buffer in module._buffers.items():
            yield name, None if buffer is None else (tuple(buffer.shape), buffer.dtype, buffer.device)

    def value(self, value: Any, depth: int) -> Hashable:
        if isinstance(value, PLAIN):
            return type(value), value
        if isinstance(value, Tensor):
            return Same(value), None if value.is_inference() else value._version
        if depth == 0 or isinstance(value, (types.ModuleType, type)):
            return Same(value)
        if isinstance(value, nn.Module):
            if id(value) in self.visited:
                return Same(value)
            self.visited.add(id(value))
            return self.module(value)
        if isinstance(value, dict):
            return tuple((self.value(k, depth - 1), self.value(v, depth - 1)) for k, v in value.items())
        if isinstance(value, (tuple, list)):
            return tuple(self.value(item, depth - 1) for item in value)
        if isinstance(value, (set, frozenset)):
            return frozenset(self.value(item, depth - 1) for item in value)
        if isinstance(value, functools.partial):
            return tuple(self.value(part, depth - 1) for part in (value.func, value.args, value.keywords))
        if isinstance(value, types.MethodType):
            return self.value(value.__func__, depth), self.value(value.__self__, depth - 1)
        if isinstance(value, types.FunctionType):
            return Same(value), self._surroundings(value, depth - 1)
        return Same(value)

    def _surroundings(self, function: types.FunctionType, depth: int) -> Hashable:
        """What a function reads besides its arguments."""
        if id(function) in self.visited or (function.__module__ or "").partition(".")[0] == "torch":
            return None
        self.visited.add(id(function))
        found: list[Hashable] = [self.value(function.__defaults__, depth), self.value(function.__kwdefaults__, depth)]
        for cell in function.__closure__ or ():
            try:
                found.append(self.value(cell.cell_contents, depth))
            except ValueError:  # not filled yet
                found.append(None)
        for name in _names(function.__code__):
            if name in function.__globals__:
                found.append((name, self.value(function.__globals__[name], depth)))
        return tuple(found)


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names that a function's code may look up, nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

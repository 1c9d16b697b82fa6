"""List everything that can change what a model computes between two calls, cheap to make and to compare.

Module types and identities, train/eval flags, plain attributes (also inside lists and dictionaries), functions kept as
attributes, hooks, which parameters are tied, and constant tensors with their version (changed in place or not). For a
function also what it refers to: closures, defaults, and the modules and plain values among its globals. Other objects
count by identity: looking inside them would cost more than it helps, and `cache.py` compares outputs instead.

Every curvature call makes this list once, so it holds plain values and addresses only. An address means nothing after
its object has died; `Fingerprint` notices that through weak references, which it makes once, when it is stored.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout})
MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"training"}
DEPTH = 4
"""How far containers within containers, and functions that call functions, are followed."""


class Description:
    """Describe everything that a model reads, anew for every call. Cost: about 5 µs per module.

    Attributes:
        atoms: the description, flat: types, plain values, lengths of containers, versions and addresses.
        by_address: the objects that are described by their address.
        complete: whether the model consists of torch's own layers without hooks, so that nothing else can change it.
    """

    def __init__(self, model: Any) -> None:
        self.atoms: list[Any] = []
        self.by_address: list[Any] = []
        self._tied: dict[int, int] = {}  # parameters by first appearance: the same number means tied
        self._visited: set[int] = set()
        self.complete = isinstance(model, nn.Module)
        if isinstance(model, (nn.Module, types.FunctionType, types.MethodType, functools.partial)):
            self._value(model, DEPTH)
        else:
            self._value(type(model).__call__, DEPTH)
            self._value(getattr(model, "__dict__", {}), DEPTH)

    def _address(self, value: Any) -> None:
        """Add an object by its address; it is kept alive through a reference."""
        self.atoms.append(id(value))
        self.by_address.append(value)

    def _module(self, module: nn.Module) -> None:
        """Add a module: its type, attributes, hooks, tensors and submodules."""
        self._address(module)
        if id(module) in self._visited:
            return
        self._visited.add(id(module))
        atoms, kind = self.atoms, type(module)
        atoms.append(kind)
        self._address(kind.forward)
        if not kind.__module__.startswith("torch.nn.") or module._forward_hooks or module._forward_pre_hooks:
            self.complete = False
        for name, value in module.__dict__.items():
            if name not in MODULE_INTERNALS:
                if type(value) in PLAIN:
                    atoms += (name, type(value), value)
                else:
                    atoms.append(name)
                    self._value(value, DEPTH)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            atoms.append(len(hooks))
            for key, hook in hooks.items():
                atoms.append(key)
                self._address(hook)
        tied = self._tied
        for name, parameter in module._parameters.items():
            atoms += (name, tied.setdefault(id(parameter), len(tied)))
        for name, buffer in module._buffers.items():
            atoms += (name, None) if buffer is None else (name, buffer.shape, buffer.dtype, buffer.device)
        children = module._modules
        atoms.append(len(children))
        for name, child in children.items():
            atoms.append(name)
            if child is not None:
                self._module(child)

    def _value(self, value: Any, depth: int) -> None:
        """Add an attribute's value: numbers as they are, containers item by item, tensors with their version."""
        kind = type(value)
        self.atoms.append(kind)
        if kind in PLAIN:
            self.atoms.append(value)
        elif isinstance(value, Tensor):
            self._address(value)
            self.atoms.append(None if value.is_inference() else value._version)
        elif depth == 0 or isinstance(value, (types.ModuleType, type)):
            self._address(value)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, (dict, tuple, list)):
            self.atoms.append(len(value))
            for item in itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value:
                self._value(item, depth - 1)
        elif isinstance(value, (set, frozenset)):
            self.atoms.append(frozenset((type(v), v if type(v) in PLAIN else id(v)) for v in value))
            self.by_address.extend(value)
        elif isinstance(value, functools.partial):
            self._value((value.func, value.args, value.keywords), depth)
        elif isinstance(value, types.MethodType):
            self._value(value.__func__, depth)
            self._value(value.__self__, depth - 1)
        else:
            self._address(value)
            if isinstance(value, types.FunctionType):
                self._surroundings(value, depth - 1)

    def _surroundings(self, function: types.FunctionType, depth: int) -> None:
        """Describe what a function reads besides its arguments."""
        if id(function) in self._visited or (function.__module__ or "").partition(".")[0] == "torch":
            return
        self._visited.add(id(function))
        self._value(function.__defaults__, depth)
        self._value(function.__kwdefaults__, depth)
        for cell in function.__closure__ or ():
            try:
                self._value(cell.cell_contents, depth)
            except ValueError:  # not filled yet
                self.atoms.append(None)
        read = function.__globals__
        for name in _global_names(function.__code__):
            if name in read:
                self.atoms.append(name)
                self._value(read[name], depth)


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the global names that a function's code may look up, nested functions included."""
    nested = [name for inner in code.co_consts if isinstance(inner, types.CodeType) for name in _global_names(inner)]
    return (*code.co_names, *nested)


class Fingerprint:
    """Hold what a model looked like at one time; it keeps no part of the model alive.

    Attributes:
        expired: whether an object that was described by its address has died since; nothing matches then.
    """

    def __init__(self, description: Description) -> None:
        self._atoms = description.atoms
        self._kept: list[Any] = []
        self.expired = False
        for described in description.by_address:
            try:
                self._kept.append(weakref.ref(described, self._expire))
            except TypeError:  # an object that cannot be referred to weakly
                self._kept.append(described)

    def matches(self, description: Description) -> bool:
        """Return whether a later description of the model is the same as this one."""
        return not self.expired and self._atoms == description.atoms

    def _expire(self, _: Any) -> None:
        """Note that an object of the fingerprint is gone."""
        self.expired = True

"""Map named parameters to slices of the flattened parameter vector."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from marquis.arguments import checked
from marquis.errors import DataError, ModelMismatchError

Scalar: TypeAlias = float | Tensor
"""A Python number or a tensor without axes; the latter carries gradients."""

DiagonalLike: TypeAlias = float | Tensor | Mapping[str, float | Tensor]
"""What `add_diagonal` takes: a scalar, a vector `[P]`, or one scalar or tensor per parameter name."""


@dataclass(frozen=True, init=False)
class Layout:
    """Hold ordered names and shapes of parameters, and their places in one flat vector.

    The order is the caller's; each tensor is flattened row-major. Two layouts are equal when names, shapes
    and order are.

    Args:
        shapes: Shape of every parameter, in order.
    """

    items: tuple[tuple[str, tuple[int, ...]], ...]

    def __init__(self, shapes: Mapping[str, Iterable[int]]) -> None:
        """Store names and shapes, which cannot change afterwards."""
        items = tuple((name, tuple(int(length) for length in shape)) for name, shape in shapes.items())
        object.__setattr__(self, "items", items)

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> Layout:
        """Return the layout of a dictionary of tensors, in the dictionary's order."""
        return cls({name: tuple(tensor.shape) for name, tensor in parameters.items()})

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return shape by name; treat as read-only."""
        return dict(self.items)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return parameter names in order."""
        return tuple(name for name, _ in self.items)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return number of entries by name; treat as read-only."""
        return {name: math.prod(shape) for name, shape in self.items}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Return first index in the flat vector by name; treat as read-only."""
        starts = accumulate(self.sizes.values(), initial=0)
        return dict(zip(self.names, starts, strict=False))

    @cached_property
    def total(self) -> int:
        """Return P, the length of the flat vector."""
        return sum(self.sizes.values())

    def slice(self, name: str) -> slice:
        """Return the slice of the flat vector that holds one parameter."""
        if name not in self.sizes:
            raise ModelMismatchError(f"no parameter {name!r} in this layout; it has {list(self.names)}")
        return slice(self.offsets[name], self.offsets[name] + self.sizes[name])

    def select(self, names: Iterable[str]) -> Layout:
        """Return the layout of some of the parameters, in the order of `names`."""
        chosen = tuple(names)
        for name in chosen:
            self.slice(name)
        return Layout({name: self.shapes[name] for name in chosen})

    def by_module(self) -> dict[str, tuple[str, ...]]:
        """Return the names of parameters by the path of the module that owns them: weight and bias together.

        What `torch.nn.utils.parametrize` makes of a weight is that module's, too.
        """
        members: dict[str, list[str]] = {}
        for name in self.names:
            owner, parametrised, _ = f".{name}".partition(".parametrizations.")
            module = owner[1:] if parametrised else name.rpartition(".")[0]
            members.setdefault(module or "(top level)", []).append(name)
        return {module: tuple(names) for module, names in members.items()}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors `[..., *shape]` into one vector `[..., P]`."""
        self._check_names(tensors)
        parts = []
        for name, shape in self.items:
            tensor = tensors[name]
            lead = tensor.dim() - len(shape)
            if lead < 0 or tuple(tensor.shape[lead:]) != shape:
                raise ModelMismatchError(f"parameter {name!r} has shape {tuple(tensor.shape)}, expected (..., {shape})")
            parts.append(tensor.reshape(*tensor.shape[:lead], self.sizes[name]))
        if not parts:
            return torch.zeros(0)
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], dim=-1)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a vector `[..., P]` into named tensors `[..., *shape]`."""
        self.check_length(vector, "vector")
        return {name: vector[..., self.slice(name)].reshape((*vector.shape[:-1], *shape)) for name, shape in self.items}

    def locate(self, index: int) -> str:
        """Return the name of the parameter that an index of the flat vector belongs to."""
        occupied = [name for name in self.names if self.sizes[name]]
        return occupied[bisect_right([self.offsets[name] for name in occupied], index) - 1]

    def check_length(self, tensor: Tensor, what: str) -> None:
        """Raise unless the last axis is the flat vector's."""
        if tensor.dim() == 0 or tensor.shape[-1] != self.total:
            raise DataError(
                f"{what} has shape {tuple(tensor.shape)}; its last axis has to have {self.total} entries,"
                f" one per weight of {len(self.items)} parameters"
            )

    def check_finite(self, tensor: Tensor, what: str, axis: int = -1) -> None:
        """Raise, naming the parameter, if anything along the flat axis is NaN or infinite."""
        if tensor.is_meta:
            raise DataError(f"{what} is a tensor without entries (meta); nothing can be computed from it")
        # A finite sum proves finite entries without a temporary; only a suspicious one is looked into.
        if bool(torch.isfinite(tensor.detach().sum())):
            return
        bad = ~torch.isfinite(tensor.detach())
        if bool(bad.any()):
            along = bad.movedim(axis, 0).flatten(1).any(1) if bad.dim() > 1 else bad
            first = int(along.nonzero()[0])
            raise DataError(
                f"{what} has {int(bad.sum())} NaN or infinite entries, the first at parameter"
                f" {self.locate(first)!r}; look for overflow or a diverged network there"
            )

    @checked
    def spread(self, diagonal: DiagonalLike, like: Tensor) -> dict[str, Tensor]:
        """Return a diagonal as one tensor per parameter: without axes where it is a constant, else flat `[size]`.

        Args:
            diagonal: Scalar, vector `[P]`, or scalar or tensor per parameter name.
            like: Gives dtype and device of the result.
        """
        if isinstance(diagonal, Mapping):
            self._check_names(diagonal)
            spread = {name: self._diagonal_of(name, diagonal[name], like) for name in self.names}
        else:
            if isinstance(diagonal, Tensor) and diagonal.is_meta:
                raise DataError("the diagonal is a tensor without entries (meta); nothing can be computed from it")
            tensor = torch.as_tensor(diagonal, dtype=like.dtype, device=like.device)
            if tensor.dim() == 0:
                spread = {name: tensor for name in self.names}
            else:
                self.check_length(tensor, "diagonal")
                if tensor.dim() != 1:
                    raise DataError(
                        f"diagonal has shape {tuple(tensor.shape)}; give a scalar, a vector of"
                        f" {self.total} entries, or a dictionary by parameter name"
                    )
                spread = {name: tensor[self.slice(name)] for name in self.names}
        checked: set[int] = set()  # a scalar for all parameters is one tensor: look at it once
        for name, tensor in spread.items():
            if id(tensor) in checked or not tensor.numel():
                continue
            lowest, highest = tensor.detach().aminmax()
            if not 0 <= float(lowest) <= float(highest) < math.inf:
                raise DataError(f"diagonal for parameter {name!r} has to be finite and not negative")
            checked.add(id(tensor))
        return spread

    def vector(self, diagonal: DiagonalLike, like: Tensor) -> Tensor:
        """Return a diagonal, in any of the forms of `spread`, written out as a vector `[P]`."""
        return self.join(self.spread(diagonal, like), self.names, like)

    def join(self, spread: Mapping[str, Tensor], names: Iterable[str], like: Tensor) -> Tensor:
        """Concatenate what `spread` returned for some of the parameters into one vector."""
        parts = [spread[name].expand(self.sizes[name]) for name in names]
        return torch.cat(parts) if parts else like.new_zeros(0)

    def require_same(self, other: Layout) -> None:
        """Raise `ModelMismatchError` naming the first difference, if there is one."""
        if self == other:
            return
        missing = [name for name in self.names if name not in other.shapes]
        extra = [name for name in other.names if name not in self.shapes]
        changed = [name for name in self.names if other.shapes.get(name, self.shapes[name]) != self.shapes[name]]
        if missing or extra:
            difference = f"only in the first: {missing}; only in the second: {extra}"
        elif changed:
            name = changed[0]
            difference = f"parameter {name!r} has shape {self.shapes[name]} and {other.shapes[name]}"
        else:
            difference = f"the order is {list(self.names)} and {list(other.names)}"
        raise ModelMismatchError(f"the two belong to different parameters: {difference}")

    def _check_names(self, mapping: Mapping[str, object]) -> None:
        """Raise if the mapping lacks a parameter or has an unknown name."""
        missing = [name for name in self.names if name not in mapping]
        extra = [name for name in mapping if name not in self.shapes]
        if missing or extra:
            raise ModelMismatchError(f"names do not match the parameters: missing {missing}, unknown {extra}")

    def _diagonal_of(self, name: str, value: float | Tensor, like: Tensor) -> Tensor:
        """Return one parameter's diagonal: a scalar, or flat."""
        tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        if tensor.dim() == 0:
            return tensor
        if tuple(tensor.shape) not in (self.shapes[name], (self.sizes[name],)):
            raise DataError(
                f"diagonal for parameter {name!r} has shape {tuple(tensor.shape)}; give a scalar or a tensor"
                f" of shape {self.shapes[name]}"
            )
        return tensor.reshape(-1) if tensor.numel() else tensor.reshape(0)

    def __repr__(self) -> str:
        """Show names, shapes and the total."""
        shapes = ", ".join(f"{name}: {shape}" for name, shape in self.items)
        return f"Layout({shapes}; P={self.total})"

"""Define Gaussian priors over weights: which weights share a precision, and how large it is.

`Prior` is what a user writes; `bind` ties it to a network's parameters and gives a `BoundPrior`, which has numbers.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from marquis.arguments import checked_methods
from marquis.choices import choose
from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.functional.call import Model
from marquis.functional.selection import parameters_of
from marquis.functional.unwrap import computing_dtype
from marquis.priors.normalised import normalised_groups
from marquis.structures import Layout, Structure

GROUPS = ("scalar", "layer", "tensor", "parameter", "normalised")
"""The groupings that have a name."""

Precision = float | Tensor | Mapping[str, float | Tensor]
Groups = str | Mapping[str, str | Sequence[str]]
Mean = float | Tensor | Mapping[str, Tensor] | None
Weights = Tensor | Mapping[str, Tensor]
"""Weights as one flat vector `[P]` or by name."""


@checked_methods
@dataclass(frozen=True, eq=False)
class Prior:
    """Describe `theta ~ N(mean, diag(precision)^-1)` with one precision per group of weights.

    See docs/method/posterior.md#prior-precisions.

    Args:
        precision: one positive number for all groups, a tensor with one per group, or a number per group name.
        groups: "scalar" (one group), "layer" (one per module: weight and bias together), "tensor" (one per
            parameter), "parameter" (one per single weight), "normalised" (weight and bias of every convolution or
            linear layer that feeds a Batch-, Layer- or GroupNorm are a group of their own, everything else is one
            more), or `{name: pattern}` with shell patterns (or lists of them) over parameter names; the first
            pattern that fits wins.
        mean: prior mean: 0 (None), a number, a flat vector, or tensors by parameter name.
    """

    precision: Precision = 1.0
    groups: Groups = "scalar"
    mean: Mean = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before any work is done."""
        if isinstance(self.groups, str):
            hint = "Or pass patterns such as {'encoder': 'encoder.*', 'rest': '*'}."
            object.__setattr__(self, "groups", choose("groups", self.groups, GROUPS, hint=hint))
        if not isinstance(self.precision, Mapping):
            _require_positive(torch.as_tensor(self.precision, dtype=torch.float64))

    def bind(
        self,
        layout: Layout,
        model: Model | None = None,
        x: Any = None,
        *,
        params: Mapping[str, Tensor] | None = None,
        like: Tensor | None = None,
    ) -> BoundPrior:
        """Return the prior over these parameters, with its groups.

        Args:
            layout: the parameters that have a posterior.
            model: needed for groups="normalised", together with `x`.
            x: a batch of inputs, with which the network is traced.
            params: parameter values, for a model that is a function.
            like: gives dtype and device; by default those of the first parameter (float32 for half precision), else
                torch's default dtype.
        """
        if like is None:
            values = () if model is None else parameters_of(model, params).values()
            like = next(iter(values), torch.zeros(())).detach()
            like = like.to(computing_dtype(like.dtype))
        elif not like.is_floating_point():
            raise DataError(f"like is {like.dtype}; precisions are real floating numbers.")
        members = self._members(layout, model, x, params)
        if members is None:
            index, names = torch.arange(layout.total), None
        else:
            number = {name: i for i, names in enumerate(members.values()) for name in names}
            index = torch.cat(
                [torch.full((layout.sizes[n],), number[n]) for n in layout.names] or [torch.zeros(0, dtype=torch.long)]
            )
            names = tuple(members)
        count = layout.total if names is None else len(names)
        mean = _mean(self.mean, layout, like)
        bound = BoundPrior(layout, index.to(like.device), torch.ones(count).to(like), mean, names)
        return bound.with_precision(_precision(self.precision, bound, like))

    def _members(
        self, layout: Layout, model: Model | None, x: Any, params: Mapping[str, Tensor] | None
    ) -> Mapping[str, Sequence[str]] | None:
        """Return parameter names by group name; None where every weight is a group."""
        if not isinstance(self.groups, str):
            return _by_pattern(self.groups, layout)
        if self.groups == "parameter":
            return None
        if self.groups == "scalar":
            return {"all": list(layout.names)}
        if self.groups == "tensor":
            return {name: [name] for name in layout.names}
        if self.groups == "layer":
            return layout.by_module()
        if model is None or x is None:
            raise MarquisError(
                "prior groups='normalised' are found by tracing the network: bind it with the model and one batch of "
                "inputs (Laplace.fit does)."
            )
        traced = normalised_groups(model, parameters_of(model, params), x)
        groups = {name: [p for p in members if p in layout.shapes] for name, members in traced.items()}
        normalised = {name for members in groups.values() for name in members}
        rest = [name for name in layout.names if name not in normalised]
        return {**({"other": rest} if rest else {}), **{name: members for name, members in groups.items() if members}}


@checked_methods
@dataclass(frozen=True, eq=False)
class BoundPrior:
    """Hold a prior with numbers: `G` groups over `P` weights.

    Attributes:
        layout: the parameters.
        index: group number of every weight, `[P]`.
        precision: one per group, `[G]`; gradients flow through it.
        mean: prior mean, `[P]`.
        group_names: names of the groups; None for one group per weight (see `names`).
    """

    layout: Layout
    index: Tensor
    precision: Tensor
    mean: Tensor
    group_names: tuple[str, ...] | None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the groups, in order; for one group per weight they are `weight[3]`, made when needed."""
        if self.group_names is not None:
            return self.group_names
        return tuple(f"{name}[{i}]" for name in self.layout.names for i in range(self.layout.sizes[name]))

    @cached_property
    def sizes(self) -> Tensor:
        """Return the number of weights per group, `[G]`, as floating point for arithmetic."""
        return torch.bincount(self.index, minlength=len(self.precision)).to(self.precision)

    def with_precision(self, precision: float | Tensor) -> BoundPrior:
        """Return the same groups with other precisions: one number, or one per group."""
        values = torch.as_tensor(precision, dtype=self.precision.dtype, device=self.precision.device)
        if values.dim() > 1 or (values.dim() == 1 and len(values) != len(self.precision)):
            raise DataError(f"prior precision has shape {tuple(values.shape)}; there are {len(self.precision)} groups.")
        _require_positive(values)
        made = replace(self, precision=values.expand(len(self.precision)))
        # What depends on the groups alone is asked for at every step of tuning.
        made.__dict__.update(sizes=self.sizes, _constant=self._constant, _scatters=self._scatters)
        return made

    def vector(self) -> Tensor:
        """Return the precision of every weight, `[P]`."""
        return self.precision[self.index]

    def diagonal(self) -> dict[str, Tensor]:
        """Return the precision by parameter name, without axes where it is constant within a parameter."""
        ends = [self._constant.get(name) for name in self.layout.names]
        by_group = {group: self.precision[group] for group in set(ends) if group is not None}
        vector = self.vector() if None in ends else self.precision
        return {
            name: vector[self.layout.slice(name)] if group is None else by_group[group]
            for name, group in zip(self.layout.names, ends, strict=True)
        }

    @cached_property
    def _constant(self) -> dict[str, int]:
        """Return the group number of the parameters that lie within one group."""
        index = {name: self.index[self.layout.slice(name)] for name in self.layout.names}
        return {name: int(i[0]) for name, i in index.items() if len(i) and bool((i == i[0]).all())}

    def add_to(self, curvature: Structure) -> Structure:
        """Return the posterior precision: curvature + diag(precision)."""
        return curvature.add_diagonal(self.diagonal())

    def deviation(self, theta: Weights) -> Tensor:
        """Return the difference theta - mean, `[..., P]`; gradients flow to theta."""
        flat = theta if isinstance(theta, Tensor) else self.layout.flatten(theta)
        self.layout.check_length(flat, "weights")
        return flat.to(self.mean) - self.mean

    def scatter(self, theta: Weights) -> Tensor:
        """Return the sum of (theta - mean)^2 per group, `[G]`, remembered for the last `theta`: it is tuned at one."""
        fixed = isinstance(theta, Tensor) and not theta.requires_grad and not theta.is_inference()
        version = theta._version if fixed and isinstance(theta, Tensor) else 0
        last = self._scatters[0] if fixed and self._scatters else None  # one tuple, read once: threads may share this
        if last is not None and last[0] is theta and last[1] == version:
            return last[2]
        squares = self.deviation(theta).square()
        groups = self._constant
        if len(groups) == len(self.layout.names):  # a sum per parameter: faster and more accurate than weight by weight
            parts = [squares[self.layout.slice(name)].sum() for name in self.layout.names]
            index = torch.tensor([groups[name] for name in self.layout.names], device=self.index.device).long()
            squares = torch.stack(parts) if parts else squares
        else:
            index = self.index
        total = squares.new_zeros(len(self.precision)).index_add(0, index, squares)
        if fixed and not total.is_inference():
            self._scatters[:] = [(theta, version, total)]
        return total

    @cached_property
    def _scatters(self) -> list[Any]:
        """Return the last `theta` of `scatter` with its version, and the result; shared by `with_precision`."""
        return []

    def quadratic(self, theta: Weights) -> Tensor:
        """Return (theta - mean)^T diag(precision) (theta - mean)."""
        return (self.precision * self.scatter(theta)).sum()

    def gradient(self, theta: Weights) -> Tensor:
        """Return the gradient of `quadratic / 2`: diag(precision) (theta - mean), `[P]`."""
        return self.vector() * self.deviation(theta)

    def logdet(self) -> Tensor:
        """Return the logarithm of the determinant of the prior precision."""
        return (self.sizes * self.precision.log()).sum()

    def log_density(self, theta: Weights) -> Tensor:
        """Return the normalised log density of the prior at `theta`."""
        return 0.5 * (self.logdet() - self.quadratic(theta) - self.layout.total * math.log(2 * math.pi))

    def select(self, layout: Layout, index: Tensor) -> BoundPrior:
        """Return the prior of the weights at these positions of the flat vector, described by `layout`.

        Groups that lose all their weights are gone.
        """
        groups, numbers = self.index[index].unique(return_inverse=True)
        names = None if self.group_names is None else tuple(self.names[group] for group in groups.tolist())
        return BoundPrior(layout, numbers, self.precision[groups], self.mean[index], names)

    def __repr__(self) -> str:
        """Show groups and their precisions, the first few."""
        shown = ", ".join(
            f"{name}={float(value):.3g}" for name, value in zip(self.names[:6], self.precision[:6], strict=True)
        )
        more = f", ... {len(self.precision)} groups" if len(self.precision) > 6 else ""
        return f"BoundPrior({shown}{more})"


@checked_methods
@dataclass(frozen=True, eq=False)
class StructuredPrior:
    """Hold an earlier posterior as the next prior: its whole precision matrix, not only a diagonal.

    See docs/method/posterior.md#checks.

    Attributes:
        layout: the parameters.
        structure: prior precision.
        mean: prior mean, `[P]`.
    """

    layout: Layout
    structure: Structure
    mean: Tensor

    def add_to(self, curvature: Structure) -> Structure:
        """Return the posterior precision: curvature + prior precision (for Kronecker, that of the joint data)."""
        return curvature + self.structure

    def deviation(self, theta: Weights) -> Tensor:
        """Return the difference theta - mean, `[..., P]`; gradients flow to theta."""
        flat = theta if isinstance(theta, Tensor) else self.layout.flatten(theta)
        self.layout.check_length(flat, "weights")
        return flat.to(self.mean) - self.mean

    def quadratic(self, theta: Weights) -> Tensor:
        """Return (theta - mean)^T precision (theta - mean)."""
        deviation = self.deviation(theta)
        return deviation @ (self.structure @ deviation)

    def gradient(self, theta: Weights) -> Tensor:
        """Return the gradient of `quadratic / 2`: precision (theta - mean), `[P]`."""
        return self.structure @ self.deviation(theta)

    def logdet(self) -> Tensor:
        """Return the logarithm of the determinant of the prior precision."""
        return self.structure.logdet()

    def log_density(self, theta: Weights) -> Tensor:
        """Return the normalised log density of the prior at `theta`."""
        return 0.5 * (self.logdet() - self.quadratic(theta) - self.layout.total * math.log(2 * math.pi))

    def __repr__(self) -> str:
        """Show the structure inside."""
        return f"StructuredPrior({self.structure!r})"


def _by_pattern(groups: Mapping[str, str | Sequence[str]], layout: Layout) -> dict[str, list[str]]:
    """Assign every parameter to the first group whose pattern matches its name."""
    members: dict[str, list[str]] = {name: [] for name in groups}
    for parameter in layout.names:
        for group, patterns in groups.items():
            if any(fnmatch.fnmatchcase(parameter, p) for p in ([patterns] if isinstance(patterns, str) else patterns)):
                members[group].append(parameter)
                break
        else:
            raise UnsupportedOperationError(
                f"parameter {parameter!r} is in none of the prior's groups {list(groups)}; add a last one, 'rest': '*'."
            )
    empty = [name for name, names in members.items() if not names]
    if empty:
        raise UnsupportedOperationError(
            f"prior groups {empty} match no parameter that an earlier group has not taken; the parameters are "
            f"{list(layout.names[:8])}{', ...' if len(layout.names) > 8 else ''}."
        )
    return members


def _precision(precision: Precision, bound: BoundPrior, like: Tensor) -> Tensor:
    """Return the precision of every group as a vector."""
    if not isinstance(precision, Mapping):
        return torch.as_tensor(precision, dtype=like.dtype, device=like.device)
    missing = [name for name in bound.names if name not in precision]
    extra = [name for name in precision if name not in bound.names]
    if missing or extra:
        raise UnsupportedOperationError(f"prior precisions by group: missing {missing[:8]}, unknown {extra[:8]}.")
    for name, value in precision.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise DataError(f"the prior precision of group {name!r} has shape {list(value.shape)}; give one number.")
    return torch.tensor([float(precision[name]) for name in bound.names], dtype=like.dtype, device=like.device)


def _mean(mean: Mean, layout: Layout, like: Tensor) -> Tensor:
    """Return the prior mean as a vector `[P]` with dtype and device of `like`."""
    if mean is None:
        return like.new_zeros(layout.total)
    if isinstance(mean, Mapping):
        flat = layout.flatten({name: mean[name] for name in layout.names if name in mean})
    else:
        flat = torch.as_tensor(mean, dtype=like.dtype, device=like.device)
        if flat.dim() == 0:
            flat = flat.expand(layout.total)
    if flat.dim() != 1 or len(flat) != layout.total:
        raise DataError(f"prior mean has shape {tuple(flat.shape)}; expected a number or {layout.total} entries.")
    layout.check_finite(flat, "prior mean")
    return flat.detach().to(like)


def _require_positive(precision: Tensor) -> None:
    values: Iterable[bool] = ((precision > 0) & precision.isfinite()).flatten().tolist()
    if not all(values):
        raise DataError("a prior precision has to be positive and finite (1 / variance of the weights).")

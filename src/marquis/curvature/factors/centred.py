"""Represent columns of the softmax's output Hessian without writing them out: `u_c (e_c - p)` with `u = sqrt p`.

`S Sᵀ = diag(p) - p pᵀ`, since `S = diag(u) (I - u uᵀ)` and the bracket is a projection. A dense layer takes column c to
`u_c (W_c - p W)`, which costs its inputs instead of outputs x inputs, so that the exact curvature of many classes grows
linearly with them. Differences are taken to the likeliest class where they would cancel (docs/method/curvature.md,
Factor pass).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from marquis.curvature.factors.factor import Factor


@dataclass(frozen=True, eq=False)
class Softmax:
    """Hold what all columns of a batch share.

    Attributes:
        probs: p, [n, classes]; zeros for samples that do not count.
        others: 1 - p, without cancellation.
        roots: u = sqrt p.
        pivot: the likeliest class, [n].
        memory: the mean row of the weight, once it is known.
    """

    probs: Tensor
    others: Tensor
    roots: Tensor
    pivot: Tensor
    memory: dict[str, tuple[Tensor, Tensor]]

    @staticmethod
    def of(logits: Tensor, seen: Tensor | None) -> Softmax:
        """Return the softmax of logits [n, classes], restricted to the samples with `seen` = 1."""
        pivot = logits.argmax(1)
        probs, roots = logits.softmax(1), (0.5 * logits.log_softmax(1)).exp()
        rest = probs.scatter(1, pivot[:, None], 0.0).sum(1, keepdim=True)
        others = (1 - probs).scatter(1, pivot[:, None], rest)
        if seen is not None:
            weight = seen.to(probs.dtype)[:, None]
            probs, roots = probs * weight, roots * weight
        return Softmax(probs, others, roots, pivot, {})

    def means(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return `p W` and `p W - W_pivot`, both [n, i], the latter without cancellation."""
        if "means" not in self.memory:
            pivot = self.pivot[:, None]
            at_pivot = weight[self.pivot]
            offset = self.probs.scatter(1, pivot, 0.0) @ weight - self.others.gather(1, pivot) * at_pivot
            self.memory["means"] = (at_pivot + offset, offset)
        return self.memory["means"]


class CentredFactor(Factor):
    """Represent the columns [start, stop) of a softmax's square root at its logits; written out only if asked to."""

    def __init__(self, softmax: Softmax, start: int, stop: int) -> None:
        """Keep the description; `shape` is all that the base class stores."""
        for name, value in (("softmax", softmax), ("start", start), ("stop", stop)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "shape", tuple(softmax.probs.shape))

    softmax: Softmax
    start: int
    stop: int

    @property
    @override
    def count(self) -> int:
        return self.stop - self.start

    @property
    @override
    def like(self) -> Tensor:
        return self.softmax.probs

    @property
    @override
    def has_shared_columns(self) -> bool:
        return False

    @cached_property
    def columns(self) -> Tensor:  # type: ignore[override]
        """Return the columns written out, [c, n, classes]."""
        mine, softmax = slice(self.start, self.stop), self.softmax
        columns = softmax.roots[:, mine].t()[:, :, None] * -softmax.probs
        columns[:, :, mine].diagonal(dim1=0, dim2=2).copy_((softmax.roots * softmax.others)[:, mine])
        return columns

    @override
    def multiply(self, scale: Tensor) -> Factor:
        return Factor(self.columns, self.shape).multiply(scale)

    @override
    def plus(self, other: Factor) -> Factor:
        return Factor(self.columns, self.shape).plus(other)

    def times(self, weight: Tensor) -> Tensor:
        """Return the columns times a weight [classes, i]: [c, n, i]. Cost: c * n * i."""
        softmax, count = self.softmax, self.count
        mean, offset = softmax.means(weight)
        products = weight[self.start : self.stop, None] - mean
        position = softmax.pivot - self.start
        inside = ((position >= 0) & (position < count))[:, None]
        position = position.clamp(0, count - 1)
        samples = torch.arange(len(position), device=position.device)
        products[position, samples] = torch.where(inside, -offset, products[position, samples])
        return products.mul_(softmax.roots[:, self.start : self.stop].t()[:, :, None])

    @cached_property
    @override
    def squares(self) -> Tensor:
        """Return the part of `p (1 - p)` that belongs to these columns: [n, classes]."""
        softmax, mine, pivot = self.softmax, slice(self.start, self.stop), self.softmax.pivot[:, None]
        part = torch.zeros_like(softmax.probs)
        part[:, mine] = softmax.probs[:, mine]
        rest = part.scatter(1, pivot, 0.0).sum(1, keepdim=True)  # without the likeliest class, which may be almost 1
        apart = (rest + part.gather(1, pivot) - part).clamp_min(0).scatter(1, pivot, rest)
        squares = softmax.probs.square() * apart
        squares[:, mine].addcmul_(softmax.probs[:, mine], softmax.others[:, mine].square())
        return squares

    def gram(self) -> Tensor:
        """Return S Sᵀ summed over the samples, [classes, classes], for these columns. Cost: n * classes²."""
        probs, mine = self.softmax.probs, slice(self.start, self.stop)
        part = torch.zeros_like(probs)
        part[:, mine] = probs[:, mine]
        gram = (part.sum(1, keepdim=True) * probs - part).t() @ probs
        gram.addmm_(probs.t(), part, alpha=-1)
        gram.diagonal().copy_(self.squares.sum(0))
        return gram

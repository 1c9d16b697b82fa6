"""Represent gradients of weights as outer products: dense layers, convolutions, weights that are used several times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import CHUNK_BYTES, LazyGradients, ParameterGradients
from marquis.functional.matmul import by_sample, matmul

CACHED_BYTES = 2**19
"""Size of the products of one sample up to which their squares are summed per column."""

SMALL = 2048
"""Weights below this many entries are squared and summed in one call; larger ones row by row, in the cache."""


class RankOne(ParameterGradients):
    """Represent gradients of a dense layer without positions: G[c, n] = g aᵀ.

    The diagonal needs diag(M) and a² only (docs/method/curvature.md, Exact diagonal).

    Attributes:
        inputs: a, [n, i].
        factor: g, a factor at the layer's output [n, o].
        swapped: the weight is stored as [i, o].
    """

    def __init__(self, inputs: Tensor, factor: Factor, swapped: bool = False) -> None:
        sizes = (factor.shape[1], inputs.shape[1])
        super().__init__(sizes[::-1] if swapped else sizes, factor.count, inputs.shape[0], inputs.element_size())
        self.inputs = inputs
        self.factor = factor
        self.swapped = swapped

    @property
    @override
    def kronecker_form(self) -> tuple[str, int]:
        return "kronecker", self.shape[0] ** 2 + self.shape[1] ** 2

    def transposed(self) -> RankOne:
        """Return the gradient of the matrix whose transpose was used."""
        return RankOne(self.inputs, self.factor, not self.swapped)

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        g = self.factor.dense()[:, start:stop]
        a = self.inputs[start:stop]
        return a[None, :, :, None] * g[:, :, None, :] if self.swapped else g[:, :, :, None] * a[None, :, None, :]

    @override
    def add_diagonal_(self, total: Tensor) -> None:
        product = matmul(self.factor.shape_filled_squares().t(), self.inputs.square())
        total += product.t() if self.swapped else product

    def as_outer_products(self) -> OuterProducts:
        """Return the same as one position of a general outer product."""
        inputs = self.inputs

        def arrange(G: Tensor) -> Tensor:
            return G.squeeze(-3).transpose(-1, -2) if self.swapped else G.squeeze(-3)

        outputs = self.factor.dense()[:, :, None, None, :]
        sizes = (1, 1, inputs.shape[1])
        a = inputs[:, None, None, :]
        return OuterProducts(
            lambda start, stop: a[start:stop], outputs, self.samples, sizes, self.shape, arrange, self.swapped
        )


@dataclass(eq=False)
class OuterProducts(ParameterGradients):
    """Represent gradients of a weight shared over positions: G[c, n] = sum_t g_t a_tᵀ (sequences, convolutions).

    Attributes:
        inputs: (start, stop) -> a of these samples, [m, q, t, i]; made when needed, since unfolded pictures are large.
        outputs: g, [c, n or 1, q, t, o].
        sizes: (q, t, i) of `inputs`.
        arrange: maps [..., q, o, i] to [..., *shape].
        swapped: whether the weight's first axis is the input's (a transposed use).
        input_products: "expand" or "reduce" -> the Kronecker factor of the inputs [q, i, i] and the number of terms in
            it, over all positions even where `inputs` is cut to a window; None where `inputs` has them all.
        direct: (start, stop) -> gradients of these samples, [m, q, c * o, i], where there is a cheaper way.
        one_column: (start, stop) -> gradients of a single column, [m, *shape], where there is a cheaper way.
        order: `side[order]` is the unfolded side (that of the inputs, of the outputs where `swapped`) in the row-major
            order of the weight; None where it has that order already.
        channels: input channels that stand before the outputs in the weight, as in `KroneckerPiece`.
    """

    inputs: Callable[[int, int], Tensor]
    outputs: Tensor
    samples: int
    sizes: tuple[int, int, int]
    shape: tuple[int, ...]
    arrange: Callable[[Tensor], Tensor]
    swapped: bool = False
    input_products: Callable[[str], tuple[Tensor, float]] | None = None
    direct: Callable[[int, int], Tensor] | None = None
    one_column: Callable[[int, int], Tensor] | None = None
    order: Tensor | None = None
    channels: int = 1

    def __post_init__(self) -> None:
        """Read columns and type from the outputs."""
        super().__init__(self.shape, self.outputs.shape[0], self.samples, self.outputs.element_size())

    @property
    @override
    def kronecker_form(self) -> tuple[str, int]:
        return "kronecker", self.sizes[0] * (self.outputs.shape[-1] ** 2 + self.sizes[2] ** 2)

    @override
    def largest_per_sample(self) -> int:
        q, t, i = self.sizes
        return max(self.columns * prod(self.shape), self.columns * q * t * self.outputs.shape[-1], q * t * i)

    def products(self, start: int, stop: int) -> Tensor:
        """Return the gradients before arranging: [m, q, c * o, i]."""
        if self.direct is not None:
            return self.direct(start, stop)
        return by_sample(self._rows(start, stop), self.inputs(start, stop))

    def _rows(self, start: int, stop: int) -> Tensor:
        """Return g as the left side of a product, [m or 1, q, c * o, t]."""
        g = self.outputs if self.outputs.shape[1] == 1 else self.outputs[:, start:stop]
        c, m, q, t, o = g.shape
        return g.permute(1, 2, 0, 4, 3).reshape(m, q, c * o, t)

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        products = self.products(start, stop)
        m, q, _, i = products.shape
        split = products.reshape(m, q, self.columns, -1, i).permute(2, 0, 1, 3, 4)
        return self.arrange(split)

    @override
    def add_diagonal_(self, total: Tensor) -> None:
        if self.one_column is not None:
            width = max(1, CHUNK_BYTES // (prod(self.shape) * self.item))
            for start in range(0, self.samples, width):
                total += self.one_column(start, min(self.samples, start + width)).square_().sum(0)
            return
        q, _, i = self.sizes
        o = self.outputs.shape[-1]
        apart = self.columns * q * o * i * self.item <= CACHED_BYTES  # one call per sample instead of one per column
        squares = total.new_zeros(self.columns if apart else 1, q, o * i)
        for start, stop in self.sample_ranges():
            if o * i < SMALL or q > 1 or self.direct is not None:
                products = self.products(start, stop).view(-1, q, self.columns, o * i)
            else:  # one sample at a time, so that its product is squared while it is in the cache
                rows, inputs = self._rows(start, stop), self.inputs(start, stop)
                shared = len(rows) == 1
                pairs = ((rows[0 if shared else n, 0], a[0]) for n, a in enumerate(inputs))
                products = (matmul(g, a).view(1, self.columns, o * i) for g, a in pairs)
            if isinstance(products, Tensor) and o * i < SMALL:
                squares[0] += products.square_().sum(dim=(0, 2))
                continue
            for sample in products:
                for part in (sample.transpose(0, 1),) if apart else sample.unbind(1):
                    squares.addcmul_(part, part)
        total += self.arrange(squares.sum(0).view(q, o, i))


def concatenate(uses: list[OuterProducts]) -> OuterProducts | None:
    """Return several uses of one weight as more positions of a single outer product; None where their kinds differ."""
    first = uses[0]
    if any(use.sizes[0] != 1 or len(use.shape) != 2 or use.swapped != first.swapped for use in uses):
        return None
    outputs = torch.cat([use.outputs.expand(-1, use.samples, -1, -1, -1) for use in uses], dim=3)
    positions = sum(use.sizes[1] for use in uses)

    def inputs(start: int, stop: int) -> Tensor:
        return torch.cat([use.inputs(start, stop) for use in uses], dim=2)

    sizes = (1, positions, first.sizes[2])
    return OuterProducts(inputs, outputs, first.samples, sizes, first.shape, first.arrange, first.swapped)


def sum_over_uses(uses: list[ParameterGradients]) -> ParameterGradients:
    """Return the gradients of a parameter that is used several times: the sum over its uses, cross terms included."""
    if len(uses) == 1:
        return uses[0]
    outers = [use.as_outer_products() if isinstance(use, RankOne) else use for use in uses]
    same_kind = [use for use in outers if isinstance(use, OuterProducts)]
    joined = concatenate(same_kind) if len(same_kind) == len(uses) else None
    if joined is not None:
        return joined
    first = uses[0]

    def total(start: int, stop: int) -> Tensor:
        result = first.explicit(start, stop).clone()
        for use in uses[1:]:
            result += use.explicit(start, stop)
        return result

    return LazyGradients(total, first.columns, first.samples, first.shape, first.item)

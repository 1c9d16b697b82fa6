"""Per-sample gradients of one parameter, in the form in which their rule found them.

Pulling the factor back to a parameter gives `G[c, n] = Jwᵀ S`, one gradient per column and sample. Every structure is
made of them: the diagonal is the sum of their squares, a block the sum of their outer products. Writing them out costs
columns x samples x parameters, so each form knows cheaper ways where there are any.

Index letters: `c` columns, `n` samples, `q` groups, `t` positions, `o` outputs, `i` inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from marquis.curvature.factor import Factor

CHUNK_BYTES = 2**21
"""Size of temporaries: about 2 MB stay in the cache, and page faults dominate above it."""

SMALL = 2048
"""Weights below this many entries are squared and summed in one call; larger ones row by row, in the cache."""


class Form(ABC):
    """Gradients `G[c, n, *shape]` of one batch-free tensor."""

    shape: tuple[int, ...]
    columns: int
    samples: int
    item: int  # bytes of one number

    @abstractmethod
    def explicit(self, start: int, stop: int) -> Tensor:
        """The gradients of samples [start, stop): [c, stop - start, *shape]."""

    def sample_ranges(self, limit: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """Ranges of samples whose written-out gradients take about `limit` bytes."""
        one = max(1, self.columns * prod(self.shape) * self.item)
        width = max(1, limit // one)
        for start in range(0, self.samples, width):
            yield start, min(self.samples, start + width)

    def add_diagonal_(self, total: Tensor) -> None:
        """Add the sum of squares over columns and samples. Cost: c * n * (cost of one gradient)."""
        for start, stop in self.sample_ranges():
            for row in self.explicit(start, stop).flatten(0, 1):
                total.addcmul_(row, row)


@dataclass(frozen=True, eq=False)
class Explicit(Form):
    """Gradients written out, [c, n or 1, *shape]: small parameters such as biases and norm scales.

    Attributes:
        values: the gradients.
        samples: number of samples.
        as_block: the bias of a layer whose weight has a Kronecker form; a dense block of its own is worth keeping.
    """

    values: Tensor
    samples: int
    as_block: bool = False

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the parameter."""
        return tuple(self.values.shape[2:])

    @property
    def columns(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.values.shape[0]

    @property
    def item(self) -> int:  # type: ignore[override]
        """Bytes of one number."""
        return self.values.element_size()

    def explicit(self, start: int, stop: int) -> Tensor:
        if self.values.shape[1] == 1:
            return self.values.expand(-1, stop - start, *self.shape)
        return self.values[:, start:stop]

    def add_diagonal_(self, total: Tensor) -> None:
        share = self.samples if self.values.shape[1] == 1 else 1
        total.add_(self.values.square().sum(dim=(0, 1)), alpha=share)


@dataclass(frozen=True, eq=False)
class Entrywise(Form):
    """The bias of a dense layer without positions: its gradient is the factor itself."""

    factor: Factor

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the parameter."""
        return self.factor.shape[1:]

    @property
    def columns(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.factor.count

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Number of samples."""
        return self.factor.shape[0]

    @property
    def item(self) -> int:  # type: ignore[override]
        """Bytes of one number."""
        return self.factor.columns.element_size()

    def explicit(self, start: int, stop: int) -> Tensor:
        return self.factor.dense()[:, start:stop]

    def add_diagonal_(self, total: Tensor) -> None:
        squares = self.factor.squares
        summed = squares.sum(0) * (self.samples // squares.shape[0])
        if self.factor.window is None:
            total += summed
        else:
            total.view(self.factor.window.full)[self.factor.window.slices] += summed


@dataclass(frozen=True, eq=False)
class RankOne(Form):
    """A dense layer without positions: G[c, n] = g aᵀ. Only diag(M) and a² are needed for the diagonal (2.5).

    Attributes:
        inputs: a, [n, i].
        factor: g, a factor at the layer's output [n, o].
        swapped: the weight is stored as [i, o].
    """

    inputs: Tensor
    factor: Factor
    swapped: bool = False

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the parameter."""
        sizes = (self.factor.shape[1], self.inputs.shape[1])
        return sizes[::-1] if self.swapped else sizes

    @property
    def columns(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.factor.count

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Number of samples."""
        return self.inputs.shape[0]

    @property
    def item(self) -> int:  # type: ignore[override]
        """Bytes of one number."""
        return self.inputs.element_size()

    def explicit(self, start: int, stop: int) -> Tensor:
        g = self.factor.dense()[:, start:stop]
        a = self.inputs[start:stop]
        return a[None, :, :, None] * g[:, :, None, :] if self.swapped else g[:, :, :, None] * a[None, :, None, :]

    def add_diagonal_(self, total: Tensor) -> None:
        squares = self.factor.shape_filled_squares()
        product = squares.t() @ self.inputs.square()
        total += product.t() if self.swapped else product

    def as_outer(self) -> Outer:
        """The same as one position of a general outer product."""
        inputs = self.inputs
        return Outer(
            lambda start, stop: inputs[start:stop, None, None, :],
            self.factor.dense()[:, :, None, None, :],
            inputs.shape[0],
            (1, 1, inputs.shape[1]),
            self.shape,
            (lambda G: G.squeeze(-3).transpose(-1, -2)) if self.swapped else (lambda G: G.squeeze(-3)),
            self.swapped,
        )


@dataclass(frozen=True, eq=False)
class Outer(Form):
    """A weight shared over positions: G[c, n] = sum_t g_t a_tᵀ (dense layers over sequences, convolutions, tied layers).

    Attributes:
        inputs: (start, stop) -> a of these samples, [m, q, t, i]; made when needed, since unfolded pictures are large.
        outputs: g, [c, n or 1, q, t, o].
        samples: number of samples.
        sizes: (q, t, i) of `inputs`.
        shape: the parameter's shape.
        arrange: maps [..., q, o, i] to [..., *shape].
        swapped: whether the weight's first axis is the input's (a transposed use).
        input_products: "expand" or "reduce" -> the Kronecker factor of the inputs [q, i, i] and the number of terms in
            it, over all positions even where `inputs` is cut to a window; None where `inputs` has them all.
        direct: (start, stop) -> gradients of these samples, [m, q, c * o, i], where there is a cheaper way.
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

    @property
    def columns(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.outputs.shape[0]

    @property
    def item(self) -> int:  # type: ignore[override]
        """Bytes of one number."""
        return self.outputs.element_size()

    def sample_ranges(self, limit: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """Ranges for which gradients, cotangents and patches each take about `limit` bytes."""
        q, t, i = self.sizes
        largest = max(prod(self.shape) * self.columns, self.columns * q * t * self.outputs.shape[-1], q * t * i)
        width = max(1, limit // max(1, largest * self.item))
        for start in range(0, self.samples, width):
            yield start, min(self.samples, start + width)

    def products(self, start: int, stop: int) -> Tensor:
        """Gradients before arranging: [m, q, c * o, i]."""
        if self.direct is not None:
            return self.direct(start, stop)
        g = self.outputs if self.outputs.shape[1] == 1 else self.outputs[:, start:stop]
        c, m, q, t, o = g.shape
        g = g.permute(1, 2, 0, 4, 3).reshape(m, q, c * o, t)
        return g @ self.inputs(start, stop)

    def explicit(self, start: int, stop: int) -> Tensor:
        products = self.products(start, stop)
        m, q, _, i = products.shape
        split = products.reshape(m, q, self.columns, -1, i).permute(2, 0, 1, 3, 4)
        return self.arrange(split)

    def add_diagonal_(self, total: Tensor) -> None:
        q, _, i = self.sizes
        o = self.outputs.shape[-1]
        squares = total.new_zeros(q, o * i)
        for start, stop in self.sample_ranges():
            products = self.products(start, stop).view(-1, q, self.columns, o * i)
            if o * i < SMALL:
                squares += products.square_().sum(dim=(0, 2))
                continue
            for sample in products:
                for column in sample.unbind(1):
                    squares.addcmul_(column, column)
        total += self.arrange(squares.view(q, o, i))


@dataclass(frozen=True, eq=False)
class Lookup(Form):
    """An embedding: the gradient of one sample touches the rows of its own tokens.

    Attributes:
        tokens: [n, t], already without padding positions (those are -1).
        outputs: g, [c, n, t, e].
        shape: (vocabulary, e).
    """

    tokens: Tensor
    outputs: Tensor
    shape: tuple[int, ...]

    @property
    def columns(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.outputs.shape[0]

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Number of samples."""
        return self.tokens.shape[0]

    @property
    def item(self) -> int:  # type: ignore[override]
        """Bytes of one number."""
        return self.outputs.element_size()

    def explicit(self, start: int, stop: int) -> Tensor:
        c, m = self.columns, stop - start
        vocabulary, width = self.shape
        result = self.outputs.new_zeros(c, m * (vocabulary + 1), width)  # one extra row takes the padding
        rows = torch.arange(m, device=self.tokens.device)[:, None] * (vocabulary + 1) + self.tokens[start:stop] + 1
        result.index_add_(1, rows.flatten(), self.outputs[:, start:stop].reshape(c, -1, width))
        return result.view(c, m, vocabulary + 1, width)[:, :, 1:]

    def add_diagonal_(self, total: Tensor) -> None:
        """Sum the gradients of equal tokens within a sample, then square: memory c * n * t * e, not c * n * vocabulary."""
        vocabulary, width = self.shape
        offsets = torch.arange(self.samples, device=self.tokens.device)[:, None] * (vocabulary + 1)
        keys, inverse = torch.unique((offsets + self.tokens + 1).flatten(), return_inverse=True)
        rows = keys % (vocabulary + 1) - 1
        kept = rows >= 0
        for column in self.outputs:
            summed = column.new_zeros(len(keys), width).index_add_(0, inverse, column.reshape(-1, width))
            total.index_add_(0, rows[kept], summed[kept].square())


@dataclass(frozen=True, eq=False)
class Lazy(Form):
    """Gradients from a function of the sample range: the exact fall-back, and weights derived from parameters."""

    make: Callable[[int, int], Tensor]
    columns: int
    samples: int
    shape: tuple[int, ...]
    item: int

    def explicit(self, start: int, stop: int) -> Tensor:
        return self.make(start, stop)


def combine(forms: list[Form]) -> Form:
    """The gradient of a parameter that is used several times: the sum over its uses, cross terms included."""
    if len(forms) == 1:
        return forms[0]
    outers = [form.as_outer() if isinstance(form, RankOne) else form for form in forms]
    if all(isinstance(form, Outer) for form in outers):
        joined = _concatenate([form for form in outers if isinstance(form, Outer)])
        if joined is not None:
            return joined
    first = forms[0]

    def total(start: int, stop: int) -> Tensor:
        result = forms[0].explicit(start, stop).clone()
        for form in forms[1:]:
            result += form.explicit(start, stop)
        return result

    return Lazy(total, first.columns, first.samples, first.shape, first.item)


def _concatenate(forms: list[Outer]) -> Outer | None:
    """Uses of one weight as more positions of a single outer product; a transposed use swaps its two sides."""
    first = forms[0]
    if any(form.sizes[0] != 1 or len(form.shape) != 2 for form in forms):
        return None
    if any(form.swapped != first.swapped for form in forms):
        return None  # cross terms of a transposed use do not fit one list of positions per side
    outputs = torch.cat([form.outputs.expand(-1, form.samples, -1, -1, -1) for form in forms], dim=3)
    positions = sum(form.sizes[1] for form in forms)

    def inputs(start: int, stop: int) -> Tensor:
        return torch.cat([form.inputs(start, stop) for form in forms], dim=2)

    sizes = (1, positions, first.sizes[2])
    return Outer(inputs, outputs, first.samples, sizes, first.shape, first.arrange, first.swapped)

"""Turning per-sample gradients into a structure: one sink for each kind of matrix.

A sink receives each parameter's gradients once per chunk of columns. Diagonal and Kronecker sinks use them at once;
block, full and low-rank need several parameters together and wait for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marquis.curvature.gradients import Entrywise, Explicit, Form, Outer, RankOne
from marquis.errors import UnsupportedOperationError
from marquis.structures import (
    Block,
    DensePiece,
    Diagonal,
    DiagonalPiece,
    Full,
    Kronecker,
    KroneckerPiece,
    Layout,
    LowRank,
    Piece,
    Structure,
)

GRADIENT_BYTES = 2**25
"""How much of the written-out gradients of several parameters is held at a time."""


@dataclass(eq=False)
class Sink(ABC):
    """Collects gradients of the parameters of a layout.

    Attributes:
        layout: selected parameters.
        like: a tensor with the dtype and device of the result.
    """

    layout: Layout
    like: Tensor
    recompresses: bool = True

    @abstractmethod
    def add(self, name: str, form: Form) -> None:
        """Take one parameter's gradients of the current chunk of columns."""

    def end_chunk(self) -> None:
        """All parameters of this chunk of columns have been added."""
        return None

    def end_segment(self) -> None:
        """All chunks of columns down to the next bottleneck have been added."""
        return None

    @abstractmethod
    def finish(self) -> Structure:
        """The structure of everything added."""

    def groups(self) -> list[tuple[str, ...]]:
        """Parameters whose gradients must have the same columns."""
        return [(name,) for name in self.layout.names]

    def refuse_shared(self, name: str, uses: int) -> None:
        """Raise if the structure cannot express a parameter with several uses."""
        return None


@dataclass(eq=False)
class DiagonalSink(Sink):
    """Sums of squares. For dense layers diag(M) is gathered over the chunks and meets the inputs once, at the end."""

    waiting: dict[str, tuple[RankOne, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the result once; every parameter's total is a view of it."""
        self.vector = torch.zeros(self.layout.total, dtype=self.like.dtype, device=self.like.device)
        self.totals = self.layout.unflatten(self.vector)

    def add(self, name: str, form: Form) -> None:
        """Square and sum."""
        if isinstance(form, RankOne):
            if name not in self.waiting:
                self.waiting[name] = (form, form.factor.columns.new_zeros(form.factor.shape))
            form.factor.add_square_sum_(self.waiting[name][1])
        else:
            form.add_diagonal_(self.totals[name])

    def end_segment(self) -> None:
        """Meet the inputs of dense layers: diag W = sum_n m_n a_n² (2.5)."""
        for name, (form, squares) in self.waiting.items():
            inputs = form.inputs.square()
            left, right = (inputs, squares) if form.swapped else (squares, inputs)
            torch.mm(left.t(), right, out=self.totals[name])
        self.waiting.clear()

    def finish(self) -> Diagonal:
        """The diagonal; parameters that the output does not depend on have zeros."""
        return Diagonal(self.layout, self.vector)


@dataclass(eq=False)
class KroneckerSink(Sink):
    """Sums of input products and of output products (2.4); what has no such form is kept exactly.

    Attributes:
        samples: batch size.
        reduce: sum over positions before the products (weight sharing "reduce") instead of after ("expand").
    """

    samples: int = 0
    reduce: bool = False
    left: dict[str, Tensor] = field(default_factory=dict)
    right: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    swapped: dict[str, bool] = field(default_factory=dict)
    dense: dict[str, Tensor] = field(default_factory=dict)
    diagonal: dict[str, Tensor] = field(default_factory=dict)
    grams: dict[int, tuple[object, Tensor]] = field(default_factory=dict)

    def refuse_shared(self, name: str, uses: int) -> None:
        """Two uses of one weight have cross terms that no Kronecker product holds."""
        raise UnsupportedOperationError(
            f"parameter '{name}' is used {uses} times; a Kronecker structure cannot express the cross terms between its "
            "uses. Use structure='diagonal', 'block' or 'full', or leave the parameter out."
        )

    def add(self, name: str, form: Form) -> None:
        """Add to the two factors, a dense block or a diagonal."""
        if isinstance(form, RankOne):
            first = name not in self.left
            gram = self._gram_of(form.factor)
            self.left[name] = gram if first else self.left[name] + gram
            if first:
                self.right[name] = (form.inputs.t() @ form.inputs)[None]
                self.counts[name], self.swapped[name] = float(self.samples), form.swapped
        elif isinstance(form, Outer):
            self._add_outer(name, form)
        elif isinstance(form, Entrywise):
            gram = self._gram_of(form.factor)[0]
            self.dense[name] = self.dense[name] + gram if name in self.dense else gram
        elif isinstance(form, Explicit) and form.as_block:
            share = self.samples if form.values.shape[1] == 1 else 1
            flat = form.values.flatten(0, 1)
            gram = flat.t() @ flat * share
            self.dense[name] = self.dense[name] + gram if name in self.dense else gram
        else:
            if name not in self.diagonal:
                self.diagonal[name] = self.like.new_zeros(self.layout.shapes[name])
            form.add_diagonal_(self.diagonal[name])

    def _gram_of(self, factor) -> Tensor:  # noqa: ANN001
        """Sum of g gᵀ over columns and samples, [1, o, o]; weight and bias of one layer share it."""
        cached = self.grams.get(id(factor))
        if cached is not None and cached[0] is factor:
            return cached[1]
        gram = gram_matrix(factor, self.samples)[None]
        self.grams = {id(factor): (factor, gram)}
        return gram

    def _add_outer(self, name: str, form: Outer) -> None:
        q, t, i = form.sizes
        outputs = form.outputs.sum(3, keepdim=True) if self.reduce else form.outputs
        g = outputs.permute(2, 0, 1, 3, 4).reshape(q, -1, outputs.shape[-1])
        share = self.samples if outputs.shape[1] == 1 else 1
        gram = g.transpose(-1, -2) @ g * share
        self.left[name] = self.left[name] + gram if name in self.left else gram
        if name in self.right:
            return
        products = gram.new_zeros(q, i, i)
        limit = max(1, GRADIENT_BYTES // max(1, q * t * i * form.item))
        for start in range(0, self.samples, limit):
            a = form.inputs(start, min(self.samples, start + limit))
            a = a.mean(2, keepdim=True) if self.reduce else a
            a = a.transpose(0, 1).reshape(q, -1, i)
            products.baddbmm_(a.transpose(-1, -2), a)
        self.right[name] = products
        self.counts[name] = float(self.samples if self.reduce else self.samples * t)
        self.swapped[name] = form.swapped

    def finish(self) -> Kronecker:
        """The structure, every factor in the order of the parameter's own entries."""
        pieces: dict[str, Piece] = {}
        for name, shape in self.layout.shapes.items():
            if name in self.left:
                pieces[name] = self._piece(name, shape)
            elif name in self.dense:
                pieces[name] = DensePiece(self.dense[name])
            else:
                values = self.diagonal.get(name, self.like.new_zeros(shape))
                pieces[name] = DiagonalPiece(values.flatten())
        return Kronecker(self.layout, pieces)

    def _piece(self, name: str, shape: tuple[int, ...]) -> KroneckerPiece:
        """Undo the channels-last order of unfolded patches, so that the weight is row-major [g, r, s]."""
        left, right = self.left[name], self.right[name]
        if len(shape) > 2:
            space = shape[2:]
            k, channels = int(torch.tensor(space).prod()), shape[1]
            index = torch.arange(k * channels, device=left.device).view(k, channels).t().flatten()
            if self.swapped[name]:
                left = left[:, index][:, :, index]
            else:
                right = right[:, index][:, :, index]
        if self.swapped[name]:
            left, right = right, left
        return KroneckerPiece(left, right, self.counts[name])


def gram_matrix(factor, samples: int) -> Tensor:  # noqa: ANN001
    """Sum over columns and samples of g gᵀ for a factor at a flat value [n, o]: [o, o]."""
    columns = factor.product()
    share = samples if columns.shape[1] == 1 else 1
    flat = columns.reshape(columns.shape[0] * columns.shape[1], -1)
    gram = flat.t() @ flat
    gram = gram if share == 1 else gram * share
    window = factor.window
    if window is None or window.is_everything:
        return gram
    size = factor.shape[1]
    index = torch.arange(size, device=flat.device).view(window.full)[window.slices].flatten()
    whole = gram.new_zeros(size, size)
    whole[index[:, None], index] = gram
    return whole


@dataclass(eq=False)
class BlockSink(Sink):
    """One dense block for each group of parameters: sums of G Gᵀ.

    Attributes:
        members: block name -> its parameters, in layout order.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: dict[str, Tensor] = field(default_factory=dict)
    waiting: dict[str, Form] = field(default_factory=dict)

    def groups(self) -> list[tuple[str, ...]]:
        """A block's parameters need common columns."""
        return list(self.members.values())

    def add(self, name: str, form: Form) -> None:
        """Keep until the whole block is there."""
        self.waiting[name] = form

    def end_chunk(self) -> None:
        """Square the blocks of which any parameter received gradients."""
        for block, names in self.members.items():
            present = {name: self.waiting[name] for name in names if name in self.waiting}
            if not present:
                continue
            size = sum(self.layout.sizes[name] for name in names)
            if block not in self.blocks:
                self.blocks[block] = self.like.new_zeros(size, size)
            for rows in written_rows(self.layout, names, present):
                self.blocks[block].addmm_(rows.t(), rows)
        self.waiting.clear()

    def finish(self) -> Block:
        """The structure."""
        made: dict[str, tuple[tuple[str, ...], Tensor]] = {}
        for block, names in self.members.items():
            size = sum(self.layout.sizes[name] for name in names)
            made[block] = (names, self.blocks.get(block, self.like.new_zeros(size, size)))
        return Block(self.layout, made)


@dataclass(eq=False)
class FullSink(Sink):
    """The whole matrix: columns must be the same for all parameters, so nothing is recompressed."""

    recompresses: bool = False
    matrix: Tensor | None = None
    waiting: dict[str, Form] = field(default_factory=dict)

    def add(self, name: str, form: Form) -> None:
        """Keep until the chunk is complete."""
        self.waiting[name] = form

    def end_chunk(self) -> None:
        """Add the outer products of this chunk."""
        if self.waiting:
            if self.matrix is None:
                self.matrix = self.like.new_zeros(self.layout.total, self.layout.total)
            for rows in written_rows(self.layout, self.layout.names, self.waiting):
                self.matrix.addmm_(rows.t(), rows)
        self.waiting.clear()

    def finish(self) -> Full:
        """The structure."""
        size = self.layout.total
        return Full(self.layout, self.matrix if self.matrix is not None else self.like.new_zeros(size, size))


@dataclass(eq=False)
class LowRankSink(Sink):
    """All gradients, as columns of G with H = G Gᵀ."""

    recompresses: bool = False
    rows: list[Tensor] = field(default_factory=list)
    waiting: dict[str, Form] = field(default_factory=dict)

    def add(self, name: str, form: Form) -> None:
        """Keep until the chunk is complete."""
        self.waiting[name] = form

    def end_chunk(self) -> None:
        """Keep the written-out gradients of this chunk."""
        if self.waiting:
            self.rows.extend(rows.clone() for rows in written_rows(self.layout, self.layout.names, self.waiting))
        self.waiting.clear()

    def finish(self) -> LowRank:
        """The structure."""
        empty = self.like.new_zeros(0, self.layout.total)
        return LowRank(self.layout, torch.cat([empty, *self.rows]).t())


def written_rows(layout: Layout, names: tuple[str, ...], forms: Mapping[str, Form]):  # noqa: ANN201
    """Gradients of several parameters side by side, [c * m, P], a few samples at a time."""
    some = next(iter(forms.values()))
    total = sum(layout.sizes[name] for name in names)
    width = max(1, GRADIENT_BYTES // max(1, some.columns * total * some.item))
    for start in range(0, some.samples, width):
        stop = min(some.samples, start + width)
        parts = []
        for name in names:
            if name in forms:
                parts.append(forms[name].explicit(start, stop).reshape(some.columns * (stop - start), -1))
            else:
                reference = next(iter(forms.values())).explicit(start, start + 1)
                parts.append(reference.new_zeros(some.columns * (stop - start), layout.sizes[name]))
        yield torch.cat(parts, dim=1)

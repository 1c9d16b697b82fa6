"""Gradients that are small, or sparse: biases, norm scales, bare parameters, embeddings."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients.base import Form


class Explicit(Form):
    """Gradients written out, [c, n or 1, *shape].

    Attributes:
        values: the gradients.
        as_block: the bias of a layer whose weight has a Kronecker form; a dense block of its own is worth keeping.
    """

    def __init__(self, values: Tensor, samples: int, as_block: bool = False) -> None:
        super().__init__(tuple(values.shape[2:]), values.shape[0], samples, values.element_size())
        self.values = values
        self.as_block = as_block

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        if self.values.shape[1] == 1:
            return self.values.expand(-1, stop - start, *self.shape)
        return self.values[:, start:stop]

    @override
    def add_diagonal_(self, total: Tensor) -> None:
        share = self.samples if self.values.shape[1] == 1 else 1
        total.add_(self.values.square().sum(dim=(0, 1)), alpha=share)


class Entrywise(Form):
    """The bias of a dense layer without positions: its gradient is the factor itself."""

    def __init__(self, factor: Factor) -> None:
        super().__init__(factor.shape[1:], factor.count, factor.shape[0], factor.columns.element_size())
        self.factor = factor

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        return self.factor.dense()[:, start:stop]

    @override
    def add_diagonal_(self, total: Tensor) -> None:
        squares = self.factor.squares
        summed = squares.sum(0) * (self.samples // squares.shape[0])
        if self.factor.window is None:
            total += summed
        else:
            total.view(self.factor.window.full)[self.factor.window.slices] += summed


class Lookup(Form):
    """An embedding: the gradient of one sample touches the rows of its own tokens.

    Attributes:
        tokens: [n, t]; padding positions are -1.
        outputs: g, [c, n, t, e].
    """

    def __init__(self, tokens: Tensor, outputs: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__(shape, outputs.shape[0], tokens.shape[0], outputs.element_size())
        self.tokens = tokens
        self.outputs = outputs

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        c, m = self.columns, stop - start
        vocabulary, width = self.shape
        result = self.outputs.new_zeros(c, m * (vocabulary + 1), width)  # one extra row takes the padding
        rows = torch.arange(m, device=self.tokens.device)[:, None] * (vocabulary + 1) + self.tokens[start:stop] + 1
        result.index_add_(1, rows.flatten(), self.outputs[:, start:stop].reshape(c, -1, width))
        return result.view(c, m, vocabulary + 1, width)[:, :, 1:]

    @override
    def add_diagonal_(self, total: Tensor) -> None:
        # equal tokens of one sample are summed before squaring: memory c * n * t * e, not c * n * vocabulary * e
        vocabulary, width = self.shape
        offsets = torch.arange(self.samples, device=self.tokens.device)[:, None] * (vocabulary + 1)
        keys, inverse = torch.unique((offsets + self.tokens + 1).flatten(), return_inverse=True)
        rows = keys % (vocabulary + 1) - 1
        kept = rows >= 0
        for column in self.outputs:
            summed = column.new_zeros(len(keys), width).index_add_(0, inverse, column.reshape(-1, width))
            total.index_add_(0, rows[kept], summed[kept].square())

"""Represent per-sample gradients of one parameter, in the form in which an operation's rule computes them.

A factor S at the output of an operation gives `G[c, n] = Jwᵀ S`, one gradient of the parameter w per column and sample.
Every structure is made of them: the diagonal is the sum of their squares, a block the sum of their outer products.
Writing them out costs columns x samples x parameters, so each class knows cheaper ways where there are any: here those
that are small or sparse (biases, scales, embeddings) and the fall-back, in `outer_products.py` those of weights.

Index letters: `c` columns, `n` samples (`m` of them at a time), `q` groups, `t` positions, `o` outputs, `i` inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from marquis.curvature.factors.factor import Factor

CHUNK_BYTES = 2**20
"""Size of temporaries: about 1 MB stays in the cache, and page faults dominate above it."""


class ParameterGradients(ABC):
    """Represent gradients `G[c, n, *shape]` of one batch-free tensor.

    Attributes:
        shape: shape of the tensor.
        columns: number of columns.
        samples: number of samples.
        item: bytes of one number.
    """

    def __init__(self, shape: tuple[int, ...], columns: int, samples: int, item: int) -> None:
        self.shape = shape
        self.columns = columns
        self.samples = samples
        self.item = item

    @abstractmethod
    def explicit(self, start: int, stop: int) -> Tensor:
        """Return the gradients of samples [start, stop): [c, stop - start, *shape]."""

    @property
    def kronecker_form(self) -> tuple[str, int]:
        """Return how a Kronecker structure keeps it ("kronecker", "dense" or "diagonal"), and in how many numbers."""
        return "diagonal", prod(self.shape)

    def largest_per_sample(self) -> int:
        """Return the number of entries of the largest temporary that one sample needs."""
        return self.columns * prod(self.shape)

    def sample_ranges(self, limit: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """Yield ranges of samples whose temporaries take about `limit` bytes."""
        width = max(1, limit // max(1, self.largest_per_sample() * self.item))
        for start in range(0, self.samples, width):
            yield start, min(self.samples, start + width)

    def add_diagonal_(self, total: Tensor) -> None:
        """Add the sum of squares over columns and samples. Cost: c * n * (cost of one gradient)."""
        for start, stop in self.sample_ranges():
            for row in self.explicit(start, stop).flatten(0, 1):
                total.addcmul_(row, row)


@dataclass(eq=False)
class LazyGradients(ParameterGradients):
    """Compute gradients by a function of the sample range: the exact fall-back, and derived weights."""

    make: Callable[[int, int], Tensor]
    columns: int
    samples: int
    shape: tuple[int, ...]
    item: int

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        return self.make(start, stop)


class ExplicitGradients(ParameterGradients):
    """Hold gradients that are written out, [c, n or 1, *shape].

    Attributes:
        values: the gradients.
        as_block: the bias of a layer whose weight has a Kronecker form; a dense block for it is worth keeping.
    """

    def __init__(self, values: Tensor, samples: int, as_block: bool = False) -> None:
        super().__init__(tuple(values.shape[2:]), values.shape[0], samples, values.element_size())
        self.values = values
        self.as_block = as_block

    @property
    @override
    def kronecker_form(self) -> tuple[str, int]:
        return ("dense", prod(self.shape) ** 2) if self.as_block else super().kronecker_form

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        if self.values.shape[1] == 1:
            return self.values.expand(-1, stop - start, *self.shape)
        return self.values[:, start:stop]

    @override
    def add_diagonal_(self, total: Tensor) -> None:
        share = self.samples if self.values.shape[1] == 1 else 1
        total.add_(self.values.square().sum(dim=(0, 1)), alpha=share)


class BiasGradients(ParameterGradients):
    """Represent gradients of a dense layer's bias without positions: they are the factor itself."""

    def __init__(self, factor: Factor) -> None:
        super().__init__(factor.shape[1:], factor.count, factor.shape[0], factor.like.element_size())
        self.factor = factor

    @property
    @override
    def kronecker_form(self) -> tuple[str, int]:
        return "dense", prod(self.shape) ** 2

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


class EmbeddingGradients(ParameterGradients):
    """Represent gradients of an embedding: that of one sample touches the rows of its own tokens.

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
        valid = rows >= 0
        for column in self.outputs:
            summed = column.new_zeros(len(keys), width).index_add_(0, inverse, column.reshape(-1, width))
            total.index_add_(0, rows[valid], summed[valid].square())

"""What every form of per-sample gradients can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from math import prod

from torch import Tensor
from typing_extensions import override

CHUNK_BYTES = 2**20
"""Size of temporaries: about 1 MB stays in the cache, and page faults dominate above it."""


class Form(ABC):
    """Gradients `G[c, n, *shape]` of one batch-free tensor.

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
        """The gradients of samples [start, stop): [c, stop - start, *shape]."""

    def largest_per_sample(self) -> int:
        """Entries of the largest temporary that one sample needs."""
        return self.columns * prod(self.shape)

    def sample_ranges(self, limit: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """Ranges of samples whose temporaries take about `limit` bytes."""
        width = max(1, limit // max(1, self.largest_per_sample() * self.item))
        for start in range(0, self.samples, width):
            yield start, min(self.samples, start + width)

    def add_diagonal_(self, total: Tensor) -> None:
        """Add the sum of squares over columns and samples. Cost: c * n * (cost of one gradient)."""
        for start, stop in self.sample_ranges():
            for row in self.explicit(start, stop).flatten(0, 1):
                total.addcmul_(row, row)


class Lazy(Form):
    """Gradients from a function of the sample range: the exact fall-back, and weights derived from parameters."""

    def __init__(
        self, make: Callable[[int, int], Tensor], columns: int, samples: int, shape: tuple[int, ...], item: int
    ) -> None:
        super().__init__(shape, columns, samples, item)
        self.make = make

    @override
    def explicit(self, start: int, stop: int) -> Tensor:
        return self.make(start, stop)

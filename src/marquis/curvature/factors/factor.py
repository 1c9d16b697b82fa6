"""Represent the factor S that flows backwards: a square root of the curvature M = S Sᵀ at one tensor of the network.

Index letters, here and in the rules: `c` columns, `n` samples, `g...` the tensor's dimensions without the batch.

A factor is kept as cheaply as its history allows:

* `columns` may be shared by all samples (size 1 where `n` stands) as long as nothing that depends on the sample has
  touched it: under Gaussian noise that is the whole affine tail of a network.
* `scale` is a pending elementwise multiplication: activations multiply it, which costs `n`, not `c * n`. It is folded
  in when the next mixing operation needs the product.
* `window` crops the columns to where they are not zero: the receptive field of a tile of output pixels, or the non-zero
  part of a triangular factor. With it the cost of the exact diagonal of convolutions grows linearly with the pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Describe a box inside a grid; `full` is the grid's shape without the batch, `ranges` the box.

    The grid may be the shape before a flattening: a value of shape [n, C*H*W] can carry a window on (C, H, W).
    """

    full: tuple[int, ...]
    ranges: tuple[Range, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the box."""
        return tuple(stop - start for start, stop in self.ranges)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Return the index of the box within its grid."""
        return tuple(slice(start, stop) for start, stop in self.ranges)

    @property
    def is_everything(self) -> bool:
        """Return whether the box is the whole grid."""
        return self.shape == self.full

    def crop(self, tensor: Tensor) -> Tensor:
        """Cut the box out of a tensor whose dimensions behind the first are the grid, flattened or not."""
        return tensor.reshape(len(tensor), *self.full)[(slice(None), *self.slices)]

    def union(self, other: Window) -> Window:
        """Return the smallest box that holds both."""
        pairs = zip(self.ranges, other.ranges, strict=True)
        return Window(self.full, tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class Factor:
    """Hold columns of S at one value of the network; see the module's text.

    Attributes:
        columns: [c, n or 1, *grid] (or [c, *shape] with the batch elsewhere, when `batch_first` is False).
        shape: the value's full shape, batch included.
        scale: pending multiplication, broadcastable to [n, *grid], cropped like the columns.
        window: where the columns sit in the grid; None means everywhere, and grid = shape without the batch.
        batch_first: whether the batch is dimension 0 of the value.
    """

    columns: Tensor
    shape: tuple[int, ...]
    scale: Tensor | None = None
    window: Window | None = None
    batch_first: bool = True

    @property
    def count(self) -> int:
        """Return the number of columns."""
        return self.columns.shape[0]

    @property
    def like(self) -> Tensor:
        """Return a tensor with the dtype and device of the columns."""
        return self.columns

    @property
    def has_shared_columns(self) -> bool:
        """Return whether one set of columns serves all samples."""
        return self.batch_first and self.columns.shape[1] == 1 and self.shape[0] != 1

    def multiply(self, scale: Tensor) -> Factor:
        """Multiply elementwise by a tensor of the value's shape (or broadcastable to it); lazy."""
        if self.window is not None:
            scale = self.window.crop(scale.expand(scale.shape[0], *self.shape[1:]))
        merged = scale if self.scale is None else self.scale * scale
        return replace(self, scale=merged)

    def product(self) -> Tensor:
        """Return the columns with the pending scale folded in, still cropped: [c, n or 1, *box]."""
        return self.columns if self.scale is None else self.columns * self.scale

    def materialised(self) -> Factor:
        """Return the same factor with nothing pending."""
        return self if self.scale is None else replace(self, columns=self.product(), scale=None)

    def dense(self) -> Tensor:
        """Return all columns written out: [c, *shape]."""
        columns = self.product()
        if self.window is not None and not self.window.is_everything:
            whole = columns.new_zeros(*columns.shape[:2], *self.window.full)
            whole[(slice(None), slice(None), *self.window.slices)] = columns
            columns = whole
        if self.batch_first:
            columns = columns.expand(columns.shape[0], self.shape[0], *columns.shape[2:])
        return columns.reshape(self.count, *self.shape)

    def unwindowed(self) -> Factor:
        """Return the same factor without a window."""
        if self.window is None:
            return self
        if self.window.is_everything and self.window.full == self.shape[1:]:
            return replace(self, window=None)
        if not self.has_shared_columns:
            return replace(self, columns=self.dense(), scale=None, window=None)
        one = Factor(self.columns, (1, *self.shape[1:]), None, self.window).dense()
        scale = None
        if self.scale is not None:
            ones = self.scale.shape[0]
            scale = Factor(
                self.scale.expand(ones, *self.window.shape)[None], (ones, *self.shape[1:]), None, self.window
            )
        return Factor(one, self.shape, None if scale is None else scale.dense()[0])

    def whole_channels(self) -> Factor:
        """Return the same factor with a window that holds every channel, for operations that mix channels."""
        window = self.window
        if window is None or window.full != self.shape[1:] or window.ranges[0] == (0, window.full[0]):
            return self
        wider = Window(window.full, ((0, window.full[0]), *window.ranges[1:]))
        return Factor(self._within(wider), self.shape, None, wider)

    @cached_property
    def squares(self) -> Tensor:
        """Return diag(M) = sum over columns of the squares, cropped: [n or 1, *box]."""
        total = sum_of_squares(self.columns)
        return total if self.scale is None else total * self.scale.square()

    def add_square_sum_(self, total: Tensor) -> None:
        """Add diag(M) to a tensor of the value's shape."""
        squares = self.squares
        if self.window is not None:
            grid = total.view(total.shape[0], *self.window.full)
            grid[(slice(None), *self.window.slices)] += squares
        else:
            total += squares

    def shape_filled_squares(self) -> Tensor:
        """Return diag(M) for every sample, uncropped: the value's shape."""
        total = self.columns.new_zeros(self.shape)
        self.add_square_sum_(total)
        return total

    def plus(self, other: Factor) -> Factor:
        """Return the sum of two factors at the same value with the same columns (a fork of the network)."""
        if not self.batch_first:
            return replace(self, columns=self.dense() + other.dense(), scale=None, window=None)
        a, b = self, other
        if a.window is None or b.window is None or a.window.full != b.window.full:
            a, b = a.unwindowed(), b.unwindowed()
            return replace(a, columns=a.product() + b.product(), scale=None)
        window = a.window.union(b.window)
        return Factor(a._within(window) + b._within(window), a.shape, None, window)

    def _within(self, window: Window) -> Tensor:
        """Return the product padded to a larger box."""
        columns = self.product()
        if self.window == window:
            return columns
        assert self.window is not None
        whole = columns.new_zeros(*columns.shape[:2], *window.shape)
        offsets = [slice(a - w, b - w) for (a, b), (w, _) in zip(self.window.ranges, window.ranges, strict=True)]
        whole[(slice(None), slice(None), *offsets)] = columns
        return whole


def sum_of_squares(columns: Tensor) -> Tensor:
    """Return the sum of squares over dimension 0, one column at a time: the temporaries stay in the cache."""
    total = columns[0].square()
    for column in columns[1:]:
        total.addcmul_(column, column)
    return total


def identity_columns(shape: Sequence[int], window: Window, *, dtype: torch.dtype, device: torch.device | str) -> Factor:
    """Return one column per entry of a box: the identity, cropped to the box, shared by all samples."""
    size = prod(window.shape)
    eye = torch.eye(size, dtype=dtype, device=device).view(size, 1, *window.shape)
    return Factor(eye, tuple(shape), None, window)

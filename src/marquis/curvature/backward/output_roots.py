"""Compute where the factor pass starts: columns of a square root of the output Hessian.

A root is a list of chunks of columns, made one at a time. `exact` has one column per output, in tiles of the image
where the output is one; `sketched` has a few random combinations of them; the Fisher and the empirical Fisher have
gradients at sampled labels or at those of the data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from marquis.curvature.factors.centred import CentredFactor, Softmax
from marquis.curvature.factors.factor import Factor, Window, identity_columns
from marquis.likelihoods import Categorical, Likelihood

LARGEST_WHOLE_ROOT = 2**20
"""Numbers in a root that couples all outputs, up to which it is made in one piece: later chunks are views of it."""

MANY_CLASSES = 48
"""Classes from which on the columns of a softmax are kept as differences to their mean (measured: even at 32 to 64)."""


class SquareRoot(ABC):
    """Provide columns of the output Hessian's root, from which a backward walk starts."""

    count: int
    shared: bool

    def chunks(self, columns: int) -> list[object]:
        """Return descriptions of chunks of about this many columns; here ranges of consecutive ones."""
        return _ranges_of(self.count, columns)

    @abstractmethod
    def make(self, chunk: object) -> Factor:
        """Return the columns of one chunk."""

    def of_samples(self, start: int, stop: int) -> SquareRoot | None:
        """Return the root of the samples [start, stop) only; None where it is not cut."""
        return None


@dataclass(eq=False)
class ExplicitRoot(SquareRoot):
    """Hold columns that are already written out: [c, n, *shape]."""

    columns: Tensor
    shape: tuple[int, ...]
    shared: bool = False

    @property
    def count(self) -> int:  # type: ignore[override]
        """Return the number of columns."""
        return self.columns.shape[0]

    def make(self, chunk: object) -> Factor:
        """Return a slice of the columns."""
        start, stop = chunk  # type: ignore[misc]
        return Factor(self.columns[start:stop], self.shape)

    @override
    def of_samples(self, start: int, stop: int) -> SquareRoot | None:
        columns = self.columns if self.columns.shape[1] == 1 else self.columns[:, start:stop]
        return ExplicitRoot(columns, (stop - start, *self.shape[1:]), self.shared)


@dataclass(eq=False)
class AppliedRoot(SquareRoot):
    """Provide columns of a root that couples all outputs of a sample, made by `apply_sqrt` as they are needed.

    All of them at once are outputs x outputs numbers per sample.
    """

    likelihood: Likelihood
    outputs: Tensor
    mask: Tensor | None
    shared: bool = False

    def __post_init__(self) -> None:
        """Count the columns."""
        self.count = prod(self.likelihood.root_shape(self.outputs))

    def make(self, chunk: object) -> Factor:
        """Return a range of columns."""
        columns = _columns(self.likelihood, self.outputs, self.mask, chunk)  # type: ignore[arg-type]
        return Factor(columns, tuple(self.outputs.shape))


class CentredRoot(SquareRoot):
    """Provide columns of a softmax with many classes, one per class, that a dense layer takes at its input's cost."""

    shared = False

    def __init__(self, outputs: Tensor, mask: Tensor | None) -> None:
        """Keep the probabilities [n, classes]."""
        self.softmax = Softmax.of(outputs, mask)
        self.count = outputs.shape[1]

    def make(self, chunk: object) -> Factor:
        """Return a range of columns."""
        return CentredFactor(self.softmax, *chunk)  # type: ignore[misc]


def _ranges_of(count: int, columns: int) -> list[object]:
    """Return ranges of at most `columns` numbers that cover `count`."""
    return [(start, min(count, start + columns)) for start in range(0, count, columns)]


def _columns(likelihood: Likelihood, outputs: Tensor, mask: Tensor | None, chunk: tuple[int, int]) -> Tensor:
    """Return the columns number `start` to `stop` of the root, `[stop - start, n, ...]`."""
    start, stop = chunk
    roots = likelihood.root_shape(outputs)
    basis = outputs.new_zeros(stop - start, prod(roots))
    basis[:, start:stop].fill_diagonal_(1)
    basis = basis.view(stop - start, 1, *roots).expand(stop - start, outputs.shape[0], *roots)
    return likelihood.apply_sqrt(outputs, basis, mask)


@dataclass(eq=False)
class PixelwiseRoot(SquareRoot):
    """Provide columns of output Hessians that couple nothing, or only entries along one dimension (classes).

    Columns are made for a box of the output at a time: an identity within the box, or the root of its classes, of which
    a chunk may hold a part where there are many.

    Attributes:
        likelihood: p(y|f).
        outputs: f.
        mask: observed entries, or None.
        grid: the shape in which boxes are cut: f's shape without the batch, or the image that was flattened into it.
        local: whether to cut square tiles of the last dimensions rather than ranges of a flat output.
    """

    likelihood: Likelihood
    outputs: Tensor
    mask: Tensor | None
    grid: tuple[int, ...]
    local: bool

    def __post_init__(self) -> None:
        """Derive the number of columns and what can be shared by all samples."""
        self.shared = self.likelihood.constant_hessian and self.mask is None and self.likelihood.coupling is None
        self.root_grid = self.grid
        if self.likelihood.coupling is not None:
            axis = self._class_axis
            self.root_grid = tuple(s - 1 if d == axis else s for d, s in enumerate(self.grid))
        self.count = prod(self.root_grid)
        if self.likelihood.coupling is None:
            source = self.outputs[:1] if self.shared else self.outputs
            self.scale = self.likelihood.hessian_diagonal(source, self.mask).sqrt().reshape(-1, *self.grid)

    @property
    def _class_axis(self) -> int:
        """Return the class dimension, counted without the batch."""
        assert isinstance(self.likelihood.coupling, int)
        return self.likelihood.coupling % self.outputs.dim() - 1

    def chunks(self, columns: int) -> list[object]:
        """Return boxes of the grid with about this many root columns each, and which of its columns, if not all."""
        boxes = self._tiles(columns) if self.local else self._ranges(columns)
        if self.likelihood.coupling is None:
            return [(box, None) for box in boxes]
        axis, parts = self._class_axis, []
        for box in boxes:
            count = prod(b - a for d, (a, b) in enumerate(box) if d != axis) * self.root_grid[axis]
            parts += [(box, part) for part in (_ranges_of(count, columns) if count > 2 * columns else [None])]
        return parts

    def _tiles(self, columns: int) -> list[tuple[tuple[int, int], ...]]:
        """Cut square tiles of the image."""
        depth = self.root_grid[0]
        space = self.grid[1:]
        side = max(1, round((columns / depth) ** (1 / len(space))))
        boxes: list[tuple[tuple[int, int], ...]] = [((0, self.grid[0]),)]
        for size in space:
            boxes = [(*box, (a, min(size, a + side))) for box in boxes for a in range(0, size, side)]
        return boxes

    def _ranges(self, columns: int) -> list[tuple[tuple[int, int], ...]]:
        """Cut along the largest dimension that is not the classes'."""
        classes = None if self.likelihood.coupling is None else self._class_axis
        others = [d for d in range(len(self.grid)) if d != classes]
        whole = tuple((0, size) for size in self.grid)
        if not others:
            return [whole]
        axis = max(others, key=lambda d: self.grid[d])
        step = max(1, columns * self.grid[axis] // max(1, self.count))
        return [
            (*whole[:axis], (a, min(self.grid[axis], a + step)), *whole[axis + 1 :])
            for a in range(0, self.grid[axis], step)
        ]

    def make(self, chunk: object) -> Factor:
        """Return the columns whose root coordinates lie in a box."""
        box, part = chunk  # type: ignore[misc]
        window = Window(self.grid, box)
        shape = tuple(self.outputs.shape)
        if self.likelihood.coupling is None:
            eye = identity_columns(shape, window, dtype=self.outputs.dtype, device=self.outputs.device)
            scale = self.scale[(slice(None), *window.slices)]
            if self.shared:
                return Factor(eye.columns * scale, shape, None, _unless_trivial(window, shape))
            return Factor(eye.columns, shape, scale, _unless_trivial(window, shape))
        cropped = window.crop(self.outputs)
        mask = None
        if self.mask is not None:
            axis = self._class_axis
            ranges = tuple(r for d, r in enumerate(window.ranges) if d != axis)
            rest = tuple(s for d, s in enumerate(self.grid) if d != axis)
            target = self.likelihood.target_shape(self.outputs)
            mask = Window(rest, ranges).crop(self.mask.expand(target))
        part = (0, prod(self.likelihood.root_shape(cropped))) if part is None else part
        columns = _columns(self.likelihood, cropped, mask, part)
        return Factor(columns, shape, None, _unless_trivial(window, shape))


def _unless_trivial(window: Window, shape: tuple[int, ...]) -> Window | None:
    """Return the window, or None where it is the whole tensor."""
    return None if window.is_everything and window.full == shape[1:] else window


def exact_root(
    likelihood: Likelihood, outputs: Tensor, mask: Tensor | None, image: tuple[int, ...] | None
) -> SquareRoot:
    """Return the exact square root, with one column per output.

    Args:
        likelihood: p(y|f).
        outputs: f, [n, ...].
        mask: observed entries, or None for all.
        image: the shape (channels, *space) whose tiles are worth treating apart, or None.
    """
    shape = tuple(outputs.shape[1:])
    if likelihood.coupling == "all" or not shape or (likelihood.coupling is not None and len(shape) == 1):
        shared = likelihood.constant_hessian and mask is None
        source = outputs[:1] if shared else outputs
        if type(likelihood) is Categorical and outputs.dim() == 2 and outputs.shape[1] >= MANY_CLASSES:
            return CentredRoot(outputs, mask)
        # a likelihood that only writes columns forms the whole root each time
        if not likelihood.only_columns and prod(likelihood.root_shape(source)) * source.numel() > LARGEST_WHOLE_ROOT:
            return AppliedRoot(likelihood, source, mask, shared)
        return ExplicitRoot(likelihood.hessian_sqrt(source, mask), tuple(outputs.shape), shared)
    if image is not None and (
        likelihood.coupling is None or (image == shape and likelihood.coupling % outputs.dim() == 1)
    ):
        return PixelwiseRoot(likelihood, outputs, mask, image, local=True)
    return PixelwiseRoot(likelihood, outputs, mask, shape, local=False)


def sketched_root(
    likelihood: Likelihood, outputs: Tensor, mask: Tensor | None, probes: int, generator: torch.Generator | None
) -> SquareRoot:
    """Return random columns s with E[s sᵀ] = output Hessian: Rademacher signs through the exact square root."""
    shape = (probes, outputs.shape[0], *likelihood.root_shape(outputs))
    bits = torch.randint(0, 2, shape, generator=generator, device=outputs.device, dtype=torch.int8)
    signs = bits.to(outputs.dtype).mul_(2).sub_(1)
    columns = likelihood.apply_sqrt(outputs, signs, mask)
    return ExplicitRoot(columns if probes == 1 else columns / probes**0.5, tuple(outputs.shape))


def fisher_root(
    likelihood: Likelihood, outputs: Tensor, mask: Tensor | None, samples: int, generator: torch.Generator | None
) -> SquareRoot:
    """Return gradients at labels sampled from the model, which are unbiased for the Fisher."""
    columns = torch.stack([likelihood.fisher_column(outputs, generator, mask) for _ in range(samples)])
    return ExplicitRoot(columns / samples**0.5, tuple(outputs.shape))


def empirical_root(likelihood: Likelihood, outputs: Tensor, mask: Tensor | None, labels: Tensor) -> SquareRoot:
    """Return gradients at the labels of the data, whose square is the empirical Fisher."""
    return ExplicitRoot(likelihood.gradient(outputs, labels, mask)[None], tuple(outputs.shape))

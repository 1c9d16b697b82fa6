"""Describe the geometry of a convolution, images as lists of patches, and the products of patches with each other.

Index letters: `n` samples, `q` groups, `t` output positions, `k` offsets within the kernel, `I` input channels.

`unfold` of PyTorch would be the bottleneck; a strided view of the padded image with channels last is copied instead.
The products of all patches (the Kronecker factor of a convolution's inputs) need no patches at all: they depend on two
offsets within the kernel only through their difference, apart from a rim of the image, and so they are a correlation of
the image with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import per_dimension
from marquis.curvature.ops.registry import operation_of
from marquis.functional.matmul import gram, matmul

Pads = list[tuple[int, int]]
"""Zeros before and after, per spatial dimension."""

FEW_PATCHES = 2**20
"""Entries of patches up to which they are written out: a convolution of a strip costs more than its arithmetic."""

PATCH_BYTES = 2**25
"""Bytes of patches that are held at a time where they are written out."""

SMALL_PATCH = 64
"""Patches with no more entries than this are simply written out."""

LINES_BYTES = 2**21
"""Bytes of patches held at a time where they are written out line by line: they stay in the cache."""


@dataclass(frozen=True, eq=False)
class ConvolutionGeometry:
    """Hold kernel and options of one convolution, plain or transposed, one number per spatial dimension.

    Attributes:
        weight: the kernel.
        kernel: its spatial size.
        stride: stride.
        dilation: dilation.
        padding: (before, after); 'same' and 'valid' are resolved.
        output_padding: of a transposed convolution.
        groups: number of groups.
        transposed: whether the convolution is transposed.
    """

    weight: Tensor
    kernel: tuple[int, ...]
    stride: list[int]
    dilation: list[int]
    padding: Pads
    output_padding: list[int]
    groups: int
    transposed: bool

    @property
    def dims(self) -> int:
        """Return the number of spatial dimensions."""
        return len(self.kernel)

    @staticmethod
    def of(step: Step, values: Mapping[int, Any]) -> ConvolutionGeometry:
        """Read the geometry from the arguments of a step."""
        weight: Tensor = step.argument("weight", values)
        kernel = tuple(weight.shape[2:])
        stride, dilation = (per_dimension(step.argument(name, values), len(kernel)) for name in ("stride", "dilation"))
        padding = step.argument("padding", values)
        if padding == "same":
            totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            pads = [(total // 2, total - total // 2) for total in totals]
        else:
            pads = [(p, p) for p in per_dimension(0 if padding == "valid" else padding, len(kernel))]
        transposed = operation_of(step).kind == "transposed convolution"
        if step.has_argument("transposed"):
            transposed = step.argument("transposed", values)
        extra = step.argument("output_padding", values) if step.has_argument("output_padding") else 0
        groups = step.argument("groups", values)
        return ConvolutionGeometry(
            weight, kernel, stride, dilation, pads, per_dimension(extra, len(kernel)), groups, transposed
        )


def unfold(image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...]) -> Tensor:
    """Return the patches that output positions in a box read: [n, q, t, *k * I/q], channels fastest."""
    return unfolder(image, geometry, boxes)(0, image.shape[0])


def unfolder(
    image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...]
) -> Callable[[int, int], Tensor]:
    """Return what writes out the same patches of the samples [start, stop); the image is padded once."""
    by_line = _by_line(image, geometry, boxes)
    offsets, positions = _dimensions(geometry)

    @cache
    def windows() -> Tensor:
        return _windows(image, geometry, boxes, channels_last=not by_line)

    def patches(start: int, stop: int) -> Tensor:
        part = windows()[start:stop]
        n, groups, size = part.shape[0], part.shape[1], prod(part.shape[2 + geometry.dims :])
        if by_line:
            return part.permute(0, 1, *offsets, *positions).reshape(n, groups, size, -1).mT
        return part.reshape(n, groups, -1, size)

    return patches


def _by_line(image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...]) -> bool:
    """Return whether lines of the image are longer than the channels of a pixel, so that they are copied whole."""
    return geometry.stride[-1] == 1 and image.shape[1] // geometry.groups < boxes[-1][1] - boxes[-1][0]


def _dimensions(geometry: ConvolutionGeometry) -> tuple[range, range]:
    """Return the dimensions [*k, I/q] and [*counts] of `_windows`."""
    dims = geometry.dims
    return range(2 + dims, 3 + 2 * dims), range(2, 2 + dims)


def _windows(
    image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...], channels_last: bool
) -> Tensor:
    """Return the same patches as overlapping views of the padded image: [n, q, *counts, *k, I/q]."""
    kernel, stride, dilation, padding = geometry.kernel, geometry.stride, geometry.dilation, geometry.padding
    dims, groups = geometry.dims, geometry.groups
    n, channels = image.shape[:2]
    index, pads = [], []
    for axis, (first, last) in enumerate(boxes):
        low = first * stride[axis] - padding[axis][0]
        high = (last - 1) * stride[axis] - padding[axis][0] + dilation[axis] * (kernel[axis] - 1) + 1
        size = image.shape[2 + axis]
        index.append(slice(max(0, low), min(size, high)))
        pads.append((max(0, -low), max(0, high - size)))
    box = image[(slice(None), slice(None), *index)]
    if any(any(pad) for pad in pads):
        box = F.pad(box, [p for pad in reversed(pads) for p in pad])
    # A plain copy, whose strides are known: [n, *space, channels] or [n, channels, *space].
    box = (box.movedim(1, -1) if channels_last else box).contiguous()
    steps, space, channel = box.stride(), 1 if channels_last else 2, -1 if channels_last else 1
    counts = [stop - start for start, stop in boxes]
    each = channels // groups
    return box.as_strided(
        (n, groups, *counts, *kernel, each),
        (
            steps[0],
            each * steps[channel],
            *(steps[space + axis] * stride[axis] for axis in range(dims)),
            *(steps[space + axis] * dilation[axis] for axis in range(dims)),
            steps[channel],
        ),
    )


def patch_products(
    image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...], sharing: str
) -> tuple[Tensor, float]:
    """Sum over samples and positions of a aᵀ for the patches a, [q, *k * I/q, same], and the number of terms.

    Args:
        image: [n, I, *space].
        geometry: the convolution's.
        boxes: range of output positions, per dimension.
        sharing: "expand", or "reduce" for products of the mean patch of each sample.
    """
    kernel, groups = geometry.kernel, geometry.groups
    positions = prod(stop - start for start, stop in boxes)
    n, channels = image.shape[:2]
    size = prod(kernel) * channels // groups
    worth = groups == 1 and prod(kernel) > 1 and size > SMALL_PATCH and n * positions * size > FEW_PATCHES
    if sharing == "expand" and worth and set(geometry.stride) == {1}:
        return _by_correlation(image, geometry)[None], float(n * positions)
    total: Tensor | None = None
    by_line = sharing == "expand" and _by_line(image, geometry, boxes)
    limit = LINES_BYTES if by_line else PATCH_BYTES
    step = max(1, limit // max(1, groups * positions * size * image.element_size()))
    offsets, counts = _dimensions(geometry)
    for start in range(0, n, step):
        part = image[start : start + step]
        if by_line:
            lines = _windows(part, geometry, boxes, channels_last=False).permute(1, *offsets, 0, *counts)
            a = lines.reshape(groups, size, -1).mT
        else:
            a = unfold(part, geometry, boxes)
            a = a.mean(2, keepdim=True) if sharing == "reduce" else a
            a = a.transpose(0, 1).reshape(groups, -1, size)
        total = gram(a) if total is None else total.add_(gram(a))
    total = image.new_zeros(groups, size, size) if total is None else total
    return total, float(n if sharing == "reduce" else n * positions)


def _by_correlation(image: Tensor, geometry: ConvolutionGeometry) -> Tensor:
    """Compute the products of patches at stride 1: A(u, v) = sum over the box at u of x(s) x(s + v - u)ᵀ.

    The sum over the whole image is one weight gradient of a convolution of the image with itself, for all differences
    v - u at once; what the box at u leaves out are thin strips, which are taken off in the same way, or by patches
    where they have few positions.
    """
    kernel, dilation, padding = geometry.kernel, geometry.dilation, geometry.padding
    sizes, channels = image.shape[2:], image.shape[1]
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    before = [0, *reach[1:]]  # differences along the first dimension are not negative: the others follow by symmetry
    padded = F.pad(image, [p for pad in reversed(list(zip(before, reach, strict=True))) for p in pad])
    shape = (channels, channels, kernel[0], *(2 * k - 1 for k in kernel[1:]))
    known: dict[tuple[Any, ...], Tensor] = {}

    def left_out(axis: int, offset: int) -> list[tuple[int, int]]:
        low = offset * dilation[axis] - padding[axis][0]
        high = low + sizes[axis] + sum(padding[axis]) - reach[axis]
        strips = ((0, min(low, sizes[axis])), (max(high, 0), sizes[axis]))
        return [strip for strip in strips if strip[0] < strip[1]]

    @cache
    def with_first(axis: int) -> tuple[Tensor, Tensor]:
        """Return image and padded image with one dimension moved to the front of the space."""
        return image.movedim(2 + axis, 2).contiguous(), padded.movedim(2 + axis, 2).contiguous()

    def correlation(ranges: tuple[tuple[int, int], ...]) -> Tensor:
        thin = min(range(len(ranges)), key=lambda axis: ranges[axis][1] - ranges[axis][0])
        order = [thin, *(axis for axis in range(len(ranges)) if axis != thin)]
        inside = [slice(*ranges[axis]) for axis in order]
        around = [slice(part.start, part.stop + reach[a] + before[a]) for part, a in zip(inside, order, strict=True)]
        every = (slice(None), slice(None))
        here, there = (part[(*every, *box)] for part, box in zip(with_first(thin), (inside, around), strict=True))
        sides, spread = [shape[2 + axis] for axis in order], [dilation[axis] for axis in order]
        if here.numel() * prod(shape[1:]) <= FEW_PATCHES * channels:
            each = replace(geometry, kernel=tuple(sides), dilation=spread, padding=[(0, 0)] * len(kernel))
            patches = unfold(there, each, tuple((0, size) for size in here.shape[2:])).flatten(0, 2)
            products = matmul(here.movedim(1, -1).flatten(0, -2).t(), patches)  # [channels, k * channels]
            products = products.view(channels, *sides, channels).movedim(-1, 1)
        else:
            here, there = here.contiguous(), there.contiguous()
            weight, none = image.new_empty(1).expand(channels, channels, *sides), [0] * len(kernel)
            options = ([1] * len(kernel), none, spread, False, none, 1, [False, True, False])
            products = torch.ops.aten.convolution_backward(here, there, weight, None, *options)[1]
        return products.movedim(2, 2 + thin)

    def within(u: tuple[int, ...], ranges: tuple[tuple[int, int], ...]) -> Tensor:
        key = (u[len(ranges) :], ranges)
        if key not in known:
            if len(ranges) == len(kernel):
                known[key] = correlation(ranges)
            else:
                axis = len(ranges)
                total = within(u, (*ranges, (0, sizes[axis])))
                for strip in left_out(axis, u[axis]):
                    total = total - within(u, (*ranges, strip))
                known[key] = total
        return known[key]

    result = image.new_empty(*kernel, channels, *kernel, channels)
    for u in product(*(range(k) for k in kernel)):
        others = [slice(k - 1 - a, 2 * k - 1 - a) for a, k in zip(u[1:], kernel[1:], strict=True)]
        shifted = within(u, ())[(slice(None), slice(None), slice(0, kernel[0] - u[0]), *others)]
        result[u][:, u[0] :] = shifted.movedim(1, -1)
    side = prod(kernel[1:]) * channels
    blocks = result.view(kernel[0], side, kernel[0], side)
    for i in range(kernel[0]):
        blocks[i, :, i] = (blocks[i, :, i] + blocks[i, :, i].t()) / 2  # symmetric to the last digit
        for j in range(i):
            blocks[i, :, j] = blocks[j, :, i].t()
    return result.view(kernel[0] * side, -1)

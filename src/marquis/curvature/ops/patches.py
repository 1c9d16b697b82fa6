"""The geometry of a convolution, images as lists of patches, and the products of patches with each other.

Index letters: `n` samples, `q` groups, `t` output positions, `k` offsets within the kernel, `I` input channels.

`unfold` of PyTorch would be the bottleneck; a strided view of the padded image with channels last is copied instead.
The products of all patches (the Kronecker factor of a convolution's inputs) need no patches at all: they depend on two
offsets within the kernel only through their difference, apart from a rim of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from marquis.curvature.graph.network import Step
from marquis.curvature.ops.context import per_dimension
from marquis.curvature.ops.registry import operation_of

Pads = list[tuple[int, int]]
"""Zeros before and after, per spatial dimension."""

SMALL_PATCH = 64
"""Patches with no more entries than this are simply written out."""

FEW_CHANNELS = 32
"""With fewer channels, rows are unfolded first: otherwise the products would be too small to run fast."""


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
    last = box.movedim(1, -1).contiguous()  # [n, *space, channels]: a plain copy, whose strides are known
    steps = last.stride()
    counts = [stop - start for start, stop in boxes]
    grouped = (groups, channels // groups)
    view = last.as_strided(
        (n, grouped[0], *counts, *kernel, grouped[1]),
        (
            steps[0],
            grouped[1] * steps[-1],
            *(steps[1 + axis] * stride[axis] for axis in range(dims)),
            *(steps[1 + axis] * dilation[axis] for axis in range(dims)),
            steps[-1],
        ),
    )
    return view.reshape(n, groups, prod(counts), prod(kernel) * grouped[1])


def patch_products(
    image: Tensor, geometry: ConvolutionGeometry, boxes: tuple[tuple[int, int], ...], sharing: str, limit: int = 2**25
) -> tuple[Tensor, float]:
    """Sum over samples and positions of a aᵀ for the patches a, [q, *k * I/q, same], and the number of terms.

    Args:
        image: [n, I, *space].
        geometry: the convolution's.
        boxes: range of output positions, per dimension.
        sharing: "expand", or "reduce" for products of the mean patch of each sample.
        limit: bytes of patches held at a time where they are written out.
    """
    kernel, groups = geometry.kernel, geometry.groups
    positions = prod(stop - start for start, stop in boxes)
    n, channels = image.shape[:2]
    size = prod(kernel) * channels // groups
    if sharing == "expand" and groups == 1 and set(geometry.stride) == {1} and prod(kernel) > 1 and size > SMALL_PATCH:
        return _by_offsets(image, kernel, geometry.dilation, geometry.padding)[None], float(n * positions)
    total = image.new_zeros(groups, size, size)
    step = max(1, limit // max(1, groups * positions * size * image.element_size()))
    for start in range(0, n, step):
        a = unfold(image[start : start + step], geometry, boxes)
        a = a.mean(2, keepdim=True) if sharing == "reduce" else a
        a = a.transpose(0, 1).reshape(groups, -1, size)
        total.baddbmm_(a.transpose(-1, -2), a)
    return total, float(n if sharing == "reduce" else n * positions)


def _by_offsets(image: Tensor, kernel: tuple[int, ...], dilation: list[int], padding: Pads) -> Tensor:
    """Compute the products of patches at stride 1: A(u, v) = sum over the box at u of x(s) x(s + v - u)ᵀ.

    For one difference v - u all boxes share a core; what a box has beyond it is a thin rim.
    """
    padded = F.pad(image, [p for pad in reversed(padding) for p in pad])
    last = padded.movedim(1, -1).contiguous()
    if last.shape[-1] < FEW_CHANNELS and len(kernel) > 1:
        last = last.unfold(-2, dilation[-1] * (kernel[-1] - 1) + 1, 1)[..., :: dilation[-1]]
        last = last.transpose(-1, -2).flatten(-2)  # [n, *space, k * I]: offsets along the last dimension as channels
        kernel, dilation = kernel[:-1], dilation[:-1]
    channels = last.shape[-1]
    dims = len(kernel)
    counts = [last.shape[1 + d] - dilation[d] * (kernel[d] - 1) for d in range(dims)]
    offsets = list(product(*(range(k) for k in kernel)))
    result = image.new_empty(len(offsets), channels, len(offsets), channels)
    cores: dict[tuple[int, ...], tuple[Tensor, list[tuple[int, int]]]] = {}
    for i, u in enumerate(offsets):
        for j in range(i, len(offsets)):
            shift = tuple((b - a) * d for a, b, d in zip(u, offsets[j], dilation, strict=True))
            if shift not in cores:
                core = [_core(counts[d], kernel[d], dilation[d], shift[d]) for d in range(dims)]
                cores[shift] = (_correlate(last, core, shift), core)
            total, core = cores[shift]
            box = [(a * d, a * d + count) for a, d, count in zip(u, dilation, counts, strict=True)]
            for strip in _rim(box, core):
                total = total + _correlate(last, strip, shift)
            result[i, :, j, :] = total
            if i != j:
                result[j, :, i, :] = total.t()
    return result.view(len(offsets) * channels, -1)


def _core(count: int, kernel: int, dilation: int, shift: int) -> tuple[int, int]:
    """Return the range that the boxes of all offsets with this difference have in common."""
    steps = shift // dilation
    first, last = max(0, -steps), min(kernel - 1, kernel - 1 - steps)
    low, high = last * dilation, first * dilation + count
    return low, max(low, high)


def _rim(box: list[tuple[int, int]], core: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return the box without the core, as disjoint boxes."""
    strips: list[list[tuple[int, int]]] = []
    rest = list(box)
    for axis, (low, high) in enumerate(core):
        start, stop = rest[axis]
        inner = (max(start, low), min(stop, high))
        if inner[0] >= inner[1]:
            return [*strips, rest]
        for strip in ((start, inner[0]), (inner[1], stop)):
            if strip[0] < strip[1]:
                strips.append([*rest[:axis], strip, *rest[axis + 1 :]])
        rest[axis] = inner
    return strips


def _correlate(last: Tensor, box: list[tuple[int, int]], shift: tuple[int, ...]) -> Tensor:
    """Sum over a box of x(s) x(s + shift)ᵀ, [I, I]."""
    here = tuple(slice(start, stop) for start, stop in box)
    there = tuple(slice(start + s, stop + s) for (start, stop), s in zip(box, shift, strict=True))
    a = last[(slice(None), *here)].reshape(-1, last.shape[-1])
    b = last[(slice(None), *there)].reshape(-1, last.shape[-1])
    return a.t() @ b

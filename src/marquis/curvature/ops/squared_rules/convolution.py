"""Convolutions: the adjoint convolution with the squared kernel, the weight gradient with the squared input."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from marquis.curvature.ops.squared_rules.registry import Local, reading, rule

_READS = reading(input=("weight",), weight=("input",))


class _Geometry(NamedTuple):
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


@rule(
    "conv1d", "conv2d", "conv3d", reads=_READS, parameter_rule=True,
    note="x: transposed convolution of m with W²; W: weight gradient of m with x²; b: sum of m",
)  # fmt: skip
def convolution(local: Local) -> None:
    """Ordinary convolution; stride, padding (numbers, 'same', 'valid'), dilation, groups."""
    weight = local.value("weight")
    spatial = weight.dim() - 2
    dilation = _per_axis(local.value("dilation"), spatial)
    padding, extra = _padding(local.value("padding"), weight.shape[2:], dilation)
    stride = _per_axis(local.value("stride"), spatial)
    geometry = _Geometry(stride, padding, dilation, False, [0] * spatial, local.value("groups"))
    _backward(local, geometry, extra)


@rule(
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", reads=_READS, parameter_rule=True,
    note="x: convolution of m with W²; W: weight gradient of m with x²; b: sum of m",
)  # fmt: skip
def transposed_convolution(local: Local) -> None:
    """Transposed convolution; stride, padding, output padding, dilation, groups."""
    spatial = local.value("weight").dim() - 2
    names = ("stride", "padding", "dilation", "output_padding")
    stride, padding, dilation, output_padding = (_per_axis(local.value(n), spatial) for n in names)
    geometry = _Geometry(stride, padding, dilation, True, output_padding, local.value("groups"))
    _backward(local, geometry, [0] * spatial)


@rule("convolution", reads=_READS, parameter_rule=True, note="as conv1d-3d and conv_transpose1d-3d")
def general_convolution(local: Local) -> None:
    """The one operation behind all the others, as decomposed graphs have it."""
    spatial = local.value("weight").dim() - 2
    names = ("stride", "padding", "dilation", "output_padding")
    stride, padding, dilation, output_padding = (_per_axis(local.value(n), spatial) for n in names)
    geometry = _Geometry(stride, padding, dilation, local.value("transposed"), output_padding, local.value("groups"))
    _backward(local, geometry, [0] * spatial)


def _per_axis(value: Any, spatial: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * spatial if len(numbers) == 1 else numbers


def _padding(padding: Any, kernel: torch.Size, dilation: list[int]) -> tuple[list[int], list[int]]:
    """Padding on both sides, and how much more there is behind (for 'same' with an even kernel)."""
    if padding == "valid":
        return [0] * len(kernel), [0] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [t // 2 for t in total], [t % 2 for t in total]
    return _per_axis(padding, len(kernel)), [0] * len(kernel)


def _backward(local: Local, geometry: _Geometry, extra: list[int]) -> None:
    weight, x, m = local.value("weight"), local.value("input"), local.m
    unbatched = x.dim() < weight.dim()
    if unbatched:
        x, m = x.unsqueeze(0), m.unsqueeze(0)
    behind = [size for amount in reversed(extra) for size in (0, amount)]
    shape = [*x.shape[:2], *(size + more for size, more in zip(x.shape[2:], extra, strict=True))]
    if local.wants("weight"):
        squares = x.square()
        squares = F.pad(squares, behind) if any(extra) else squares
        stand_in = m.new_empty(1).expand(weight.shape)
        local.give("weight", _gradients(m, squares, stand_in, geometry, weight_wanted=True))
    if local.wants("bias"):
        local.give("bias", m.sum([0, *range(2, m.dim())]))
    if local.wants("input"):
        stand_in = m.new_empty(1).expand(shape)
        to_input = _gradients(m, stand_in, weight.square(), geometry, weight_wanted=False)
        if any(extra):
            to_input = F.pad(to_input, [-size for size in behind])
        local.give("input", to_input.squeeze(0) if unbatched else to_input)


def _gradients(m: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, *, weight_wanted: bool) -> Tensor:
    results = torch.ops.aten.convolution_backward(
        m, x, weight, None, *geometry, [not weight_wanted, weight_wanted, False]
    )
    return results[1] if weight_wanted else results[0]

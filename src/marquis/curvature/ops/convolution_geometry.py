"""The geometry of a convolution, read from a captured step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.pullbacks.registry import Context

Pads = list[tuple[int, int]]
"""Zeros before and after, per spatial dimension."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """Kernel and options of one convolution, plain or transposed, one number per spatial dimension.

    Attributes:
        source: number of the input.
        weight: the kernel.
        kernel: its spatial size.
        stride: stride.
        dilation: dilation.
        padding: (before, after); 'same' and 'valid' are resolved.
        groups: number of groups.
    """

    source: int
    weight: Tensor
    kernel: tuple[int, ...]
    stride: list[int]
    dilation: list[int]
    padding: Pads
    groups: int

    @property
    def dims(self) -> int:
        """Number of spatial dimensions."""
        return len(self.kernel)

    @staticmethod
    def of(context: Context, step: Step, factor: Factor) -> Geometry | None:
        """The geometry, or None where the step is not a convolution of a batch of data with a batch-free kernel."""
        if not factor.batch_first or len(factor.shape) != len(context.shapes[step.value]):
            return None
        return context.cached(step, "geometry", lambda: Geometry._read(context, step))

    @staticmethod
    def _read(context: Context, step: Step) -> Geometry | None:
        source, number = step.reference("input"), step.reference("weight")
        batched = context.network.batched
        if source is None or number is None or source not in batched or number in batched:
            return None
        weight: Tensor = context.values[number]
        kernel = tuple(weight.shape[2:])
        if len(context.shapes[step.value]) != len(kernel) + 2:
            return None
        given = {name: step.argument(name, context.values) for name in ("stride", "dilation", "padding", "groups")}
        stride, dilation = (per_dimension(given[name], len(kernel)) for name in ("stride", "dilation"))
        padding = _padding(given["padding"], kernel, dilation)
        return Geometry(source, weight, kernel, stride, dilation, padding, given["groups"])


def per_dimension(value: Any, dims: int) -> list[int]:
    """A hyper-parameter as one number per spatial dimension."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * dims if len(values) == 1 else values


def _padding(given: Any, kernel: tuple[int, ...], dilation: list[int]) -> Pads:
    if given == "valid":
        return [(0, 0)] * len(kernel)
    if given == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in per_dimension(given, len(kernel))]

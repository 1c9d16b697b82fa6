"""Find the batch axis of every tensor in a captured network.

Usually it is dimension 0, but attention layers work on [length, batch, features] or on [length * batch, features].
The symbolic shapes of the export say which dimension carries the batch; where it is merged with another one, or where
the capture has no symbols, a gradient of one sample's output shows which entries belong to that sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.checks import batch_size, random_weights

if TYPE_CHECKING:
    from marquis.curvature.graph.network import Network, Step

SymbolicShape = tuple[int | str, ...]


@dataclass(frozen=True)
class BatchAxis:
    """Say where the batch is: dimension `axis`, with `inner` positions per sample merged into it.

    Attributes:
        axis: the dimension.
        inner: how many entries of it belong to one sample.
        major: whether the batch is the slow index of a merged dimension.
    """

    axis: int
    inner: int = 1
    major: bool = True

    def to_front(self, tensor: Tensor, leading: int = 0) -> Tensor:
        """Move the batch to dimension `leading`, behind as many extra leading dimensions.

        Where one dimension holds the batch and other positions, those positions stay where they are.
        """
        axis = self.axis + leading
        if self.inner == 1:
            return tensor if axis == leading else tensor.movedim(axis, leading)
        size = tensor.shape[axis] // self.inner
        if self.major:
            return tensor.unflatten(axis, (size, self.inner)).movedim(axis, leading)
        return tensor.unflatten(axis, (self.inner, size)).movedim(axis + 1, leading)


def batch_axes(
    network: Network, shapes: Mapping[int, SymbolicShape], params: Mapping[str, Tensor], x: Any
) -> dict[int, BatchAxis]:
    """Find the batch in every tensor of the network that depends on the input."""
    symbol = next((s for leaf in network.leaves for s in shapes.get(leaf, ())[:1] if isinstance(s, str)), None)
    axes: dict[int, BatchAxis] = {}
    undecided: list[int] = []
    for number in network.batched:
        shape = shapes.get(number)
        if shape is None:
            continue
        plain = [axis for axis, size in enumerate(shape) if size == symbol]
        if symbol is not None and len(plain) == 1:
            axes[number] = BatchAxis(plain[0])
        elif symbol is None or any(isinstance(size, str) for size in shape):
            undecided.append(number)
    if symbol is None:
        axes[network.output] = BatchAxis(0)
        undecided = [n for n in undecided if n != network.output]
    if undecided:
        axes.update(_axes_by_gradient(network, undecided, params, x))
    return axes


def _axes_by_gradient(
    network: Network, numbers: list[int], params: Mapping[str, Tensor], x: Any
) -> dict[int, BatchAxis]:
    """Find batch axes by the entries of each tensor that the gradient of one sample's outputs reaches."""
    size = batch_size(x)
    if size == 1:
        x = pytree.tree_map_only(Tensor, lambda t: torch.cat([t, t]), x)
        size = 2
    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_(p.is_floating_point()) for name, p in params.items()}
        values = network.bind(leaves, x)
        output = network.forward(values)
        if output.dim() == 0 or output.shape[0] != size:
            raise DataError(
                f"the model gives shape {list(output.shape)} for a batch of {size}; dimension 0 of inputs and outputs "
                "has to be the batch; of one sample it is x.unsqueeze(0)."
            )
        targets = [n for n in numbers if isinstance(values[n], Tensor) and values[n].requires_grad]
        if not targets:
            return {}
        weights = random_weights(output[1])
        samples = sorted({0, 1, size - 1})
        tensors = [values[n] for n in targets]
        by_sample = [
            torch.autograd.grad((output[k] * weights).sum(), tensors, allow_unused=True, retain_graph=True)
            for k in samples
        ]
    axes: dict[int, BatchAxis] = {}
    for number, grads in zip(targets, zip(*by_sample, strict=True), strict=True):
        touched = {k: grad != 0 for k, grad in zip(samples, grads, strict=True) if grad is not None}
        axis = _matching_axis({k: where for k, where in touched.items() if bool(where.any())}, size)
        if axis is not None:
            axes[number] = axis
    return axes


def _matching_axis(touched: Mapping[int, Tensor], size: int) -> BatchAxis | None:
    """Return the layout under which each sample's output touches that sample's entries only.

    One sample is not enough: a network that reads only its last token touches so few entries of [length * batch] that
    both orders fit. The first and the last sample together tell them apart.
    """
    if not touched:
        return None
    for axis, length in enumerate(next(iter(touched.values())).shape):
        if length % size == 0:
            for major in (True, False):
                candidate = BatchAxis(axis, length // size, major)
                if all(_only(candidate.to_front(where), sample) for sample, where in touched.items()):
                    return candidate
    return None


def _only(touched: Tensor, sample: int) -> bool:
    """Return whether nothing of the other samples is touched."""
    others = touched.clone()
    others[sample] = False
    return not bool(others.any())


def require_axis(network: Network, step: Step, number: int | None = None) -> BatchAxis:
    """Return the batch axis of a step's result (or of a part of it, by its number).

    Raises:
        UnsupportedOperationError: it is not known; the message says where it was lost.
    """
    axis = network.axes.get(step.value if number is None else number)
    if axis is None:
        raise UnsupportedOperationError(
            f"{step.where} mixes the samples of a batch or hides which entries belong to which sample, so there is no "
            "curvature per sample. Keep samples apart along dimension 0 up to the output."
        )
    return axis

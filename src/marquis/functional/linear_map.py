"""Turn a linear operator that is known by its products into a layer of a network.

Sparse matrices and foreign operators cannot be traced, nor differentiated by `torch.func`. Here the operator is
one opaque operation whose derivative is itself and whose transpose is its adjoint, so that curvature goes through it:
`Laplace(nn.Sequential(network, LinearMap(...)))` sees the data `A f(x)`, and `predict(x, at="0")` reads the posterior
at `f(x)`.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]


class _Operator:
    """Hold both products, the shapes they map between, and the number that stands for them in a graph."""

    def __init__(self, products: tuple[Product, Product], shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        self.products, self.shapes = products, shapes
        self.handle = next(_HANDLES)
        _OPERATORS[self.handle] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> _Operator:
        """Return itself: copies of a module share the operator, so that a graph of one serves the other."""
        return self

    def __reduce__(self) -> Any:
        """Pickle the products; another process gives them a number of its own."""
        return _Operator, (self.products, self.shapes)


_HANDLES = itertools.count()
_OPERATORS: weakref.WeakValueDictionary[int, _Operator] = weakref.WeakValueDictionary()
"""Operators by their numbers, which are never used again; an operator lives as long as a module that has it."""


@torch.library.custom_op("marquis::linear_map", mutates_args=())
def _linear_map(x: Tensor, handle: int, transposed: bool) -> Tensor:
    """Apply a registered operator, or its transpose."""
    output = _OPERATORS[handle].products[transposed](x)
    # An operation must not return its input's memory, as an identity would.
    return output.clone() if output.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else output


@_linear_map.register_fake
def _(x: Tensor, handle: int, transposed: bool) -> Tensor:
    shapes = _OPERATORS[handle].shapes
    before, after = shapes[transposed], shapes[not transposed]
    return x.new_empty(*x.shape[: x.ndim - len(before)], *after)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what the backward pass needs: which operator, and which direction."""
    ctx.handle, ctx.transposed = inputs[1], inputs[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    """Return the gradient in the input: the transposed product."""
    return _linear_map(gradient, ctx.handle, not ctx.transposed), None, None


_linear_map.register_autograd(_backward, setup_context=_keep)


@_linear_map.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], x: Tensor, handle: int, transposed: bool) -> tuple[Tensor, int]:
    assert in_dims[0] is not None
    return _linear_map(x.movedim(in_dims[0], 0), handle, transposed), 0


class LinearMap(nn.Module):
    """Apply a linear operator to the last dimensions of the input: a layer without parameters.

    Args:
        forward: `[..., *input_shape]` to `[..., *output_shape]`, linear, for any number of leading dimensions.
        adjoint: its transpose, `[..., *output_shape]` to `[..., *input_shape]`.
        input_shape: shape of one input.
        output_shape: shape of one output.
    """

    def __init__(
        self,
        forward: Product,
        adjoint: Product,
        input_shape: tuple[int, ...],
        output_shape: tuple[int, ...],
    ) -> None:
        super().__init__()
        self._operator = _Operator((forward, adjoint), (tuple(input_shape), tuple(output_shape)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the operator's product with `x`."""
        return _linear_map(x, self._operator.handle, False)

"""Linearise a network, `f(mu) + J (theta - mu)`: products with J and its transpose, and steps along the tangent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize, jvp, linearize
from torch.utils._pytree import tree_leaves, tree_map

from marquis.errors import UnsupportedOperationError
from marquis.functional.call import plain_attention
from marquis.functional.function import NetworkFunction
from marquis.functional.quiet import quiet

Weights = dict[str, Tensor]

WORTH_TRACING = 20
"""Steps from which on the linear part is traced once per input, which costs as much as ten and halves the others."""

AGREEMENT = 1e-3
"""Of a traced change with the differentiated one, relative to the largest: rounding is far below, an error above."""


_FORWARD_MODE = threading.RLock()


def jacobian_vector_product(function: Callable[[Weights], Any], point: Weights, step: Weights) -> tuple[Any, Any]:
    """Return `f(point)` and `J step` in forward mode, one thread at a time: torch counts its levels globally."""
    with _FORWARD_MODE:
        value, change, *_ = jvp(function, (point,), (step,))
    return value, change


class BatchJacobian:
    """Multiply with the Jacobian J of one batch, and with its transpose.

    J v is taken in forward mode, at the cost of two forward passes; where an operation has no forward-mode derivative,
    as the derivative of `J^T u` in u, which whatever autograd differentiates twice allows.

    Args:
        function: The network at its point.
        x: Inputs of the batch.

    Attributes:
        outputs: Its outputs f, with their graph to `leaves`.
        leaves: The parameters, as leaves of the graph.
    """

    def __init__(self, function: NetworkFunction, x: Any) -> None:
        self._function, self._x = function, x
        self._transposed: tuple[Sequence[Tensor | None], Tensor] | None = None
        with torch.enable_grad():
            self.leaves = function.leaves()
            self.outputs = function.outputs(self.leaves, x)

    def times(self, rows: Sequence[Tensor], *, batched: bool = True) -> Tensor:
        """Return J v, `[k, *f.shape]`, for `k` vectors, each one tensor `[k, *shape]` per parameter.

        Cost: one forward-mode pass per vector, all of them at once under `vmap` if `batched`.
        """
        point = dict(self._function.point)
        steps = {name: row.to(point[name].dtype) for name, row in zip(point, rows, strict=True)}

        def along(step: Weights) -> Tensor:
            return jvp(lambda params: self._function(params, self._x), (point,), (step,))[1]

        if self._transposed is None:
            try:
                with _FORWARD_MODE, torch.no_grad():
                    if batched and rows[0].shape[0] > 1:
                        return torch.vmap(along)(steps)
                    return torch.stack(
                        [along({name: step[k] for name, step in steps.items()}) for k in range(rows[0].shape[0])]
                    )
            except torch.OutOfMemoryError:
                raise
            except (NotImplementedError, RuntimeError):
                self._transposed = self._differentiable_transpose()
        transposed, u = self._transposed
        return vector_jacobian_products(transposed, [u], rows, batched=batched)[0]

    def _differentiable_transpose(self) -> tuple[Sequence[Tensor | None], Tensor]:
        """Return `J^T u` with its graph, and u."""
        with torch.enable_grad():
            u = torch.zeros_like(self.outputs, requires_grad=True)
            return torch.autograd.grad(self.outputs, self.leaves, u, create_graph=True, allow_unused=True), u

    def transposed_times(self, cotangents: Tensor, *, batched: bool = True) -> list[Tensor]:
        """Return J^T u, one tensor `[k, *shape]` per parameter, for cotangents `[k, *f.shape]`; cost as `times`."""
        return vector_jacobian_products([self.outputs], self.leaves, [cotangents], batched=batched)


def vector_jacobian_products(
    outputs: Sequence[Tensor | None], inputs: Sequence[Tensor], rows: Sequence[Tensor], *, batched: bool = True
) -> list[Tensor]:
    """Return the gradients of `sum rows * outputs` in the inputs, for each of k rows; zeros where there is no path.

    Args:
        outputs: Tensors with their graph; None for one that depends on nothing.
        inputs: What to differentiate in.
        rows: Weights `[k, *shape]` of each output.
        batched: All rows under `vmap`; otherwise one after the other, with less memory and for any operation.
    """
    count = rows[0].shape[0]
    used = [(o, r.to(o.dtype)) for o, r in zip(outputs, rows, strict=True) if o is not None and o.requires_grad]
    if not used:
        return [i.new_zeros((count, *i.shape)) for i in inputs]
    tensors = [o for o, _ in used]
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    if batched and count > 1:
        grads = torch.autograd.grad(tensors, inputs, [r for _, r in used], is_grads_batched=True, **options)
        return [i.new_zeros((count, *i.shape)) if g is None else g.detach() for i, g in zip(inputs, grads, strict=True)]
    singles = [torch.autograd.grad(tensors, inputs, [r[k] for _, r in used], **options) for k in range(count)]
    return [
        torch.stack([torch.zeros_like(i) if g is None else g.detach() for g in each])
        for i, each in zip(inputs, zip(*singles, strict=True), strict=True)
    ]


class Linearisation:
    """Linearise functions of weights and input around a point, for many steps from it."""

    def __init__(self, point: Weights, steps: int) -> None:
        self.point, self._tracing = point, steps >= WORTH_TRACING
        self._traced: tuple[Any, Tensor, Any, Callable[[Weights], Any]] | None = None
        self._reused = False

    def along(self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights) -> Any:
        """Return `f(μ) + J (θ - μ)`, in the form in which `function` returns it: a tensor or several.

        Args:
            function: Function of weights and input; traced anew when it or the input changes, and no more once a trace
                was of no use: where steps alternate between inputs, tracing each time costs five times as much.
            x: Input.
            step: `θ - μ`.

        Raises:
            UnsupportedOperationError: The function has an operation without a forward-mode derivative.
        """
        with plain_attention():
            traced = self._traced
            if traced is not None and traced[0] == function and traced[1] is x:
                value, change = traced[2], traced[3](step)
                self._reused = True
            else:
                value, change = self._by_differentiation(function, x, step)
                if traced is not None and not self._reused:
                    self._traced, self._tracing = None, False
                if self._tracing:
                    self._trace(function, x, step, (value, change))
        return tree_map(torch.add, value, change)

    def _trace(self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights, expected: Any) -> None:
        """Keep value and linear map for the next steps, if torch can trace them and they agree with this one.

        A trace takes for constant what it cannot see (what went through NumPy, a custom function of the old style, the
        network's own noise), and reports nothing about it. One of a network that writes in place would change its own
        constants whenever it is used: hence `functionalize`, and a second use, for what writes below that.
        """
        self._traced, self._reused = None, False
        try:
            with quiet():  # torch's folding of constants talks about its own nodes
                with _FORWARD_MODE:
                    value, linear = linearize(functionalize(lambda weights: function(weights, x)), self.point)
                linear(step)
                pairs = zip(tree_leaves((value, linear(step))), tree_leaves(expected), strict=True)
        except Exception:  # what cannot be traced is differentiated, as the first step was
            self._tracing = False
            return
        if all(bool(((traced - true).abs() <= AGREEMENT * true.abs().max()).all()) for traced, true in pairs):
            self._traced = (function, x, value, linear)
        else:
            self._tracing = False

    def _by_differentiation(
        self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights
    ) -> tuple[Any, Any]:
        """Return value and Jacobian-vector product by forward-mode differentiation."""
        try:
            return jacobian_vector_product(lambda weights: function(weights, x), self.point, step)
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError) as error:
            function(self.point, x)  # what the network refuses on its own has nothing to do with its derivative
            reason = str(error).splitlines()[0].rstrip(".")
            raise UnsupportedOperationError(
                f"the network has an operation without a forward-mode derivative: {reason}. "
                "Use sampled weights (`linearised=False`)."
            ) from error

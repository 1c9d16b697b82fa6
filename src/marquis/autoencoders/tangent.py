"""Functions of the weights to first order around a point, for many steps from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, linearize
from torch.utils._pytree import tree_map

from marquis.errors import UnsupportedOperationError
from marquis.predictive.function import plain_attention

Weights = dict[str, Tensor]
WORTH_TRACING = 20
"""Steps from which on the linear part is traced once per input, which costs as much as eight and halves the others."""
NO_TANGENT = ("forward AD", "jvp", "functorch", "data pointer")
"""What torch says of operations that have no forward-mode derivative, the last of those that leave torch."""


class Tangent:
    """`f(μ) + J (θ - μ)` for functions of the weights and of an input.

    Args:
        at: The weights μ.
        steps: How many steps are expected for the same input.
    """

    def __init__(self, at: Weights, steps: int) -> None:
        self.at, self._tracing = at, steps >= WORTH_TRACING
        self._traced: tuple[Any, Tensor, Any, Callable[[Weights], Any]] | None = None

    def along(self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights) -> Any:
        """One step: what `function` returns, a tensor or several.

        Args:
            function: Of weights and input; traced anew when it or the input changes.
            x: Input.
            step: `θ - μ`.

        Raises:
            UnsupportedOperationError: The function has an operation without a forward-mode derivative.
        """
        with plain_attention():
            linear = self._linear_part(function, x) if self._tracing else None
            if linear is not None:
                value, change = linear[0], linear[1](step)
            else:
                value, change = self._by_differentiation(function, x, step)
        return tree_map(torch.add, value, change)

    def _linear_part(
        self, function: Callable[[Weights, Tensor], Any], x: Tensor
    ) -> tuple[Any, Callable[[Weights], Any]] | None:
        """The value at the mean and the linear map, kept for the next step; None if torch cannot trace it."""
        known = self._traced
        if known is not None and known[0] == function and known[1] is x:
            return known[2], known[3]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's folding of constants talks about its own nodes
                value, linear = linearize(lambda weights: function(weights, x), self.at)
        except (
            Exception
        ):  # whatever tracing does not like may still be differentiated, or is refused there in our words
            self._tracing = False
            return None
        self._traced = (function, x, value, linear)
        return value, linear

    def _by_differentiation(
        self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights
    ) -> tuple[Any, Any]:
        try:
            value, change, *_ = jvp(lambda weights: function(weights, x), (self.at,), (step,))
        except (NotImplementedError, RuntimeError) as error:
            if not any(word in str(error) for word in NO_TANGENT):
                raise
            said = str(error).splitlines()[0].rstrip(".")
            raise UnsupportedOperationError(
                f"the network has an operation without a forward-mode derivative: {said}. "
                "Read the posterior by networks drawn, without `linearised`."
            ) from error
        return value, change

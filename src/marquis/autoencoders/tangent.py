"""Functions of the weights to first order around a point, for many steps from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize, jvp, linearize
from torch.utils._pytree import tree_leaves, tree_map

from marquis.errors import UnsupportedOperationError
from marquis.predictive.function import plain_attention

Weights = dict[str, Tensor]
WORTH_TRACING = 20
"""Steps from which on the linear part is traced once per input, which costs as much as ten and halves the others."""
AGREEMENT = 1e-3
"""Of a traced change with the differentiated one, relative to the largest: rounding is far below, an error above."""


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
            known = self._traced
            if known is not None and known[0] == function and known[1] is x:
                value, change = known[2], known[3](step)
            else:
                value, change = self._by_differentiation(function, x, step)
                if self._tracing:
                    self._trace(function, x, step, (value, change))
        return tree_map(torch.add, value, change)

    def _trace(self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights, known: Any) -> None:
        """Keep value and linear map for the next steps, if torch can trace them and they agree with this one.

        A trace takes for constant what it cannot see (what went through NumPy, a custom function of the old style, the
        network's own noise), and says nothing about it. One of a network that writes in place would change its own
        constants whenever it is used: hence `functionalize`, and a second use, for what writes below that.
        """
        self._traced = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's folding of constants talks about its own nodes
                value, linear = linearize(functionalize(lambda weights: function(weights, x)), self.at)
                linear(step)
                pairs = zip(tree_leaves((value, linear(step))), tree_leaves(known), strict=True)
        except Exception:  # whatever tracing does not like is differentiated, as the first step was
            self._tracing = False
            return
        if all(bool(((said - true).abs() <= AGREEMENT * true.abs().max()).all()) for said, true in pairs):
            self._traced = (function, x, value, linear)
        else:
            self._tracing = False

    def _by_differentiation(
        self, function: Callable[[Weights, Tensor], Any], x: Tensor, step: Weights
    ) -> tuple[Any, Any]:
        try:
            value, change, *_ = jvp(lambda weights: function(weights, x), (self.at,), (step,))
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError) as error:
            function(self.at, x)  # what the network refuses on its own is no matter of its derivative
            said = str(error).splitlines()[0].rstrip(".")
            raise UnsupportedOperationError(
                f"the network has an operation without a forward-mode derivative: {said}. "
                "Read the posterior by networks drawn, without `linearised`."
            ) from error
        return value, change

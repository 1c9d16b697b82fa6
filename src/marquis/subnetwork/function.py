"""Treat the network as a function of the chosen weights alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from marquis.functional.call import Model, buffers_of, call
from marquis.functional.selection import parameters_of
from marquis.structures import Layout

Function = Callable[[dict[str, Tensor], Any], Tensor]


def function_of_chosen(
    model: Model, params: Mapping[str, Tensor] | None, mean: Mapping[str, Tensor], index: Tensor, inside: Layout
) -> tuple[Function, dict[str, Tensor]]:
    """Return `(chosen, x) -> outputs` with all other weights at the mean, and the chosen weights' values."""
    layout = Layout.of(dict(mean))
    whole = layout.flatten(dict(mean))
    others = {name: value.detach() for name, value in parameters_of(model, params).items() if name not in mean}

    def function(chosen: dict[str, Tensor], x: Any) -> Tensor:
        weights = whole.index_copy(0, index, inside.flatten(chosen))
        return call(model, {**others, **layout.unflatten(weights)}, buffers_of(model), x)

    return function, inside.unflatten(whole[index])

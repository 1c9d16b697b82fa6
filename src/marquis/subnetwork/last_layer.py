"""Find the last layer: the linear layer or convolution after which nothing has parameters.

See docs/method/curvature.md#last-layer-and-subnetworks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from marquis.curvature.graph.cache import network_of
from marquis.errors import UnsupportedOperationError
from marquis.functional.call import Model
from marquis.priors.normalised import is_layer


def last_layer(model: Model, params: Mapping[str, Tensor], x: Any) -> list[str]:
    """Return the parameters of the last linear layer or convolution before the output, found by tracing the network.

    Weights that are computed from parameters (weight normalisation) count with all of these.
    """
    network = network_of(model, {name: p.detach() for name, p in params.items()}, x)
    owner = {number: name for name, number in network.parameters.items()}

    def parameters_behind(number: int) -> list[str]:
        """Return the parameters that a value without the batch is made of."""
        if number in owner:
            return [owner[number]]
        step = network.producers.get(number)
        if step is None or number in network.batched:
            return []
        return [name for source in step.inputs for name in parameters_behind(source)]

    fallback: list[str] = []
    for step in reversed(network.steps):
        if network.output not in network.dependents([step.value]) or step.value not in network.batched:
            continue
        names = list(dict.fromkeys(name for number in step.inputs for name in parameters_behind(number)))
        if names and is_layer(step):
            return [name for name in params if name in names]
        fallback = fallback or names
    if not fallback:
        raise UnsupportedOperationError("the network's output depends on no parameter, so it has no last layer.")
    return [name for name in params if name in fallback]

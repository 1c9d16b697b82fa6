"""Find the weights that feed a normalisation layer, so that their scale does not matter.

See docs/method/evidence.md#normalised-groups.

Found in the captured graph: the output of the layer goes, through nothing but changes of shape, into Batch-, Layer-,
Group- or InstanceNorm and nowhere else. The weight that a weight-normalised layer divides by its own length counts too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from marquis.curvature.graph.cache import network_of
from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.registry import operation_of
from marquis.functional.call import Model

RESHAPES = {"view", "reshape", "flatten", "transpose", "permute", "contiguous", "unsqueeze", "squeeze", "clone"}
"""Operations that only move numbers."""

LINEAR_KINDS = ("matrix product", "convolution", "transposed convolution")
"""Kinds of operations that are linear in a weight (and bias), where they have one."""


def normalised_groups(model: Model, params: Mapping[str, Tensor], x: Any) -> dict[str, list[str]]:
    """Return the parameters of every layer that is normalised right after it, by module path."""
    network = network_of(model, {name: p.detach() for name, p in params.items()}, x)
    owner = {number: name for name, number in network.parameters.items()}
    groups: dict[str, list[str]] = {}
    for step in network.steps:
        names = _invariant(step, network, owner)
        if names:
            groups[step.path or names[0]] = names
    return groups


def is_layer(step: Step) -> bool:
    """Return whether an operation is that of a linear layer or a convolution."""
    return operation_of(step).kind in LINEAR_KINDS and step.has_argument("weight")


def _invariant(step: Step, network: Network, owner: Mapping[int, str]) -> list[str]:
    """Return the parameters of this step whose common scale does not change the output; often none."""
    if step.name == "linalg_vector_norm":
        direction = _divided_by_its_length(step, network)
        return [owner[direction]] if direction is not None and direction in owner else []
    if is_layer(step) and _only_normalised(step.value, network):
        numbers = [step.reference("weight"), step.reference("bias")]
    else:
        return []
    parameters = [number for number in numbers if number is not None and number in owner]
    alone = all(network.uses[number] == (step,) for number in parameters)
    # A bias that is not a parameter (a constant) does not scale along.
    complete = all(number is None or number in owner for number in numbers)
    return [owner[number] for number in parameters] if alone and complete else []


def _divided_by_its_length(norm: Step, network: Network) -> int | None:
    """Return the value v of `v * (g / |v|)`, which is how `functional.differentiable` normalises weights; or None."""
    direction = norm.reference("self")
    quotients = network.uses.get(norm.value, ())
    if (
        direction is None
        or [step.name for step in quotients] != ["div"]
        or quotients[0].reference("other") != norm.value
    ):
        return None
    products = network.uses.get(quotients[0].value, ())
    if [step.name for step in products] != ["mul"] or quotients[0].reference("other") != norm.value:
        return None
    return direction if network.uses[direction] == (norm, products[0]) else None


def _only_normalised(value: int, network: Network) -> bool:
    """Return whether every use of a value, through changes of shape, is the input of a normalisation."""
    users = network.uses.get(value, ())
    if not users or value == network.output:
        return False
    for step in users:
        if operation_of(step).kind == "normalisation":
            if step.reference("input") != value or step.occurrences[value] != 1:
                return False
        elif step.name not in RESHAPES or not _only_normalised(step.value, network):
            return False
    return True

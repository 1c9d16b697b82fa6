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
from marquis.functional.call import Model

NORMS = {
    "batch_norm": "input",
    "layer_norm": "input",
    "group_norm": "input",
    "instance_norm": "input",
    "rms_norm": "input",
    "native_layer_norm": "input",
    "native_group_norm": "input",
    "_native_batch_norm_legit_no_training": "input",
}
"""Normalising operations, and which of their arguments is normalised."""

RESHAPES = {"view", "reshape", "flatten", "transpose", "permute", "contiguous", "unsqueeze", "squeeze", "clone"}
"""Operations that only move numbers."""

LAYERS = {"linear", "convolution"} | {f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)}
"""Operations that are linear in a weight (and bias)."""


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


def _invariant(step: Step, network: Network, owner: Mapping[int, str]) -> list[str]:
    """Return the parameters of this step whose common scale does not change the output; often none."""
    if step.name in ("_weight_norm", "_weight_norm_interface"):
        numbers = [step.reference("v")]
    elif step.name in LAYERS and _only_normalised(step.value, network):
        numbers = [step.reference("weight"), step.reference("bias")]
    else:
        return []
    parameters = [number for number in numbers if number is not None and number in owner]
    alone = all(network.uses[number] == (step,) for number in parameters)
    # A bias that is not a parameter (a constant) does not scale along.
    complete = all(number is None or number in owner for number in numbers)
    return [owner[number] for number in parameters] if alone and complete else []


def _only_normalised(value: int, network: Network) -> bool:
    """Return whether every use of a value, through changes of shape, is the input of a normalisation."""
    users = network.uses.get(value, ())
    if not users or value == network.output:
        return False
    for step in users:
        if step.name in NORMS:
            others = [number for number in step.inputs if number == value]
            if step.reference(NORMS[step.name]) != value or len(others) != 1:
                return False
        elif step.name not in RESHAPES or not _only_normalised(step.value, network):
            return False
    return True

"""Find the steps that a backward pass visits for a selection of parameters, and the values it needs.

Computed once per network and selection. The pass touches only what lies between the output and the selected parameters,
so the cost of a subset falls with the subset.
"""

from __future__ import annotations

from dataclasses import dataclass

from marquis.curvature.graph.network import Forward, Network, Step
from marquis.curvature.ops import without_kronecker_form
from marquis.curvature.ops.registry import is_tagged_pointwise, operation_of


@dataclass(frozen=True, eq=False)
class BackwardSteps:
    """Hold the steps of a backward pass for one selection of parameters.

    Attributes:
        network: the captured network.
        selected: value number of each selected parameter that the network uses.
        active: values that depend on a selected parameter.
        steps: visited steps, last first.
        uses: step value -> (batch-free value, parameter name) for every use of a selected parameter.
        counts: number of uses of each parameter.
        needed: forward values that the pass reads.
        with_extra: step value -> the operation that the forward pass runs instead, for `Network.forward`.
        pointwise: visited steps that PyTorch tags as pointwise.
        without_kronecker: parameters that the `kronecker` structure keeps as a diagonal.
    """

    network: Network
    selected: dict[str, int]
    active: frozenset[int]
    steps: list[Step]
    uses: dict[int, list[tuple[int, str]]]
    counts: dict[str, int]
    needed: frozenset[int]
    with_extra: dict[int, Forward]
    pointwise: frozenset[int]
    without_kronecker: frozenset[str]

    @staticmethod
    def of(network: Network, names: tuple[str, ...]) -> BackwardSteps:
        """Return the steps for these parameters, from the network's memory if they were needed before."""
        key = ("backward steps", names)
        if key not in network.memo:
            network.memo[key] = _find(network, names)
        return network.memo[key]


def _find(network: Network, names: tuple[str, ...]) -> BackwardSteps:
    """Walk from the output to the selected parameters, and note every step that a gradient passes."""
    selected = {name: network.parameters[name] for name in names if name in network.parameters}
    active = network.dependents(selected.values())
    reached, steps = {network.output}, []
    for step in reversed(network.steps):
        if step.value in reached and step.value in active and step.value in network.batched:
            steps.append(step)
            reached.update(n for n in step.inputs if n in active and n in network.batched)
    sources: dict[int, list[str]] = {number: [name] for name, number in selected.items()}
    for step in network.steps:
        if step.value not in network.batched:
            derived_from = [name for number in step.inputs for name in sources.get(number, [])]
            if derived_from:
                sources[step.value] = list(dict.fromkeys(derived_from))
    uses: dict[int, list[tuple[int, str]]] = {}
    counts: dict[str, int] = {}
    needed: set[int] = set()
    for step in steps:
        for number in step.inputs:
            if number not in network.batched:
                for name in sources.get(number, []):
                    uses.setdefault(step.value, []).append((number, name))
                    counts[name] = counts.get(name, 0) + 1
        needed |= _needed(network, step, active, step.value in uses)
    needed |= {step.value for step in network.steps if step.value not in network.batched}
    with_extra = {step.value: forward for step in steps if (forward := operation_of(step).forward_with_extra)}
    return BackwardSteps(
        network,
        selected,
        active,
        steps,
        uses,
        counts,
        frozenset(needed),
        with_extra,
        frozenset(step.value for step in steps if is_tagged_pointwise(step.op)),
        without_kronecker_form(network, uses),
    )


def _needed(network: Network, step: Step, active: frozenset[int], parametric: bool) -> set[int]:
    """Return the values that the rules of one step read."""
    batched = {n for n in step.inputs if n in network.batched}
    needed = set(batched) if parametric else set()
    if batched.isdisjoint(active):
        return needed
    operation = operation_of(step)
    if operation.derivative_from_output is not None:
        readers = network.uses.get(step.value, ())
        # A pooled tensor holds every entry at which the derivative is needed.
        absorbed = len(readers) == 1 and operation_of(readers[0]).absorbs_activation
        return needed if absorbed else needed | {step.value}
    if operation.vjp_reads == "output":
        return needed | {step.value}
    # A product is linear in each of its inputs, not in all of them together.
    if operation.vjp_reads == "inputs" or (operation.vjp_reads == "factors" and len(batched) > 1):
        return needed | batched
    return needed

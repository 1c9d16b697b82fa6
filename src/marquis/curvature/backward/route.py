"""Which steps a backward walk visits for a selection of parameters, and what it needs from the forward pass.

Computed once per network and selection. A walk touches only what lies between the output and the selected parameters,
so the cost of a subset falls with the subset.
"""

from __future__ import annotations

from dataclasses import dataclass

from marquis.curvature.backward.bottlenecks import backward_steps
from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.pullbacks.elementwise import FROM_OUTPUT
from marquis.curvature.ops.pullbacks.registry import NEEDS


@dataclass(frozen=True, eq=False)
class Route:
    """The backward walk for one selection.

    Attributes:
        network: the captured network.
        selected: value number of each selected parameter that the network uses.
        active: values that depend on a selected parameter.
        steps: visited steps, last first.
        uses: step value -> (batch-free value, parameter name) for every use of a selected parameter.
        counts: number of uses of each parameter.
        needed: forward values that the walk reads.
        pooled: max-pooling steps whose maxima the walk needs to find again.
    """

    network: Network
    selected: dict[str, int]
    active: frozenset[int]
    steps: list[Step]
    uses: dict[int, list[tuple[int, str]]]
    counts: dict[str, int]
    needed: frozenset[int]
    pooled: frozenset[int]

    @staticmethod
    def of(network: Network, names: tuple[str, ...]) -> Route:
        """The route for these parameters, from the network's memory if it was asked for before."""
        key = ("route", names)
        if key not in network.memo:
            network.memo[key] = _make(network, names)
        return network.memo[key]


def _make(network: Network, names: tuple[str, ...]) -> Route:
    selected = {name: network.parameters[name] for name in names if name in network.parameters}
    active = network.dependents(selected.values())
    steps = backward_steps(network, active)
    sources: dict[int, list[str]] = {number: [name] for name, number in selected.items()}
    for step in network.steps:
        if step.value not in network.batched:
            found = [name for number in step.inputs for name in sources.get(number, [])]
            if found:
                sources[step.value] = list(dict.fromkeys(found))
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
    pooled = frozenset(step.value for step in steps if step.name == "max_pool2d")
    return Route(network, selected, active, steps, uses, counts, frozenset(needed), pooled)


def _needed(network: Network, step: Step, active: frozenset[int], parametric: bool) -> set[int]:
    """Values that the rules of one step read."""
    needed = {n for n in step.inputs if n in network.batched} if parametric else set()
    if any(n in active and n in network.batched for n in step.inputs):
        needs = "output" if step.name in FROM_OUTPUT else NEEDS.get(step.name, "inputs")
        if step.name in FROM_OUTPUT and _read_by_pooling_only(network, step):
            needs = "nothing"  # the pooled tensor holds every entry at which the derivative is needed
        if step.name == "getitem":
            needs = "nothing"
        if needs == "factors":  # a product: linear in each of its inputs, not in all of them together
            needs = "inputs" if sum(n in network.batched for n in step.inputs) > 1 else "nothing"
        if needs == "inputs":
            needed.update(n for n in step.inputs if n in network.batched)
        elif needs == "output":
            needed.add(step.value)
    return needed


def _read_by_pooling_only(network: Network, step: Step) -> bool:
    return [user.name for user in network.uses.get(step.value, ())] == ["max_pool2d"]

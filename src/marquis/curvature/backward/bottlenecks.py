"""Bottlenecks: tensors through which everything backwards has to pass.

At such a cut the factor may be replaced by any other square root of the same M, in particular by one with as many
columns as the tensor is wide (2.3). Which cuts are worth it is decided by a cost model: squaring up and factorising
costs something, fewer columns save work in all that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod

from marquis.curvature.graph.network import Network, Step

Shapes = Mapping[int, tuple[int, ...]]

SHARED_KEEPING = {"linear", "matmul", "addmm", "mm", "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"}
"""Operations through which columns stay common to all samples."""

CHOLESKY_PENALTY = 4.0
"""A batched factorisation runs at a fraction of the speed of a product."""


@dataclass(frozen=True)
class Cut:
    """A value on the only path backwards.

    Attributes:
        value: its number.
        position: index among the backward steps of the step that makes it; all before are above the cut.
        width: its entries per sample.
        shared: whether the factor is still common to all samples there.
    """

    value: int
    position: int
    width: int
    shared: bool


def backward_steps(network: Network, active: frozenset[int]) -> list[Step]:
    """The steps that a backward walk visits, last first: those between the output and the selected parameters."""
    reached = {network.output}
    chosen: list[Step] = []
    for step in reversed(network.steps):
        if step.value in reached and step.value in active and step.value in network.batched:
            chosen.append(step)
            reached.update(n for n in step.inputs if n in active and n in network.batched)
    return chosen


def find_cuts(
    network: Network,
    steps: list[Step],
    active: frozenset[int],
    shapes: Shapes,
    groups: Iterable[Iterable[int]],
    shared_root: bool,
) -> list[Cut]:
    """Every value that is alone in being alive when the walk reaches it, except the output.

    Args:
        network: the captured network.
        steps: from `backward_steps`.
        active: values that lead to selected parameters.
        shapes: shapes of the values.
        groups: positions (indices into `steps`) that belong together; no cut may separate them.
        shared_root: whether the columns at the output are common to all samples.
    """
    spans = [(min(group), max(group)) for group in map(list, groups) if group]
    live = {network.output}
    shared = shared_root
    cuts: list[Cut] = []
    for position, step in enumerate(steps):
        axis = network.axes.get(step.value)
        alone = (
            live == {step.value} and step.value in shapes and axis is not None and axis.axis == 0 and axis.inner == 1
        )
        if alone and position and not any(first < position <= last for first, last in spans):
            cuts.append(Cut(step.value, position, prod(shapes[step.value][1:]), shared))
        live.discard(step.value)
        live.update(n for n in step.inputs if n in active and n in network.batched)
        shared = shared and step.name in SHARED_KEEPING
    return cuts


def choose_cuts(cuts: list[Cut], columns: int, costs: list[float], samples: int) -> list[Cut]:
    """The cuts at which recompression pays, by dynamic programming over the cuts.

    Args:
        cuts: from `find_cuts`, in walking order.
        columns: number of columns at the output.
        costs: cost of each backward step for one column and one sample.
        samples: batch size; what is shared costs this much less.
    """
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    nodes: list[Cut | None] = [None, *cuts]
    best = [0.0] + [inf] * len(cuts)
    previous = [0] * len(nodes)

    def width(index: int) -> int:
        node = nodes[index]
        return columns if node is None else node.width

    def start(index: int) -> int:
        node = nodes[index]
        return 0 if node is None else node.position

    for j, cut in enumerate(cuts, start=1):
        for i in range(j):
            c = width(i)
            if cut.width >= c or best[i] == inf:
                continue
            squaring = 2.0 * c * cut.width**2 + CHOLESKY_PENALTY * cut.width**3 / 3
            total = best[i] + c * (before[cut.position] - before[start(i)]) + squaring / (samples if cut.shared else 1)
            if total < best[j]:
                best[j], previous[j] = total, i
    totals = [best[i] + width(i) * (before[-1] - before[start(i)]) for i in range(len(nodes))]
    index = min(range(len(nodes)), key=totals.__getitem__)
    chosen: list[Cut] = []
    while index:
        node = nodes[index]
        assert node is not None
        chosen.append(node)
        index = previous[index]
    return chosen[::-1]


def step_costs(
    network: Network, steps: list[Step], active: frozenset[int], shapes: Shapes, samples: int
) -> list[float]:
    """Floating-point operations of each backward step for one column and one sample."""
    costs: list[float] = []
    for step in steps:
        own = prod(shapes.get(step.value, (samples,))) / samples
        cost = 2.0 * own
        for number in step.inputs:
            if number not in network.batched and len(shapes.get(number, ())) >= 2:
                weight = shapes[number]
                positions = max(1.0, own / max(1, weight[1] if "transpose" in step.name else weight[0]))
                if "transpose" in step.name:
                    positions = prod(shapes.get(step.inputs[0], (samples, 1))) / samples / max(1, weight[0])
                pulls = 1 + (number in active and positions > 1)
                cost += 2.0 * prod(weight) * positions * pulls
        costs.append(cost)
    return costs

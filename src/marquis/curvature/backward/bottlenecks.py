"""Find bottlenecks: tensors through which every path from the outputs back to the parameters passes.

There the factor may be replaced by any other square root of the same M, in particular by one with as many columns as
the tensor is wide (docs/method/curvature.md, Recompression). Which bottlenecks are worth it is decided by
a cost model: squaring up and factorising costs something, fewer columns save work in all that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod

from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.registry import operation_of

Shapes = Mapping[int, tuple[int, ...]]

SHARING_KINDS = ("matrix product", "reshape")
"""Kinds of operations through which columns stay common to all samples."""

CHOLESKY_PENALTY = 4.0
"""A batched factorisation runs at a fraction of the speed of a product."""


@dataclass(frozen=True)
class Bottleneck:
    """Describe a value on the only path backwards.

    Attributes:
        value: its number.
        position: index among the backward steps of the step that makes it; all before are above it.
        width: its entries per sample.
        shared: whether the factor is still common to all samples there.
    """

    value: int
    position: int
    width: int
    shared: bool


def find_bottlenecks(
    network: Network,
    steps: list[Step],
    active: frozenset[int],
    shapes: Shapes,
    groups: Iterable[Iterable[int]],
    shared_root: bool,
) -> list[Bottleneck]:
    """Return every value, except the output, that alone is alive when the walk reaches it.

    Args:
        network: the captured network.
        steps: the visited steps, last first.
        active: values that lead to selected parameters.
        shapes: shapes of the values.
        groups: positions (indices into `steps`) that belong together; no bottleneck may separate them.
        shared_root: whether the columns at the output are common to all samples.
    """
    spans = [(min(group), max(group)) for group in map(list, groups) if group]
    live = {network.output}
    shared = shared_root
    bottlenecks: list[Bottleneck] = []
    for position, step in enumerate(steps):
        axis = network.axes.get(step.value)
        alone = (
            live == {step.value} and step.value in shapes and axis is not None and axis.axis == 0 and axis.inner == 1
        )
        if alone and position and not any(first < position <= last for first, last in spans):
            bottlenecks.append(Bottleneck(step.value, position, prod(shapes[step.value][1:]), shared))
        live.discard(step.value)
        live.update(n for n in step.inputs if n in active and n in network.batched)
        shared = shared and operation_of(step).kind in SHARING_KINDS
    return bottlenecks


def choose_bottlenecks(
    bottlenecks: list[Bottleneck], columns: int, costs: list[float], samples: int
) -> list[Bottleneck]:
    """Return the bottlenecks at which recompression pays, by dynamic programming over the bottlenecks.

    Args:
        bottlenecks: from `find_bottlenecks`, in walking order.
        columns: number of columns at the output.
        costs: cost of each backward step for one column and one sample.
        samples: batch size; what is shared costs this much less.
    """
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    nodes = [Bottleneck(-1, 0, columns, False), *bottlenecks]  # the output, then every candidate
    best = [0.0] + [inf] * len(bottlenecks)
    previous = [0] * len(nodes)
    for j, node in enumerate(bottlenecks, start=1):
        for i, above in enumerate(nodes[:j]):
            if node.width >= above.width or best[i] == inf:
                continue
            squaring = 2.0 * above.width * node.width**2 + CHOLESKY_PENALTY * node.width**3 / 3
            walking = above.width * (before[node.position] - before[above.position])
            total = best[i] + walking + squaring / (samples if node.shared else 1)
            if total < best[j]:
                best[j], previous[j] = total, i
    totals = [best[i] + node.width * (before[-1] - before[node.position]) for i, node in enumerate(nodes)]
    index = min(range(len(nodes)), key=totals.__getitem__)
    chosen: list[Bottleneck] = []
    while index:
        chosen.append(nodes[index])
        index = previous[index]
    return chosen[::-1]


def step_costs(
    network: Network, steps: list[Step], active: frozenset[int], shapes: Shapes, samples: int
) -> list[float]:
    """Return the floating-point operations of each backward step for one column and one sample."""
    costs: list[float] = []
    for step in steps:
        entries = prod(shapes.get(step.value, (samples,))) / samples
        cost = 2.0 * entries
        for number in step.inputs:
            if number not in network.batched and len(shapes.get(number, ())) >= 2:
                weight = shapes[number]
                if operation_of(step).kind == "transposed convolution":
                    positions = prod(shapes.get(step.inputs[0], (samples, 1))) / samples / max(1, weight[0])
                else:
                    positions = max(1.0, entries / max(1, weight[0]))
                products = 1 + (number in active and positions > 1)
                cost += 2.0 * prod(weight) * positions * products
        costs.append(cost)
    return costs

"""Find groups of elementwise steps that must be differentiated as one function.

`x * sigmoid(x)` is one function phi of x, and m phi'(x)² is its rule; multiplying m by sigmoid(x)² and by x² in the
two branches and adding is another number. Steps need to be taken together exactly where branches of elementwise steps
that left the same tensor meet again; a chain without forks gives the same product either way and stays apart.
For the same reason an operation that is written twice with the same arguments is taken as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from marquis.curvature.graph.network import Step, rename


def merge_repeated(steps: Iterable[Step]) -> tuple[tuple[Step, ...], dict[int, int]]:
    """Return the steps without those that repeat an earlier one, and repeated value -> the value that replaces it."""
    first: dict[tuple[Any, str], int] = {}
    stands_for: dict[int, int] = {}
    merged: list[Step] = []
    for step in steps:
        step = rename(step, stands_for)
        random = torch.Tag.nondeterministic_seeded in getattr(step.op, "tags", ())
        key = (step.op, repr((step.args, step.kwargs)))
        if key in first and not random:
            stands_for[step.value] = first[key]
        else:
            first[key] = step.value
            merged.append(step)
    return tuple(merged), stands_for


def fused_group(
    root: Step, producers: Mapping[int, Step], live: frozenset[int], fusable: Callable[[Step], bool]
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the elementwise steps that end in `root` and must be differentiated together, and their live inputs.

    Starting with `root` alone, every place where two of the group's inputs turn out to be elementwise functions of
    one tensor takes the steps between into the group, until its inputs have nothing elementwise in common.
    """
    members = {root.value: root}
    while True:
        inputs = {n for step in members.values() for n in step.inputs if n in live and n not in members}
        between = _steps_to_meeting_points(inputs, producers, live, fusable)
        if not between:
            ordered = tuple(members[n] for n in sorted(members))
            return ordered, tuple(sorted(inputs))
        members.update(between)


def _steps_to_meeting_points(
    inputs: set[int], producers: Mapping[int, Step], live: frozenset[int], fusable: Callable[[Step], bool]
) -> dict[int, Step]:
    """Return the steps between the inputs and the tensors that two of them are elementwise functions of."""
    reached_from = {number: {number} for number in inputs}
    expanded: dict[int, Step] = {}
    pending = set(inputs)
    meeting: set[int] = set()
    while pending:
        number = max(pending)  # every later value was handled, so `reached_from` is complete
        pending.remove(number)
        if len(reached_from[number]) > 1:
            meeting.add(number)
            continue
        step = producers.get(number)
        if step is None or not fusable(step):
            continue
        expanded[number] = step
        for earlier in step.inputs:
            if earlier in live:
                reached_from.setdefault(earlier, set()).update(reached_from[number])
                pending.add(earlier)
    below = set(meeting)
    chosen: dict[int, Step] = {}
    for number in sorted(expanded):
        if any(earlier in below for earlier in expanded[number].inputs):
            below.add(number)
            chosen[number] = expanded[number]
    return chosen

"""Decide what the squared pass will do on a network before anything runs.

Finds the steps that m passes, picks the rule or the fused group for each, refuses what has no rule, and lists the
forward values that the rules will read, so that the others need not be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from marquis.curvature.graph.network import Forward, Network, Step
from marquis.curvature.ops.registry import SquaredRule, is_elementwise, operation_of
from marquis.curvature.squared.fusion import fused_group, merge_repeated
from marquis.errors import UnsupportedOperationError

INSTEAD = "Use estimator='sketched' (the same cost, unbiased) or estimator='exact', which need no rule for it."


@dataclass(frozen=True)
class ScheduledStep:
    """Describe one step of the backward pass of m.

    Attributes:
        step: the operation whose result carries m.
        rule: its rule, or None for the generic elementwise one.
        group: for the generic rule, the steps to differentiate together, ending in `step`.
        receivers: the values that get a contribution.
    """

    step: Step
    rule: SquaredRule | None
    group: tuple[Step, ...]
    receivers: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Describe the whole backward pass of m.

    Attributes:
        output: where m starts.
        actions: in the order of the pass, last operation first.
        read: step results whose entries are read by a rule.
        shaped: step results of which only the shape is needed.
        with_extra: step value -> the operation that the forward pass runs instead, for `run_into`.
        notes: what is dropped beyond the off-diagonal entries of M, one sentence each, for the user.
    """

    output: int
    actions: tuple[ScheduledStep, ...]
    read: frozenset[int]
    shaped: frozenset[int]
    with_extra: dict[int, Forward]
    notes: tuple[str, ...]


def schedule_of(network: Network, selected: Iterable[str]) -> Schedule:
    """Return the schedule for these parameters, made once per network.

    Raises:
        UnsupportedOperationError: m would have to pass an operation without a rule.
    """
    key = ("squared schedule", frozenset(selected))
    if key not in network.memo:
        network.memo[key] = _schedule(network, key[1])
    return network.memo[key]


def live_and_data(network: Network, selected: Iterable[str]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the values that lead to a selected parameter, and those that depend on the input.

    Values whose derivative is zero are left out of the former.
    """
    sources = {network.parameters[name] for name in selected if name in network.parameters}
    live = _depending(network, sources, ("shape only", "constant"))
    return live, _depending(network, network.leaves, ("shape only",))


def _depending(network: Network, sources: Iterable[int], without: tuple[str, ...]) -> frozenset[int]:
    """Return the values that depend on `sources` other than through operations of these kinds."""
    numbers = set(sources)
    for step in network.steps:
        if operation_of(step).kind not in without and any(number in numbers for number in step.inputs):
            numbers.add(step.value)
    return frozenset(numbers)


def _schedule(captured: Network, selected: frozenset[str]) -> Schedule:
    """Decide for every step which rule it uses, and which values it needs."""
    steps, stands_for = merge_repeated(captured.steps)
    output = stands_for.get(captured.output, captured.output)
    network = replace(captured, steps=steps, output=output)
    live, data = live_and_data(network, selected)
    reached = {network.output} & live
    actions: list[ScheduledStep] = []
    for step in reversed(network.steps):
        if step.value in reached:
            action = scheduled(step, network, live, data)
            actions.append(action)
            reached.update(action.receivers)
    results = set(network.producers)
    read: set[int] = set()
    shaped: set[int] = set()
    for action in actions:
        if action.rule is not None:
            read |= action.rule.reads(action.step, live)
            shaped.update(action.step.inputs)
        else:
            inner = {step.value for step in action.group}
            read.update(n for step in action.group for n in step.inputs if n not in inner)
    read &= results
    shaped = (shaped & results) - read
    notes = _notes(network, actions, data)
    extra = {a.step.value: forward for a in actions if (forward := operation_of(a.step).forward_with_extra)}
    return Schedule(output, tuple(actions), frozenset(read), frozenset(shaped), extra, notes)


def scheduled(step: Step, network: Network, live: frozenset[int], data: frozenset[int]) -> ScheduledStep:
    """Choose the rule by which the squared pass treats one step.

    Raises:
        UnsupportedOperationError: there is no rule for it.
    """
    rule = operation_of(step).squared
    receivers = tuple(n for n in step.inputs if n in live)
    if _fusable(step, live):
        group, inputs = fused_group(step, network.producers, live, lambda s: _fusable(s, live))
        repeats_an_input = any(count > 1 for number, count in step.occurrences.items() if number in live)  # `x * x`
        if len(group) > 1 or rule is None or repeats_an_input:
            return ScheduledStep(step, None, group, inputs)
        return ScheduledStep(step, rule, (), receivers)
    if step.value not in data and (rule is None or not rule.between):
        raise UnsupportedOperationError(
            f"{step.where} computes a weight from the parameter(s) {_upstream(step, network, live)} without the input "
            "(weight normalisation, a product of parameters, ...); estimator 'approximate' follows views and "
            f"elementwise functions of a parameter only. {INSTEAD}"
        )
    if rule is None:
        raise UnsupportedOperationError(f"{step.where} has no rule for estimator 'approximate'. {INSTEAD}")
    reason = rule.refuse(step, live, data) if rule.refuse is not None else None
    if reason is not None:
        raise UnsupportedOperationError(f"{step.where} has no rule for estimator 'approximate': {reason}. {INSTEAD}")
    return ScheduledStep(step, rule, (), receivers)


def _fusable(step: Step, live: frozenset[int]) -> bool:
    """Return whether a step may be differentiated together with its elementwise neighbours."""
    rule = operation_of(step).squared
    apart = rule is not None and rule.apart is not None and rule.apart(step, live)
    return is_elementwise(step) and not apart


def _upstream(step: Step, network: Network, live: frozenset[int]) -> list[str]:
    """Return the selected parameters that a step's result depends on."""
    pending, visited = [step.value], set()
    while pending:
        number = pending.pop()
        if number not in visited:
            visited.add(number)
            producer = network.producers.get(number)
            pending.extend(n for n in producer.inputs if n in live) if producer is not None else None
    return [name for name, number in network.parameters.items() if number in visited and number in live]


def _notes(network: Network, actions: list[ScheduledStep], data: frozenset[int]) -> tuple[str, ...]:
    """Return notes on what the squared pass drops in this network."""
    notes = []
    for action in actions:
        for step in action.group or (action.step,):
            inner = {s.value for s in action.group}
            varying = [n for n in step.inputs if n in data and (n in action.receivers or n in inner)]
            products = is_elementwise(step) and operation_of(step).kind != "sum"
            if products and len(action.receivers) > 1 and len(varying) > 1:
                notes.append(
                    f"{step.where} combines two different tensors that depend on the input; each is treated as if "
                    "the other were constant, and the cross term between them is dropped."
                )
    uses: dict[int, int] = {}
    for action in actions:
        for number in action.receivers:
            uses[number] = uses.get(number, 0) + 1
    for name, number in network.parameters.items():
        if uses.get(number, 0) > 1:
            notes.append(
                f"parameter '{name}' is used {uses[number]} times; the contributions are added and the cross terms "
                "between the uses are dropped (there are none between disjoint parts of it)."
            )
    return tuple(notes)

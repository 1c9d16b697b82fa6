"""What the squared pass will do on a network, decided before anything runs.

Finds the steps that m passes, picks the rule or the fused group for each, refuses what has no rule, and lists the
forward values that the rules will read, so that the others need not be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from marquis.curvature.graph.network import Network, Step
from marquis.curvature.ops.squared_rules.elementwise import PLAIN_SUMS, is_pointwise
from marquis.curvature.ops.squared_rules.registry import RULES, Rule
from marquis.curvature.squared.fusion import group_of, merge_repeated
from marquis.errors import UnsupportedOperationError

SHAPE_ONLY = {
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "zeros_like", "ones_like", "full_like", "empty_like",
    "rand_like", "randn_like", "new_zeros", "new_ones", "new_full", "new_empty",
}  # fmt: skip
"""Operations whose result does not depend on the entries of their input."""

NO_DERIVATIVE = {
    "detach", "detach_copy", "argmax", "argmin", "argsort", "eq", "ne", "gt", "ge", "lt", "le", "logical_and",
    "logical_or", "logical_not", "logical_xor", "isnan", "isinf", "isfinite", "bitwise_and", "bitwise_or",
    "bitwise_not", "sign", "floor", "ceil", "round", "nonzero", "any", "all", "bucketize", "searchsorted",
}  # fmt: skip
"""Operations that nothing flows back through: their derivative is zero or none."""

INSTEAD = "Use estimator='sketched' (the same cost, unbiased) or estimator='exact', which need no rule for it."


@dataclass(frozen=True)
class Action:
    """One stop on the way back.

    Attributes:
        step: the operation whose result carries m.
        rule: its rule, or None for the generic elementwise one.
        group: for the generic rule, the steps to differentiate together, ending in `step`.
        receivers: the values that get a contribution.
    """

    step: Step
    rule: Rule | None
    group: tuple[Step, ...]
    receivers: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The whole way back.

    Attributes:
        output: where m starts.
        actions: in the order of the pass, last operation first.
        read: step results whose entries are read by a rule.
        shaped: step results of which only the shape is needed.
        released: step -> results that the forward pass needs no more after it.
        notes: approximations beyond the usual one, for the user.
    """

    output: int
    actions: tuple[Action, ...]
    read: frozenset[int]
    shaped: frozenset[int]
    released: dict[int, tuple[int, ...]]
    notes: tuple[str, ...]


_PLANS: WeakKeyDictionary[Network, dict[frozenset[str], Plan]] = WeakKeyDictionary()


def plan_for(network: Network, selected: Iterable[str]) -> Plan:
    """The plan for these parameters, made once per network.

    Raises:
        UnsupportedOperationError: m would have to pass an operation without a rule.
    """
    names = frozenset(selected)
    known = _PLANS.setdefault(network, {})
    if names not in known:
        known[names] = _make_plan(network, names)
    return known[names]


def _depending(network: Network, sources: Iterable[int], cut: set[str]) -> frozenset[int]:
    """Values that depend on `sources` other than through the operations in `cut`."""
    found = set(sources)
    for step in network.steps:
        if step.name not in cut and any(number in found for number in step.inputs):
            found.add(step.value)
    return frozenset(found)


def _make_plan(captured: Network, selected: frozenset[str]) -> Plan:
    steps, stands_for = merge_repeated(captured.steps)
    output = stands_for.get(captured.output, captured.output)
    network = replace(captured, steps=steps, output=output)
    sources = {network.parameters[name] for name in selected if name in network.parameters}
    live = _depending(network, sources, SHAPE_ONLY | NO_DERIVATIVE)
    data = _depending(network, network.leaves, SHAPE_ONLY)
    reached = {network.output} & live
    actions: list[Action] = []
    for step in reversed(network.steps):
        if step.value in reached:
            action = _action(step, network, live, data)
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
    return Plan(output, tuple(actions), frozenset(read), frozenset(shaped), _releases(captured), notes)


def _action(step: Step, network: Network, live: frozenset[int], data: frozenset[int]) -> Action:
    rule = RULES.get(step.name)
    receivers = tuple(n for n in step.inputs if n in live)
    if _fusable(step, live):
        group, inputs = group_of(step, network.producers, live, lambda s: _fusable(s, live))
        if len(group) > 1 or rule is None or _repeats_an_input(step, live):
            return Action(step, None, group, inputs)
        return Action(step, rule, (), receivers)
    if step.value not in data and (rule is None or not rule.between):
        raise UnsupportedOperationError(
            f"{step.where} computes a weight from the parameter(s) {_upstream(step, network, live)} without the input "
            "(weight normalisation, a product of parameters, ...); estimator 'approximate' follows views and "
            f"elementwise functions of a parameter only. {INSTEAD}"
        )
    if rule is None:
        raise UnsupportedOperationError(f"{step.where} has no rule for estimator 'approximate'. {INSTEAD}")
    reason = rule.check(step, live, data) if rule.check is not None else None
    if reason is not None:
        raise UnsupportedOperationError(f"{step.where} has no rule for estimator 'approximate': {reason}. {INSTEAD}")
    return Action(step, rule, (), receivers)


def _fusable(step: Step, live: frozenset[int]) -> bool:
    """Elementwise steps; the slope of a PReLU lies along dimension 1, so it cannot be broadcast like the others."""
    if step.name == "prelu":
        return step.reference("weight") not in live
    return is_pointwise(step)


def _repeats_an_input(step: Step, live: frozenset[int]) -> bool:
    """Whether a live tensor is more than one argument, as in `x * x`."""
    given = [step.reference(formal.name) for formal in step.op._schema.arguments]
    return any(given.count(number) > 1 for number in set(given) if number in live)


def _upstream(step: Step, network: Network, live: frozenset[int]) -> list[str]:
    pending, seen = [step.value], set()
    while pending:
        number = pending.pop()
        if number not in seen:
            seen.add(number)
            producer = network.producers.get(number)
            pending.extend(n for n in producer.inputs if n in live) if producer is not None else None
    return [name for name, number in network.parameters.items() if number in seen and number in live]


def _releases(network: Network) -> dict[int, tuple[int, ...]]:
    last = {number: step.value for step in network.steps for number in step.inputs}
    released: dict[int, list[int]] = {step.value: [] for step in network.steps}
    for step in network.steps:
        if step.value != network.output:
            released[last.get(step.value, step.value)].append(step.value)
    return {number: tuple(values) for number, values in released.items()}


def _notes(network: Network, actions: list[Action], data: frozenset[int]) -> tuple[str, ...]:
    notes = []
    for action in actions:
        for step in action.group or (action.step,):
            inner = {s.value for s in action.group}
            varying = [n for n in step.inputs if n in data and (n in action.receivers or n in inner)]
            products = is_pointwise(step) and step.name not in PLAIN_SUMS
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


def live_and_data(network: Network, selected: Iterable[str]) -> tuple[frozenset[int], frozenset[int]]:
    """Values that lead to a selected parameter, and values that depend on the input, derivatives of zero left out."""
    sources = {network.parameters[name] for name in selected if name in network.parameters}
    live = _depending(network, sources, SHAPE_ONLY | NO_DERIVATIVE)
    return live, _depending(network, network.leaves, SHAPE_ONLY)


def action_at(step: Step, network: Network, live: frozenset[int], data: frozenset[int]) -> Action:
    """What the squared pass would do at one step; raises if it has no rule for it."""
    return _action(step, network, live, data)

"""Describe in words how each parameter is treated: the per-layer part of a plan."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod

from marquis.curvature.backward.steps import BackwardSteps
from marquis.curvature.factors.gradients import LazyGradients
from marquis.curvature.graph.network import Step
from marquis.curvature.ops.elementwise import elementwise_gradient
from marquis.curvature.ops.registry import operation_of
from marquis.curvature.planning.rehearsal import Rehearsal, Use
from marquis.curvature.squared.schedule import live_and_data, schedule_of, scheduled
from marquis.structures import Layout

FALLBACK = "exact fall-back (slow)"
SQUARED = "squared rule"
UNUSED = "unused: zeros"

FORMS = {"diagonal": "diagonal", "block": "block", "full": "full", "lowrank": "low rank"}
"""How all parameters are kept where the structure does not choose for each."""


@dataclass(frozen=True)
class LayerPlan:
    """Describe what happens to one parameter.

    Attributes:
        name: of the parameter.
        shape: of the parameter.
        operation: where it meets the data; several, with commas, for a tied parameter.
        module: path of the module that does it.
        treatment: "linear rule" and the like, "elementwise rule", "exact fall-back (slow)", "derived weight (...)",
            "squared rule", or "unused: zeros".
        kept: "diagonal", "kronecker", "dense", "block", "full" or "low rank".
        columns: columns that arrive there; 1 where only the diagonal of M does.
        uses: how often it is used.
    """

    name: str
    shape: tuple[int, ...]
    operation: str
    module: str
    treatment: str
    kept: str
    columns: int
    uses: int


def factored_layers(
    backward: BackwardSteps, layout: Layout, rehearsed: Rehearsal, structure: str
) -> tuple[LayerPlan, ...]:
    """Return how the factor pass treats each parameter."""
    layers = []
    for name, shape in layout.shapes.items():
        uses = rehearsed.uses.get(name, [])
        kept = FORMS.get(structure) or rehearsed.kronecker_forms.get(name, ("diagonal", 0))[0]
        treatments = [_treatment(backward, name, use) for use in uses]
        layers.append(_layer(name, shape, [use.step for use in uses], treatments, kept, rehearsed.columns.get(name, 0)))
    return tuple(layers)


def squared_layers(backward: BackwardSteps, layout: Layout) -> tuple[LayerPlan, ...]:
    """Return how the squared pass treats each parameter."""
    names = [name for name in layout.names if name in backward.network.parameters]
    reached = {number for action in schedule_of(backward.network, names).actions for number in action.receivers}
    steps = _steps_by_name(backward)
    layers = []
    for name, shape in layout.shapes.items():
        used = steps.get(name, []) if backward.network.parameters.get(name) in reached else []
        layers.append(_layer(name, shape, used, [SQUARED], "diagonal", 1))
    return tuple(layers)


def mixed_layers(
    backward: BackwardSteps, layout: Layout, rehearsed: Rehearsal, width_limit: float, samples: int
) -> tuple[LayerPlan, ...]:
    """Return how the mixed pass treats each parameter: exactly behind narrow tensors, by squares behind wide ones.

    Raises:
        UnsupportedOperationError: a wide tensor lies behind an operation without a squared rule.
    """
    live, data = live_and_data(backward.network, backward.selected)

    def width(step: Step) -> int:
        shape = rehearsed.shapes.get(step.value)
        return sys.maxsize if shape is None else prod(shape) // samples  # not seen: as wide as can be

    for step in backward.steps:
        if step.value in rehearsed.visited and width(step) > width_limit:
            scheduled(step, backward.network, live, data)
    layers = []
    for name, shape in layout.shapes.items():
        uses = rehearsed.uses.get(name, [])
        wide = [width(use.step) > width_limit for use in uses]
        treatments = [SQUARED if w else _treatment(backward, name, use) for w, use in zip(wide, uses, strict=True)]
        columns = max((1 if w else width(use.step) for w, use in zip(wide, uses, strict=True)), default=0)
        layers.append(_layer(name, shape, [use.step for use in uses], treatments, "diagonal", columns))
    return tuple(layers)


def notes_on(
    backward: BackwardSteps, layers: tuple[LayerPlan, ...], estimator: str, left_out: list[str], samples: int
) -> tuple[str, ...]:
    """Return what a user should know beyond the table."""
    notes = []
    slow: dict[tuple[str, str, int], list[str]] = {}
    for layer in layers:
        if FALLBACK in layer.treatment:
            slow.setdefault((layer.operation, layer.module, layer.columns), []).append(layer.name)
    for (operation, module, columns), names in slow.items():
        notes.append(
            f"{_listed(names)}: no rule for `{operation}` in module '{module or '(top level)'}'. Exact, but one "
            f"backward pass of that operation for each of {columns} columns and {samples} samples."
        )
    if estimator == "approximate":
        names = [layer.name for layer in layers if layer.name in backward.network.parameters]
        notes.extend(schedule_of(backward.network, names).notes)
    unused = [layer.name for layer in layers if layer.treatment == UNUSED]
    if unused:
        notes.append(f"The output does not depend on {_listed(unused)}: their curvature is zero.")
    if left_out:
        notes.append(f"Frozen or not selected, so not differentiated: {_listed(left_out)}.")
    return tuple(notes)


def _treatment(backward: BackwardSteps, name: str, use: Use) -> str:
    """Describe how one use of a parameter is differentiated."""
    rule = operation_of(use.step).gradient
    treatment = "elementwise rule" if rule in (None, elementwise_gradient) else f"{use.step.name} rule"
    if use.value != backward.network.parameters[name]:
        made_by = backward.network.producers[use.value].name
        return f"derived weight ({made_by})" if use.gradients is LazyGradients else f"{treatment}, transposed"
    return FALLBACK if use.gradients is LazyGradients else treatment


def _steps_by_name(backward: BackwardSteps) -> dict[str, list[Step]]:
    """Return the steps that use each parameter."""
    steps: dict[str, list[Step]] = {}
    for step in backward.steps:
        for _, name in backward.uses.get(step.value, ()):
            steps.setdefault(name, []).append(step)
    return steps


def _layer(
    name: str, shape: tuple[int, ...], steps: list[Step], treatments: list[str], kept: str, columns: int
) -> LayerPlan:
    """Return the plan of a parameter that these steps use; without any, the outputs do not depend on it."""
    if not steps:
        return LayerPlan(name, shape, "", "", UNUSED, kept, 0, 0)
    operation, module = _joined([step.name for step in steps]), _joined([step.path for step in steps])
    return LayerPlan(name, shape, operation, module, _joined(treatments), kept, columns, len(steps))


def _joined(texts: list[str]) -> str:
    """Join texts, each once."""
    return ", ".join(dict.fromkeys(texts))


def _listed(names: list[str]) -> str:
    """List the first eight names, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown

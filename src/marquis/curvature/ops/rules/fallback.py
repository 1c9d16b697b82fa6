"""The exact fall-back: gradients of a parameter through any operation, one sample at a time.

The cotangent is masked to one sample and pulled back by local autograd, so it holds for every differentiable operation
and for every weight derived from parameters. Cost: c * n backward passes of that one operation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import Form, Lazy
from marquis.curvature.graph.batch_axis import BatchAxis, require_axis
from marquis.curvature.graph.network import Network, Step, run
from marquis.curvature.ops.pullbacks.generic import local_gradients
from marquis.curvature.ops.pullbacks.registry import Context, Cotangent


def masked(context: Context, step: Step, cotangent: Cotangent, number: int) -> Form:
    """Gradients of one operation's batch-free input by masking the cotangent."""
    factors = cotangent if isinstance(cotangent, dict) else {0: cotangent}
    axes = {index: _axis_of(context, step, index if isinstance(cotangent, dict) else None) for index in factors}
    written = {index: factor.dense() for index, factor in factors.items()}
    count = next(iter(factors.values())).count
    value: Tensor = context.values[number]

    def make(start: int, stop: int) -> Tensor:
        parts: dict[int, Factor] = {}
        for index, columns in written.items():
            axis = axes[index]
            wide = columns.new_zeros(count, stop - start, *columns.shape[1:])
            source = axis.to_front(columns, leading=1)
            for position, sample in enumerate(range(start, stop)):
                axis.to_front(wide[:, position], leading=1)[:, sample] = source[:, sample]
            flat = wide.flatten(0, 1)
            parts[index] = Factor(flat, tuple(flat.shape[1:]), batch_first=False)
        single = parts if isinstance(cotangent, dict) else parts[0]
        gradient = local_gradients(context, step, single, [number])[0]
        if gradient is None:
            return value.new_zeros(count, stop - start, *value.shape)
        return gradient.unflatten(0, (count, stop - start))

    return Lazy(make, count, context.size, tuple(value.shape), value.element_size())


def _axis_of(context: Context, step: Step, index: int | None) -> BatchAxis:
    network = context.network
    number = step.value
    if index is not None:
        picks = [s for s in network.uses.get(step.value, ()) if s.name == "getitem" and s.args[1] == index]
        number = picks[0].value if picks else number
    return require_axis(network.axes, number, step.where)


def derived(context: Context, form: Form, number: int, name: str, shape: tuple[int, ...]) -> Form:
    """Carry gradients of a value derived from parameters (a view, a normalised weight) back to one parameter."""
    network = context.network
    steps = batch_free_steps(network, number)
    source = network.parameters[name]

    def make(start: int, stop: int) -> Tensor:
        gradients = form.explicit(start, stop)
        with torch.enable_grad():
            values = dict(context.values)
            leaf = values[source].detach().requires_grad_()
            values[source] = leaf
            for step in steps:
                values[step.value] = run(step, values)
            flat = gradients.flatten(0, 1)
            rows = torch.autograd.grad(values[number], leaf, flat, is_grads_batched=True, allow_unused=True)[0]
        if rows is None:
            return gradients.new_zeros(*gradients.shape[:2], *shape)
        return rows.unflatten(0, tuple(gradients.shape[:2]))

    return Lazy(make, form.columns, form.samples, shape, form.item)


def batch_free_steps(network: Network, number: int) -> list[Step]:
    """The steps that compute a value which does not depend on the data, in order."""
    needed, chosen = {number}, []
    for step in reversed(network.steps):
        if step.value in needed and step.value not in network.batched:
            chosen.append(step)
            needed.update(step.inputs)
    return chosen[::-1]


def is_transpose_of(network: Network, number: int) -> int | None:
    """The value of which this one is a plain matrix transpose, if it is one."""
    step: Step | None = network.producers.get(number)
    if step is None or step.value in network.batched:
        return None
    if step.name == "t" or (step.name == "transpose" and _last_two(step)):
        return step.inputs[0]
    return None


def _last_two(step: Step) -> bool:
    dims = tuple(step.args[1:3])
    return set(dims) in ({0, 1}, {-1, -2})

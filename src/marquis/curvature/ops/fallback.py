"""Treat any operation by local autograd: vector-Jacobian products, and parameter gradients one sample at a time.

This is exact for every differentiable operation and for every weight that is derived from parameters, and it is what
runs where an operation has no rule. The gradients of a parameter come from the cotangent masked to one sample; that
costs c * n backward passes of the one operation, for `c` columns and `n` samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import LazyGradients, ParameterGradients
from marquis.curvature.graph.batch_axis import BatchAxis, require_axis
from marquis.curvature.graph.network import Network, Step, run
from marquis.curvature.ops.context import Context, Cotangent


def local_vjp(
    step: Step, values: Mapping[int, Any], columns: Mapping[int, Tensor], targets: Sequence[int]
) -> list[Tensor | None]:
    """Return `Jᵀ S` for each target input of an operation, written out, from columns S [c, *shape] at its results."""
    if not targets:
        return []
    with torch.enable_grad():
        inputs = [values[number].detach().requires_grad_() for number in targets]
        result = run(step, {**{n: values[n] for n in step.inputs}, **dict(zip(targets, inputs, strict=True))})
        parts = result if isinstance(result, (list, tuple)) else [result]
        pairs = [(parts[part], s.to(parts[part].dtype)) for part, s in columns.items() if parts[part].requires_grad]
        if not pairs:
            return [None] * len(targets)
        outputs, cotangents = [y for y, _ in pairs], [s for _, s in pairs]
        if cotangents[0].shape[0] == 1:
            grads = torch.autograd.grad(outputs, inputs, [s[0] for s in cotangents], allow_unused=True)
            return [None if g is None else g[None] for g in grads]
        return _batched_vjp(outputs, inputs, cotangents)


def _batched_vjp(outputs: list[Tensor], inputs: list[Tensor], columns: list[Tensor]) -> list[Tensor | None]:
    """Return vector-Jacobian products for all columns at once, or one by one where an operation cannot be batched."""
    try:
        return list(
            torch.autograd.grad(outputs, inputs, columns, is_grads_batched=True, allow_unused=True, retain_graph=True)
        )
    except RuntimeError:  # an operation whose backward cannot be batched: one column at a time
        rows = [
            torch.autograd.grad(outputs, inputs, [s[c] for s in columns], allow_unused=True, retain_graph=True)
            for c in range(columns[0].shape[0])
        ]
        return [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows, strict=True)]


def any_vjp(context: Context, step: Step, cotangent: Cotangent) -> dict[int, Factor]:
    """Return the factors at the inputs of any operation. Cost: one forward and c batched backward passes of it."""
    targets = [n for n in context.targets(step) if _is_differentiable(context.value(n))]
    values = {n: context.value(n) for n in step.inputs}
    columns = {part: factor.dense() for part, factor in _by_part(cotangent).items()}
    grads = local_vjp(step, values, columns, targets)
    return {n: context.factor(grad, n) for n, grad in zip(targets, grads, strict=True) if grad is not None}


def _is_differentiable(value: Any) -> bool:
    """Return whether a value is a floating tensor (or a tuple with one)."""
    return any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in pytree.tree_leaves(value))


def _by_part(cotangent: Cotangent) -> dict[int, Factor]:
    """Return the factors at each result of a step, by number."""
    return cotangent if isinstance(cotangent, dict) else {0: cotangent}


def any_gradient(context: Context, step: Step, cotangent: Cotangent, number: int) -> ParameterGradients:
    """Return the gradients of one operation's batch-free input, by masking the cotangent to one sample at a time."""
    factors = _by_part(cotangent)
    axes = {part: _axis_of(context, step, part if isinstance(cotangent, dict) else None) for part in factors}
    written = {part: factor.dense() for part, factor in factors.items()}
    count = next(iter(factors.values())).count
    value: Tensor = context.values[number]
    values = {n: context.value(n) for n in step.inputs}

    def make(start: int, stop: int) -> Tensor:
        masked: dict[int, Tensor] = {}
        for part, columns in written.items():
            axis = axes[part]
            wide = columns.new_zeros(count, stop - start, *columns.shape[1:])
            source = axis.to_front(columns, leading=1)
            for position, sample in enumerate(range(start, stop)):
                axis.to_front(wide[:, position], leading=1)[:, sample] = source[:, sample]
            masked[part] = wide.flatten(0, 1)
        gradient = local_vjp(step, values, masked, [number])[0]
        if gradient is None:
            return value.new_zeros(count, stop - start, *value.shape)
        return gradient.unflatten(0, (count, stop - start))

    return LazyGradients(make, count, context.size, tuple(value.shape), value.element_size())


def _axis_of(context: Context, step: Step, part: int | None) -> BatchAxis:
    """Return the batch axis of a step's result, or of one part of it."""
    network = context.network
    number = step.value
    if part is not None:
        picks = [s for s in network.uses.get(step.value, ()) if s.name == "getitem" and s.args[1] == part]
        number = picks[0].value if picks else number
    return require_axis(network, step, number)


def derived_gradient(
    context: Context, gradients: ParameterGradients, number: int, name: str, shape: tuple[int, ...]
) -> ParameterGradients:
    """Compute gradients in one parameter from those in a value derived from it (a view, a normalised weight)."""
    network = context.network
    steps = _batch_free_steps(network, number)
    source = network.parameters[name]

    def make(start: int, stop: int) -> Tensor:
        written = gradients.explicit(start, stop)
        with torch.enable_grad():
            values = dict(context.values)
            leaf = values[source].detach().requires_grad_()
            values[source] = leaf
            for step in steps:
                values[step.value] = run(step, values)
            flat = written.flatten(0, 1)
            rows = torch.autograd.grad(values[number], leaf, flat, is_grads_batched=True, allow_unused=True)[0]
        if rows is None:
            return written.new_zeros(*written.shape[:2], *shape)
        return rows.unflatten(0, tuple(written.shape[:2]))

    return LazyGradients(make, gradients.columns, gradients.samples, shape, gradients.item)


def _batch_free_steps(network: Network, number: int) -> list[Step]:
    """Return the steps that compute a value which does not depend on the data, in order."""
    needed, chosen = {number}, []
    for step in reversed(network.steps):
        if step.value in needed and step.value not in network.batched:
            chosen.append(step)
            needed.update(step.inputs)
    return chosen[::-1]

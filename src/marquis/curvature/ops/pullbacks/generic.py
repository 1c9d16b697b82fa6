"""The pull-back of any operation, by local autograd: one batched vector-Jacobian product of that operation alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.factors.factor import Factor
from marquis.curvature.graph.network import Step, run
from marquis.curvature.ops.pullbacks.registry import Context, Cotangent


def generic(context: Context, step: Step, cotangent: Cotangent) -> dict[int, Factor]:
    """Pull back through any differentiable operation. Cost: one forward of it and c backward passes, batched."""
    targets = [n for n in context.targets(step) if is_differentiable(context.value(n))]
    grads = local_gradients(context, step, cotangent, targets)
    return {n: context.factor(grad, n) for n, grad in zip(targets, grads, strict=True) if grad is not None}


def is_differentiable(value: Any) -> bool:
    """Whether a value is a floating tensor (or a tuple with one)."""
    return any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in pytree.tree_leaves(value))


def local_gradients(context: Context, step: Step, cotangent: Cotangent, targets: list[int]) -> list[Tensor | None]:
    """Columns of `Jᵀ S` for each target input of one operation, written out: [c, *shape of the target]."""
    if not targets:
        return []
    with torch.enable_grad():
        values = {n: context.value(n) for n in step.inputs}
        for number in targets:
            values[number] = values[number].detach().requires_grad_()
        result = run(step, values)
        if isinstance(cotangent, dict):
            outputs = [result[i] for i in cotangent]
            columns = [factor.dense() for factor in cotangent.values()]
        else:
            outputs, columns = [result], [cotangent.dense()]
        pairs = [(o, s) for o, s in zip(outputs, columns, strict=True) if o.requires_grad]
        if not pairs:
            return [None] * len(targets)
        outputs, columns = [o for o, _ in pairs], [s for _, s in pairs]
        inputs = [values[n] for n in targets]
        if columns[0].shape[0] == 1:
            grads = torch.autograd.grad(outputs, inputs, [s[0] for s in columns], allow_unused=True)
            return [None if g is None else g[None] for g in grads]
        return _batched_gradients(outputs, inputs, columns)


def _batched_gradients(outputs: list[Tensor], inputs: list[Tensor], columns: list[Tensor]) -> list[Tensor | None]:
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

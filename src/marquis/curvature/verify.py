"""Checks of a captured network before it is trusted.

The graph must give the model's own output and gradient, must not depend on randomness or on batch statistics, and must
keep the samples of a batch apart. Each failure is an error that names the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.call import Model, buffers_of, call, describe
from marquis.curvature.graph import Network, Step
from marquis.errors import UnsupportedOperationError

RANDOM = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout", "rrelu"}
BATCH_STATISTICS = {"batch_norm", "instance_norm", "_native_batch_norm_legit", "native_batch_norm"}


def refuse_training_mode(network: Network) -> None:
    """Refuse dropout and batch statistics: the curvature of a random or coupled network is not defined per sample."""
    for step in network.steps:
        if step.name in RANDOM and _flag(step, ("train", "training")):
            raise UnsupportedOperationError(
                f"{step.where} is in training mode, so the output is random; call model.eval() first "
                "(dropout then is the identity)."
            )
        if step.name in BATCH_STATISTICS and _flag(step, ("training", "use_input_stats")):
            if step.name == "instance_norm":
                continue  # its statistics are those of one sample
            raise UnsupportedOperationError(
                f"{step.where} uses the statistics of the batch (training mode), so samples influence each other; "
                "call model.eval() first."
            )


def _flag(step: Step, names: tuple[str, ...]) -> bool:
    for position, formal in enumerate(step.op._schema.arguments):
        if formal.name in names:
            given = step.args[position] if position < len(step.args) else step.kwargs.get(formal.name)
            return bool(given)
    return False


def verify(network: Network, model: Model, params: Mapping[str, Tensor], x: Any) -> None:
    """Compare the graph with the model: same output, same gradient, samples kept apart, the same twice."""
    leaves = {name: p.detach().requires_grad_(p.is_floating_point()) for name, p in params.items()}
    free = [p for p in leaves.values() if p.requires_grad]
    inputs = pytree.tree_map_only(Tensor, lambda t: t.detach().requires_grad_(t.is_floating_point()), x)
    with torch.enable_grad():
        expected = call(model, leaves, buffers_of(model), inputs)
        if not isinstance(expected, Tensor):
            expected = next(leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, Tensor))
        values = network.bind(leaves, inputs)
        output = network.forward(values)
        _compare(output, expected, f"the captured graph of {describe(model)} gives another output than the model")
        generator = torch.Generator(device=output.device).manual_seed(0)
        weights = torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)
        if not output.requires_grad:
            return
        ours = torch.autograd.grad(output, free, weights, retain_graph=True, allow_unused=True)
        theirs = torch.autograd.grad(expected, free, weights, retain_graph=True, allow_unused=True)
        for name, ours_, theirs_ in zip((n for n, p in leaves.items() if p.requires_grad), ours, theirs, strict=True):
            if ours_ is None and theirs_ is None:
                continue
            zero = torch.zeros_like(leaves[name])
            _compare(
                ours_ if ours_ is not None else zero,
                theirs_ if theirs_ is not None else zero,
                f"the gradient of {describe(model)} with respect to '{name}' is not that of its forward operations "
                "(a custom autograd.Function, a hook that changes gradients, or a block under no_grad)",
            )
        _check_separation(network, output, inputs, weights, model)


def _compare(ours: Tensor, theirs: Tensor, what: str) -> None:
    if ours.shape != theirs.shape:
        raise UnsupportedOperationError(f"{what}: shape {tuple(ours.shape)} against {tuple(theirs.shape)}.")
    scale = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
    tolerance = 1e-3 if theirs.dtype in (torch.float32, torch.complex64) else 5e-2
    tolerance = 1e-8 if theirs.dtype == torch.float64 else tolerance
    difference = float((ours - theirs).detach().abs().max()) if theirs.numel() else 0.0
    if not difference <= tolerance * max(scale, 1e-30):
        raise UnsupportedOperationError(
            f"{what}: they differ by {difference:.3g} where the largest entry is {scale:.3g}. Its forward pass is random, "
            "depends on the batch size, or has a derivative of its own; rewrite that part with plain torch operations."
        )


def _check_separation(network: Network, output: Tensor, inputs: Any, weights: Tensor, model: Model) -> None:
    tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.requires_grad]
    if output.dim() == 0 or not tensors or output.shape[0] != tensors[0].shape[0]:
        if tensors and (output.dim() == 0 or output.shape[0] != tensors[0].shape[0]):
            raise UnsupportedOperationError(
                f"{describe(model)} returns shape {tuple(output.shape)} for a batch of {tensors[0].shape[0]}; dimension 0 of "
                "the output must be the batch (return one row per sample, not a loss or a mean)."
            )
        return
    if output.shape[0] == 1:
        return
    grads = torch.autograd.grad(output[0], tensors, weights[0], allow_unused=True)
    for grad in grads:
        if grad is not None and bool((grad[1:] != 0).any()):
            raise UnsupportedOperationError(
                f"{describe(model)} lets the samples of a batch influence each other's output (batch statistics, a mean over "
                "dimension 0, attention across the batch); the curvature per sample is not defined then."
            )

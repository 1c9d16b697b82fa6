"""Check a captured network before it is trusted.

The graph must give the model's output and gradient, must not depend on randomness or on batch statistics, and must
keep the samples of a batch apart. Each failure is an error that names the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.graph.network import Network, Step
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model, call, copied_buffers, describe
from marquis.functional.checks import batch_size, random_weights, require_derivative, samples_influence_each_other
from marquis.functional.matmul import plain_layers

RANDOM = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout", "rrelu"}
BATCH_STATISTICS = {
    "batch_norm", "instance_norm", "native_batch_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
}  # fmt: skip


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
    """Return whether one of these arguments of a step is true."""
    for position, formal in enumerate(step.op._schema.arguments):
        if formal.name in names:
            return bool(step.args[position] if position < len(step.args) else step.kwargs.get(formal.name))
    return False


def verify(network: Network, model: Model, params: Mapping[str, Tensor], x: Any) -> None:
    """Compare the graph with the model: same output, same gradient."""
    leaves = {name: p.detach().requires_grad_(p.is_floating_point()) for name, p in params.items()}
    free = [p for p in leaves.values() if p.requires_grad]
    inputs = pytree.tree_map_only(Tensor, lambda t: t.detach().requires_grad_(t.is_floating_point()), x)
    with torch.enable_grad(), plain_layers():  # a gradient that is zero is rounding alone: the same on both sides
        expected = call(model, leaves, copied_buffers(model), inputs)
        if not isinstance(expected, Tensor):
            expected = next(leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, Tensor))
        if not expected.is_floating_point():
            raise UnsupportedOperationError(
                f"{describe(model)} returns {expected.dtype}, which has no derivative; return the real-valued outputs "
                "(logits, means), not labels."
            )
        if not bool(torch.isfinite(expected).all()):
            raise DataError(
                f"{describe(model)} gives NaN or infinite outputs on this batch; check its weights and the inputs."
            )
        values = network.bind(leaves, inputs)
        output = network.forward(values)
        _compare(output, expected, f"the captured graph of {describe(model)} gives another output than the model")
        require_derivative(model, output)
        weights = random_weights(output)
        options: dict[str, Any] = {"retain_graph": True, "materialize_grads": True}
        gradients = torch.autograd.grad(output, free, weights, **options)
        true_gradients = torch.autograd.grad(expected, free, weights, **options)
        names = (name for name, p in leaves.items() if p.requires_grad)
        for name, captured, truth in zip(names, gradients, true_gradients, strict=True):
            _compare(
                captured,
                truth,
                f"the gradient of {describe(model)} with respect to '{name}' is not that of its forward operations "
                "(a custom autograd.Function, a hook that changes gradients, or a block under no_grad)",
            )


def _compare(captured: Tensor, expected: Tensor, what: str) -> None:
    """Refuse a capture whose outputs differ from those of the model."""
    if captured.shape != expected.shape:
        raise UnsupportedOperationError(f"{what}: shape {tuple(captured.shape)} against {tuple(expected.shape)}.")
    if not expected.numel():
        return
    tolerance = {torch.float64: 1e-8, torch.float32: 1e-3}.get(expected.dtype, 5e-2)
    difference, scale = float((captured - expected).detach().abs().max()), float(expected.detach().abs().max())
    if not difference <= tolerance * max(scale, 1e-30):
        raise UnsupportedOperationError(
            f"{what}: they differ by {difference:.3g} where the largest entry is {scale:.3g}. Its forward pass is "
            "random, depends on the batch size, or has a derivative of its own; rewrite that part with plain torch "
            "operations."
        )


def check_separation(network: Network, model: Model, params: Mapping[str, Tensor], x: Any) -> None:
    """Refuse a network in which one sample's output depends on another sample.

    Twice over: by the gradient of the first and the last output with respect to the inputs, and by running these two
    samples alone (which also covers tokens, that have no gradient). A single sample shows only the former; then the
    check is made again with the first larger batch.
    """
    size = batch_size(x)
    if size == 1 and network.fixed_batch == 1:
        return

    def outputs_of(inputs: Any) -> Tensor:
        output, count = network.forward(network.bind(params, inputs)), batch_size(inputs)
        if output.dim() == 0 or output.shape[0] != count:
            raise UnsupportedOperationError(
                f"{describe(model)} returns shape {tuple(output.shape)} for a batch of {count}; dimension 0 of the "
                "output must be the batch (return one row per sample, not a loss or a mean)."
            )
        return output

    if samples_influence_each_other(outputs_of, x, alone=network.fixed_batch is None):
        raise UnsupportedOperationError(
            f"{describe(model)} lets the samples of a batch influence each other's output (batch statistics, a mean "
            "over dimension 0, attention across the batch); the curvature per sample is not defined then."
        )
    if size > 1:
        network.memo["separated"] = True

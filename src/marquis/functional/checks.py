"""Refuse inputs and networks for which there is no right answer; each rule is written here once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model


def batch_size(x: Any) -> int:
    """Return the size of dimension 0, which every tensor in the pytree `x` has to share.

    Raises:
        DataError: There is no tensor, one has no dimensions, sizes differ, or the batch is empty.
    """
    sizes: dict[str, int] = {}
    for path, leaf in pytree.tree_flatten_with_path(x)[0]:
        if isinstance(leaf, Tensor):
            where = pytree.keystr(path)
            if leaf.ndim == 0:
                raise DataError(f"x{where} is a single number; every tensor needs the batch as dimension 0.")
            sizes[where] = leaf.shape[0]
    if not sizes:
        raise DataError(f"no tensor found in x of type {type(x).__name__}; the batch size is not known.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"x{where}: {size}" for where, size in sizes.items())
        raise DataError(f"tensors of one batch disagree on its size ({listed}); dimension 0 is the batch.")
    size = next(iter(sizes.values()))
    if size == 0:
        raise DataError("the batch is empty: its tensors have size 0 in dimension 0.")
    return size


def samples_of(x: Any, start: int, stop: int) -> Any:
    """Return the samples number `start` to `stop` of a batch, a pytree like `x`."""
    return pytree.tree_map_only(Tensor, lambda t: t[start:stop], x)


def all_finite(t: Tensor) -> bool:
    """Return whether no entry is NaN or infinite; a finite sum proves it without a temporary."""
    return bool(t.sum().isfinite()) or bool(t.isfinite().all())


def check_finite(x: Any, name: str = "x") -> None:
    """Raise `DataError` naming the leaf if a floating tensor in the pytree `x` holds a NaN or an infinity."""
    for path, leaf in pytree.tree_flatten_with_path(x)[0]:
        numbers = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        if numbers and not all_finite(leaf):
            raise DataError(
                f"{name}{pytree.keystr(path)} holds {int((~torch.isfinite(leaf)).sum())} NaN or infinite value(s) of "
                f"{leaf.numel()}; impute or mask them before computing curvature."
            )


def check_inputs(x: Any) -> int:
    """Return the size of a batch after refusing NaN, infinity and an empty batch."""
    check_finite(x)
    return batch_size(x)


def refuse_training_mode(model: Model) -> None:
    """Raise if dropout makes the output random, or batch statistics couple the samples of a batch.

    Raises:
        UnsupportedOperationError: Names the first such module.
    """
    if not isinstance(model, nn.Module):
        return
    for path, module in model.named_modules():
        where = f"module {path!r}" if path else "the model itself"
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise UnsupportedOperationError(
                f"{where} ({type(module).__name__}) is in training mode or has no running statistics, so the output "
                "is coupled across the batch; call model.eval() first (and keep track_running_stats=True)."
            )
        dropout = getattr(module, "dropout", 0.0)
        random = isinstance(module, (_DropoutNd, nn.RReLU)) or (
            isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and isinstance(dropout, float) and dropout > 0
        )
        if random and module.training:
            raise UnsupportedOperationError(
                f"{where} ({type(module).__name__}) is in training mode, so the output is random; call model.eval() "
                "first."
            )


def samples_influence_each_other(outputs_of: Callable[[Any], Tensor], x: Any, *, alone: bool = True) -> bool:
    """Return whether the output of one sample depends on the other samples of its batch.

    Looks twice: at the gradient of the first and of the last output in the inputs of all other samples, and at these
    two samples run alone, which also covers tokens, that have no gradient. Where the network takes only this batch
    size, the gradients alone decide. A batch of one sample is doubled, and shows only the gradients.

    Args:
        outputs_of: The network at fixed parameters, `x -> [B, ...]`.
        x: A batch.
        alone: Whether to run single samples.
    """
    size = batch_size(x)
    several = x if size > 1 else pytree.tree_map_only(Tensor, lambda t: torch.cat([t, t]), x)
    inputs = pytree.tree_map_only(Tensor, lambda t: t.detach().requires_grad_(t.is_floating_point()), several)
    tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.requires_grad]
    with torch.enable_grad():
        output = outputs_of(inputs)
        last = max(2, size) - 1
        for row in (0, last):
            if tensors and output.requires_grad:
                weights = random_weights(output[row])
                gradients = torch.autograd.grad(output[row], tensors, weights, allow_unused=True, retain_graph=True)
                for gradient in (g for g in gradients if g is not None):
                    touched = (gradient != 0).flatten(1).any(1)
                    touched[row] = False
                    if bool(touched.any()):
                        return True
    if size == 1 or not alone:
        return False
    with torch.no_grad():
        for row in (0, last):
            try:
                single = outputs_of(samples_of(x, row, row + 1))
            except Exception:  # a network written for one batch size
                return False
            if single.shape[1:] == output.shape[1:] and not is_close(single, output[row : row + 1]):
                return True
    return False


def random_weights(output: Tensor) -> Tensor:
    """Return the same random numbers whenever the shape is the same, to combine outputs with."""
    generator = torch.Generator(device=output.device).manual_seed(0)
    return torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)


def is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding in the dtype at hand, relative to the largest entry."""
    if not other.numel():
        return True
    tolerance = {torch.float64: 1e-8, torch.float32: 3e-4}.get(other.dtype, 5e-2)
    difference = float((one - other).detach().abs().max())
    return difference <= tolerance * max(float(other.detach().abs().max()), 1e-30)

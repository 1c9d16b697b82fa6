"""Refuse inputs and networks for which there is no right answer; each rule is written here once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from marquis.errors import DataError, MarquisError, UnsupportedOperationError
from marquis.functional.call import Model, describe
from marquis.functional.unwrap import entries, named_modules


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
        check_ordinary(x)
        many = " For all batches of a loader there is predict_loader." if hasattr(x, "dataset") else ""
        table = " Pass torch.as_tensor of its to_numpy()." if hasattr(x, "to_numpy") else ""
        numbers = " Pass torch.as_tensor of it." if isinstance(x, (list, tuple)) else ""
        raise DataError(
            f"no tensor in x of type {type(x).__name__}; the batch size is not known.{many or table or numbers}"
        )
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


def check_ordinary(x: Any, name: str = "x") -> None:
    """Raise `DataError` naming the leaf if the pytree `x` holds a NumPy array or a tensor of an unusual kind.

    That is a sparse one, a quantised one, or one without entries (meta).
    """
    for _ in _ordinary_tensors(x, name):
        pass


def _ordinary_tensors(x: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a pytree with its name, after `check_ordinary` of it."""
    single = isinstance(x, (Tensor, float)) or x is None  # walking a tree costs more than all checks
    for path, leaf in [((), x)] if single else pytree.tree_flatten_with_path(x)[0]:
        where = f"{name}{pytree.keystr(path)}"
        if isinstance(leaf, np.ndarray):
            raise DataError(f"{where} is a NumPy array; pass torch.as_tensor of it.")
        if not isinstance(leaf, Tensor):
            continue
        if leaf.layout != torch.strided:
            raise DataError(f"{where} is sparse; pass an ordinary tensor ({where}.to_dense()).")
        if leaf.is_meta:
            raise DataError(f"{where} is without entries (meta); pass a tensor that has them.")
        if leaf.is_quantized:
            raise DataError(f"{where} is quantised; pass an ordinary tensor ({where}.dequantize()).")
        yield where, leaf


def check_finite(x: Any, name: str = "x") -> None:
    """Raise `DataError` naming the leaf if the pytree `x` holds what nothing can be computed from.

    That is NaN or infinity in a floating tensor, complex numbers, or what `check_ordinary` refuses.
    """
    for where, leaf in _ordinary_tensors(x, name):
        if leaf.is_complex():
            raise DataError(f"{where} is complex; pass an ordinary real tensor.")
        if leaf.is_floating_point() and not all_finite(leaf):
            raise DataError(
                f"{where} holds {int((~torch.isfinite(leaf)).sum())} NaN or infinite value(s) of {leaf.numel()}; "
                "impute or mask them before computing curvature."
            )


def check_inputs(x: Any) -> int:
    """Return the size of a batch after refusing NaN, infinity and an empty batch."""
    check_finite(x)
    return batch_size(x)


@contextmanager
def naming_inputs(model: Any, x: Any, run: Callable[[], Any], what: str = "x") -> Iterator[None]:
    """Say which inputs a network does not take, where something within the context fails because of that.

    Args:
        model: The network, for the message.
        x: Its inputs.
        run: One plain forward pass; where it fails too the inputs are to blame, otherwise the error is passed on.
        what: Name of the inputs, for the message.

    Raises:
        DataError: The network itself cannot take `x`; names shapes, types and its first layer.
    """
    try:
        yield
    except (MarquisError, MemoryError):
        raise
    except Exception:
        check_ordinary(x, what)
        try:
            with torch.no_grad():
                run()
        except MarquisError:
            raise
        except Exception as error:
            raise DataError(does_not_take(model, x, what, error)) from error
        raise


@contextmanager
def naming_shape(model: Any, x: Tensor, what: str) -> Iterator[None]:
    """Add the data's shape and the network's first layer to what torch raises when they do not fit.

    Raises:
        DataError: Torch refused the batch.
    """
    try:
        yield
    except (MarquisError, NotImplementedError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        first = first_layer(model)
        hint = "" if first is None else f" Its first layer is {first}."
        raise DataError(
            f"{what}: {type(model).__name__} cannot take data of shape {list(x.shape[1:])} each: {reason}.{hint}"
        ) from error


def does_not_take(model: Any, x: Any, what: str, error: Exception) -> str:
    """Return the message for inputs on which a network's own forward pass failed."""
    leaves = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    shapes = ", ".join(f"{list(leaf.shape)} ({str(leaf.dtype).removeprefix('torch.')})" for leaf in leaves)
    described = f"of shape {shapes}" if leaves else f"of type {type(x).__name__}"
    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
    if isinstance(x, Mapping):
        hint = " A dictionary is passed as keywords, model(**x); pass (x,) to a model that takes the dictionary itself."
        return f"{describe(model)} cannot take {what} with the entries {list(x)}: {reason}.{hint}"
    first = first_layer(model)
    hint = "" if first is None else f" Its first layer is {first}, in {str(first.weight.dtype).removeprefix('torch.')}."
    return f"{describe(model)} cannot take {what} {described}: {reason}.{hint}{_repair(leaves, first, what)}"


def _repair(leaves: list[Tensor], first: nn.Linear | nn.modules.conv._ConvNd | None, what: str) -> str:
    """Return how an input becomes what the first layer takes, as the end of a message; "" where that is unclear."""
    if isinstance(first, nn.modules.conv._ConvNd) and len(leaves) == 1:
        [x], channels, axes = leaves, first.in_channels, first.weight.dim()
        if x.dim() == axes and x.shape[1] != channels == x.shape[-1]:
            order = ", ".join(map(str, (0, axes - 1, *range(1, axes - 1))))
            return f" Channels come second: {what}.permute({order})."
        if x.dim() == axes - 1 and x.shape[0] == channels:
            return f" The batch comes first: {what}.unsqueeze(0)."
    if len(leaves) == 1 and first is not None and leaves[0].dtype != first.weight.dtype:
        return f" Pass {what}.to({first.weight.dtype})."
    if len(leaves) > 1:
        return f" A tuple is passed as model(*{what}), a tensor as model({what}), a dict as model(**{what})."
    return ""


def first_layer(model: Any) -> nn.Linear | nn.modules.conv._ConvNd | None:
    """Return the first dense or convolutional layer of a module, which says what inputs it takes; None without one."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return next((part for part in parts if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd))), None)


def require_derivative(model: Any, outputs: Any) -> Tensor:
    """Return the outputs of a pass that recorded gradients, if they are one tensor that depends on a parameter.

    Raises:
        UnsupportedOperationError: They are several, or have no derivative: every weight would look certain, or unused.
    """
    if not isinstance(outputs, Tensor):
        raise UnsupportedOperationError(
            f"{describe(model)} returns a {type(outputs).__name__}{entries(outputs)}; one tensor of outputs is needed. "
            "Pass a function (params, x) -> tensor, or a module, that picks the output."
        )
    if not outputs.requires_grad:
        raise UnsupportedOperationError(
            f"the outputs of {describe(model)} have no derivative in any parameter: its forward pass detaches them, "
            "runs under torch.no_grad() or leaves torch (NumPy); remove that."
        )
    return outputs


def refuse_training_mode(model: Model) -> None:
    """Raise if dropout makes the output random, or batch statistics couple the samples of a batch.

    Raises:
        UnsupportedOperationError: Names the first such module.
    """
    if not isinstance(model, nn.Module):
        return
    for path, module in named_modules(model):
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

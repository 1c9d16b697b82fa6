"""How a network is called: its parameters, its inputs, what a loader yields.

A model is a `torch.nn.Module` or a function `(params, x) -> outputs`. Everything here leaves the user's
objects untouched: a module runs through `torch.func.functional_call` with the parameters that are passed in.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from marquis.errors import DataError, MarquisError
from marquis.likelihoods.tools import all_finite

Model = nn.Module | Callable[[dict[str, Tensor], Any], Tensor]
Selection = str | Iterable[str] | Callable[[str, Tensor], bool] | None

LABEL_KEYS = ("labels", "label", "y", "target", "targets")
"""Keys under which a dictionary batch may carry its labels."""


class SelectionError(MarquisError, ValueError):
    """Parameters were asked for that the model does not have, or none at all were selected."""


def parameters_of(model: Model, params: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The model's parameters by name, each tensor once, in the order of `named_parameters()`.

    Args:
        model: a module, or a function `(params, x) -> outputs`.
        params: the parameters at which a function is differentiated; required for a function. For a module it
            replaces the values of the module's own parameters and must have the same names and shapes.
    """
    if not isinstance(model, nn.Module):
        if params is None:
            raise MarquisError(
                f"{describe(model)} is a function, so its parameters are not known; "
                "pass params={name: tensor}, the first argument it is called with."
            )
        return dict(params)
    own: dict[str, Tensor] = dict(model.named_parameters())
    if params is None:
        return own
    differing = [name for name in own if name not in params or params[name].shape != own[name].shape]
    differing += [name for name in params if name not in own]
    if differing:
        raise SelectionError(
            f"params does not fit {describe(model)}: names or shapes differ at {sorted(set(differing))}; "
            "pass one tensor for each of model.named_parameters()."
        )
    return {name: params[name] for name in own}


def buffers_of(model: Model) -> dict[str, Tensor]:
    """The model's buffers by name; a function has none."""
    return dict(model.named_buffers()) if isinstance(model, nn.Module) else {}


def select(
    tensors: Mapping[str, Tensor], parameters: Selection = None, *, skip_frozen: bool | None = None
) -> dict[str, Tensor]:
    """Choose parameters by name, pattern or predicate, in the order of `tensors`.

    Frozen parameters (`nn.Parameter` with `requires_grad=False`) are left out of `None`, `"all"`, patterns
    and predicates; naming one in an iterable selects it, because then it was asked for.

    Args:
        tensors: all parameters by name.
        parameters: `None` or `"all"`; a shell pattern such as `"encoder.*"`; a predicate
            `(name, tensor) -> bool`; or an iterable of names.
        skip_frozen: whether frozen parameters are left out; by default they are where they are
            `nn.Parameter`s (a module's), while the plain tensors handed to a function all count.

    Raises:
        SelectionError: a name is unknown, or nothing is left; the message lists close matches.
    """

    def is_trainable(tensor: Tensor) -> bool:
        skip = isinstance(tensor, nn.Parameter) if skip_frozen is None else skip_frozen
        return tensor.requires_grad or not skip

    trainable = {name: tensor for name, tensor in tensors.items() if is_trainable(tensor)}
    if parameters is None or (isinstance(parameters, str) and parameters == "all"):
        chosen, asked = trainable, "every parameter that requires a gradient"
    elif isinstance(parameters, str):
        chosen = {name: t for name, t in trainable.items() if fnmatch.fnmatchcase(name, parameters)}
        asked = f"the pattern {parameters!r}"
    elif callable(parameters):
        chosen = {name: t for name, t in trainable.items() if parameters(name, t)}
        asked = "the given predicate"
    else:
        names = list(parameters)
        unknown = [name for name in names if name not in tensors]
        if unknown:
            raise SelectionError(f"the model has no parameter named {_with_matches(unknown, tensors)}.")
        wanted = set(names)
        chosen = {name: t for name, t in tensors.items() if name in wanted}
        asked = "an empty list of names"
    if chosen:
        return chosen
    hint = ""
    if isinstance(parameters, str) and tensors:
        matching = [name for name in tensors if fnmatch.fnmatchcase(name, parameters)]
        hint = f"; {matching} match but are frozen" if matching else f"; {_with_matches([parameters], tensors)}"
    elif tensors and not trainable:
        hint = "; all of them are frozen (requires_grad=False)"
    raise SelectionError(f"{asked} selects none of the model's {len(tensors)} parameters{hint}.")


def _with_matches(names: list[str], known: Iterable[str]) -> str:
    known = list(known)
    parts = []
    for name in names:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        parts.append(f"{name!r} (did you mean {', '.join(map(repr, close))}?)" if close else f"{name!r}")
    text = ", ".join(parts)
    if "did you mean" not in text:
        shown = ", ".join(map(repr, known[:8])) + (", ..." if len(known) > 8 else "")
        text += f"; it has {shown}"
    return text


def call(model: Model, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Any) -> Tensor:
    """Run the model at `params` on `x` without touching the model.

    Args:
        model: a module, or a function called as `model(params, x)`.
        params: every parameter the model needs, by name.
        buffers: the module's buffers by name (ignored for a function).
        x: a tensor (`model(x)`), a tuple or list (`model(*x)`), or a mapping (`model(**x)`).
    """
    if not isinstance(model, nn.Module):
        return model(dict(params), x)
    state = {**params, **buffers}
    if isinstance(x, Mapping):
        return at_state(model, state, (), dict(x))
    return at_state(model, state, tuple(x) if isinstance(x, (tuple, list)) else (x,))


def at_state(
    model: nn.Module, state: Mapping[str, Tensor], arguments: tuple[Any, ...], named: Mapping[str, Any] | None = None
) -> Any:
    """The module's answer with other parameters and buffers; those that are not named are its own.

    A tensor that several modules share is named once, by its first name, and changed in all of them. torch can do that
    too (`tie_weights=True`), but a *module* that is there under two names it changes twice, and leaves it changed.

    Args:
        model: stays as it is.
        state: parameters and buffers, by the names of `named_parameters()` and `named_buffers()`.
        arguments: of the module.
        named: its keyword arguments.
    """
    firsts: dict[int, str] = {}
    wanted: dict[str, Tensor] = {}
    for place, tensor in places_of(model):
        first = firsts.setdefault(id(tensor), place)
        if first in state:
            wanted[place] = state[first]
    return torch.func.functional_call(model, wanted, arguments, dict(named or {}), tie_weights=False)


def places_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Where a module keeps its parameters and buffers: shared ones at every place, but each of its modules once."""
    for path, module in model.named_modules():
        for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:
                yield (f"{path}.{name}" if path else name), tensor


def laid_out_like(value: Tensor, own: Tensor) -> Tensor:
    """`value` in the memory layout of the parameter whose place it takes.

    Convolutions choose their kernels by it: on a CPU a network whose weights are channels-last takes half the time,
    and would lose that again if weights cut out of a flat vector took their place.
    """
    return value if value.stride() == own.stride() else torch.empty_like(own).copy_(value)


def describe(model: Model) -> str:
    """A short name of the model for messages."""
    if isinstance(model, nn.Module):
        return type(model).__name__
    return getattr(model, "__name__", type(model).__name__)


def batch_size(x: Any) -> int:
    """The size of dimension 0, shared by every tensor in the pytree `x`."""
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


def check_finite(x: Any, name: str = "x") -> None:
    """Raise `DataError` naming the leaf if a floating tensor in the pytree `x` holds a NaN or an infinity."""
    for path, leaf in pytree.tree_flatten_with_path(x)[0]:
        numbers = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        if numbers and not all_finite(leaf):
            raise DataError(
                f"{name}{pytree.keystr(path)} holds {int((~torch.isfinite(leaf)).sum())} NaN or infinite value(s) of "
                f"{leaf.numel()}; impute or mask them before computing curvature."
            )


def without_inference(x: Any) -> Any:
    """The same pytree with tensors that were made under `torch.inference_mode()` copied, for autograd to take them."""
    return pytree.tree_map_only(Tensor, lambda t: t.clone() if t.is_inference() else t, x)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Split what a loader yields into inputs and labels; labels are `None` where there are none.

    `(x, y)` as a tuple or list of two; a tensor alone is `x`; a mapping is `x` without its label entry
    (one of `LABEL_KEYS`).
    """
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        found = [key for key in LABEL_KEYS if key in batch]
        if len(found) > 1:
            raise DataError(f"a batch has several label entries {found}; keep one of them.")
        inputs = {key: value for key, value in batch.items() if key not in found}
        return inputs, batch[found[0]] if found else None
    if isinstance(batch, (tuple, list)):
        if len(batch) == 2:
            return batch[0], batch[1]
        raise DataError(
            f"the loader yields a {type(batch).__name__} of {len(batch)} items; expected (x, y), with "
            "several inputs as ((x1, x2), y), a tensor, or a dict."
        )
    raise DataError(f"the loader yields {type(batch).__name__}; expected (x, y), a tensor, or a dict.")

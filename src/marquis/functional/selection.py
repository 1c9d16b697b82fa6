"""Name the parameters of a network and choose among them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from marquis.arguments import describe_value
from marquis.errors import MarquisError
from marquis.functional.call import Model, describe
from marquis.functional.unwrap import named_parameters, whole

Selection = str | Iterable[str] | Callable[[str, Tensor], bool] | None


class SelectionError(MarquisError, ValueError):
    """Report parameters that the model does not have, or a selection of none at all."""


def parameters_of(model: Model, params: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the model's parameters by name, each tensor once, in the order of `named_parameters()`.

    Wrappers add nothing to the names (`functional.unwrap`). Parameters that `fully_shard` spread over processes are
    gathered, so every process has to call this.

    Args:
        model: a module, or a function `(params, x) -> outputs`.
        params: the parameters at which a function is differentiated; required for a function. For a module it
            replaces the values of the module's own parameters and must have the same names and shapes.

    Raises:
        SelectionError: Parameters without values (lazy, meta), complex ones, or `params` that do not fit.
    """
    if not isinstance(model, nn.Module):
        if params is None:
            raise MarquisError(
                f"{describe(model)} is a function, so its parameters are not known; "
                "pass params={name: tensor}, the first argument it is called with."
            )
        return dict(params)
    named = named_parameters(model)
    _refuse_without_values(model, named)
    if params is None:
        return {name: whole(tensor) for name, tensor in named.items()}
    differing = [name for name in named if name not in params or params[name].shape != named[name].shape]
    differing += [name for name in params if name not in named]
    if differing:
        raise SelectionError(
            f"params does not fit {describe(model)}: names or shapes differ at {sorted(set(differing))}; "
            "pass one tensor for each of model.named_parameters()."
        )
    return {name: params[name] for name in named}


def _refuse_without_values(model: nn.Module, named: Mapping[str, Tensor]) -> None:
    """Refuse parameters that have no values yet, and complex ones, for which curvature is not defined here.

    Raises:
        SelectionError: Names the first of them, and the remedy.
    """
    for name, tensor in named.items():
        if isinstance(tensor, UninitializedParameter):
            reason = "has no shape yet (a lazy layer); call the model once, model(x), before anything else"
        elif tensor.is_meta:
            reason = "has no values (it is on the device meta); load the weights first"
        elif tensor.is_complex():
            reason = "is complex; write it as two real parameters"
        else:
            continue
        raise SelectionError(f"parameter {name!r} of {describe(model)} {reason}.")


def select(tensors: Mapping[str, Tensor], parameters: Selection = None) -> dict[str, Tensor]:
    """Choose parameters by name, pattern or predicate, in the order of `tensors`.

    Frozen parameters (`nn.Parameter` with `requires_grad=False`) are left out of `None`, `"all"`, patterns
    and predicates; naming one in an iterable selects it, because then it was asked for.

    Args:
        tensors: all parameters by name.
        parameters: `None` or `"all"`; a shell pattern such as `"encoder.*"`; a predicate
            `(name, tensor) -> bool`; or an iterable of names.

    Raises:
        SelectionError: a name is unknown, or nothing is left; the message lists close matches.
    """
    # the plain tensors handed to a function all count
    trainable = {name: t for name, t in tensors.items() if t.requires_grad or not isinstance(t, nn.Parameter)}
    if parameters is None or (isinstance(parameters, str) and parameters == "all"):
        chosen, described = trainable, "every parameter that requires a gradient"
    elif isinstance(parameters, str):
        chosen = {name: t for name, t in trainable.items() if fnmatch.fnmatchcase(name, parameters)}
        described = f"the pattern {parameters!r}"
    elif callable(parameters) and not isinstance(parameters, type):
        if isinstance(parameters, nn.Module):
            raise SelectionError("parameters is a module; pass names, a pattern or a predicate of name and tensor.")
        chosen = {name: t for name, t in trainable.items() if parameters(name, t)}
        described = "the given predicate"
    else:
        names = _names(parameters)
        unknown = [name for name in names if name not in tensors]
        if unknown:
            raise SelectionError(f"the model has no parameter named {_with_matches(unknown, tensors)}.")
        selected = set(names)
        chosen = {name: t for name, t in tensors.items() if name in selected}
        described = "an empty list of names"
    if chosen:
        return chosen
    hint = ""
    if not tensors:
        raise SelectionError(
            "the model has no parameters (quantised layers keep none), so none is uncertain; pass a network of floats."
        )
    if isinstance(parameters, str):
        matching = [name for name in tensors if fnmatch.fnmatchcase(name, parameters)]
        hint = f"; {matching} match but are frozen" if matching else f"; {_with_matches([parameters], tensors)}"
    elif not trainable:
        hint = "; all of them are frozen (requires_grad=False)"
    raise SelectionError(f"{described} selects none of the model's {len(tensors)} parameters{hint}.")


def _names(parameters: Any) -> list[str]:
    """Return an iterable of names as a list, or refuse what is none."""
    try:
        names: list[Any] = list(parameters)
    except TypeError:
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise SelectionError(
            f"parameters is {describe_value(parameters)}; give a name pattern, a list of names, or a function "
            "(name, tensor) -> bool."
        )
    return names


def _with_matches(names: list[str], known: Iterable[str]) -> str:
    """List unknown names, each with the known ones that are close to it."""
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

"""Call a network: a `torch.nn.Module`, or a function `(params, x) -> outputs`, with any values of its parameters.

The user's module is never written to, not even for the length of a call, so any number of threads may call it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from marquis.functional.replica import replicate
from marquis.functional.unwrap import named_buffers, one_output, plain_inputs, unwrap

Model = nn.Module | Callable[[dict[str, Tensor], Any], Tensor]
Observer = Callable[[tuple[Any, ...], Any], None]
"""Receives the arguments and the output of a submodule whenever it runs."""


def call(
    model: Model,
    params: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    x: Any,
    observers: Mapping[nn.Module, Observer] | None = None,
) -> Tensor:
    """Return the outputs of the model at `params` on `x`.

    Args:
        model: A module, or a function called as `model(params, x)`.
        params: Every parameter that the model needs, by name.
        buffers: The module's buffers by name (ignored for a function).
        x: A tensor (`model(x)`), a tuple or list (`model(*x)`), or a mapping (`model(**x)`).
        observers: What to tell about the submodules of a module, by submodule.
    """
    if not isinstance(model, nn.Module):
        return one_output(model(dict(params), x))
    state = {**params, **buffers}
    if isinstance(x, Mapping):
        return one_output(call_module(model, state, (), dict(x), observers))
    arguments = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    return one_output(call_module(model, state, arguments, None, observers))


def call_module(
    model: nn.Module,
    state: Mapping[str, Tensor],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any] | None = None,
    observers: Mapping[nn.Module, Observer] | None = None,
) -> Any:
    """Return what a module returns with other parameters and buffers; those that are not named are its own.

    Args:
        model: Stays as it is.
        state: Parameters and buffers, by the names of `named_parameters()` and `named_buffers()`. A tensor that several
            modules share is named once, by its first name, and replaced in all of them.
        arguments: Positional arguments of the module.
        keywords: Keyword arguments of the module.
        observers: What to tell about its submodules, by submodule.
    """
    replica, parts = replicate(model, state)
    for module, observer in (observers or {}).items():
        part = parts[id(module)]
        part._forward_hooks = OrderedDict(part._forward_hooks)
        part.register_forward_hook(lambda _, args, output, observer=observer: observer(args, output))
    return replica(*arguments, **(keywords or {}))


def run(module: nn.Module, x: Any) -> Any:
    """Return what a module returns as it is, in training: what its forward pass writes to buffers is kept."""
    if isinstance(x, Mapping):
        return one_output(module(**x))
    return one_output(module(*x) if isinstance(x, (tuple, list)) else module(x))


def buffers_of(model: Model) -> dict[str, Tensor]:
    """Return the model's buffers by name; a function has none."""
    return named_buffers(model) if isinstance(model, nn.Module) else {}


def copied_buffers(model: Model) -> dict[str, Tensor]:
    """Return copies of the model's buffers: a module that counts its calls in a buffer writes to the copy."""
    return {name: buffer.clone() for name, buffer in buffers_of(model).items()}


def laid_out_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return `value` in the memory layout of the parameter that it replaces.

    Convolutions choose their kernels by it: on a CPU a network whose weights are channels-last takes half the time,
    and would lose that again if weights cut out of a flat vector took their place.
    """
    return value if value.stride() == parameter.stride() else torch.empty_like(parameter).copy_(value)


def describe(model: Model) -> str:
    """Return a short name of the model for messages."""
    if isinstance(model, nn.Module):
        return type(unwrap(model)).__name__
    return getattr(model, "__name__", type(model).__name__)


def without_inference(x: Any) -> Any:
    """Return the inputs as a pytree, tensors made under `torch.inference_mode()` copied so that autograd takes them."""
    return pytree.tree_map_only(Tensor, lambda t: t.clone() if t.is_inference() else t, plain_inputs(x))


class _SharedSwitch:
    """Turn a switch of torch's for all threads: the first to enter turns it, the last turns it back."""

    def __init__(self, turn: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._turn, self._lock, self._users = turn, threading.Lock(), 0
        self._before = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before.enter_context(self._turn())
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._before.close()


@contextlib.contextmanager
def _without_fast_path() -> Iterator[None]:
    """Switch off the fused kernels of attention, which have no derivatives, within the context."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


unfused_layers = _SharedSwitch(_without_fast_path)
"""Context in which transformer layers run operation by operation: the fused layer has no derivative."""

_unfused_attention = _SharedSwitch(lambda: sdpa_kernel(SDPBackend.MATH))


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention from differentiable parts: the fused kernels have no forward-mode or second derivative."""
    with unfused_layers, _unfused_attention:
        yield

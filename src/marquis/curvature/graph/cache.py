"""Remember captured networks as long as their model lives and does not change.

Capturing costs a fraction of a second, a curvature call on a small network a millisecond. The memory is keyed by the
model object and checked at every call: by everything that can change what `forward` does (`fingerprint.py`), by names,
shapes and types of the parameters, and by the shapes of the inputs. What no description sees (an environment variable,
a file, a foreign object's state) may change the network too. So a model with code of the user's own also runs on two
samples, and a graph that gives other outputs than at its capture, beyond rounding, is captured anew. A fit looks its
network up several times for the same batch (to plan, to find the last layer, to differentiate): that runs once.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.graph.capture import capture
from marquis.curvature.graph.fingerprint import Description, Fingerprint
from marquis.curvature.graph.network import Network
from marquis.curvature.graph.verify import check_separation
from marquis.functional.call import Model, call, copied_buffers, unfused_layers
from marquis.functional.checks import all_finite, batch_size, naming_inputs, samples_of
from marquis.functional.matmul import plain_layers
from marquis.functional.unwrap import unwrap


@dataclass(frozen=True, eq=False)
class _Capture:
    """Hold one captured network, the conditions for its reuse, and how much rounding changes its outputs."""

    network: Network
    fingerprint: Fingerprint
    inputs: tuple[Any, ...]
    parameters: list[Any]
    difference: float


_CAPTURES: weakref.WeakKeyDictionary[Any, list[_Capture]] = weakref.WeakKeyDictionary()
_CAPTURING = threading.RLock()
_COMPARED = 2
"""Samples of every batch on which the graph is compared with the model."""
_KEPT = 8
"""Captures kept per model: different input shapes, or batch sizes where the capture is tied to one."""


class _Comparison(threading.local):
    """Remember what was compared last, within `comparing_once`; owners stay alive, so that their memory is theirs."""

    depth = 0
    capture: _Capture | None = None
    place: tuple[Any, ...] = ()
    owners: Sequence[Tensor] = ()


_LAST = _Comparison()


@contextmanager
def comparing_once() -> Iterator[None]:
    """Compare graph and model once for every batch, however often the network is looked up within."""
    _LAST.depth += 1
    try:
        yield
    finally:
        _LAST.depth -= 1
        if not _LAST.depth:
            _LAST.capture, _LAST.place, _LAST.owners = None, (), ()


def network_of(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
    """Return the captured network, from memory if nothing has changed."""
    model = unwrap(model)
    with naming_inputs(model, x, lambda: call(model, params, copied_buffers(model), x)):
        return _network_of(model, params, x)


def _network_of(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
    """Return the captured network: a remembered one whose model, parameters and inputs are alike, or a new one."""
    try:
        captures = _CAPTURES.setdefault(model, [])
    except TypeError:  # the function cannot be referred to weakly
        with _CAPTURING:
            return capture(model, params, x)
    description, inputs = Description(model), _describe_inputs(x)
    parameters = [fact for name, p in params.items() for fact in (name, p.shape, p.dtype, p.device)]
    size = batch_size(x)

    def remembered() -> Network | None:
        for known in captures:
            same = known.inputs == inputs and known.network.fixed_batch in (None, size)
            if same and known.parameters == parameters and known.fingerprint.matches(description):
                if description.complete or _agrees(known, model, params, x):
                    return known.network
                known.fingerprint.expired = True
        return None

    network = remembered()
    if network is None:
        with _CAPTURING:  # torch.export is not made for several threads; the second finds what the first captured
            network = remembered()
            if network is None:
                network = capture(model, params, x)
                rounding = 0.0 if description.complete else _difference(network, model, params, x)
                dtype = next((p.dtype for p in params.values() if p.is_floating_point()), torch.float32)
                rounding = max(rounding, 32 * torch.finfo(dtype).eps)
                captures[:] = [known for known in captures if not known.fingerprint.expired][1 - _KEPT :]
                captures.append(_Capture(network, Fingerprint(description), inputs, parameters, rounding))
                return network
    if size > 1 and "separated" not in network.memo:  # captured on one sample, where nothing can mix
        check_separation(network, model, params, x)
    return network


def _agrees(known: _Capture, model: Model, params: Mapping[str, Tensor], x: Any) -> bool:
    """Return whether the graph still computes what the model does, on the first samples."""
    owners, place = _first_samples_of(x) if _LAST.depth and known.network.fixed_batch is None else ([], ())
    if owners and known is _LAST.capture and place == _LAST.place:
        return True
    agrees = _difference(known.network, model, params, x) <= 4 * known.difference
    _LAST.capture, _LAST.place, _LAST.owners = known if agrees and owners else None, place, owners
    return agrees


def _first_samples_of(x: Any) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Return the tensors that own the inputs, and place and version of the first samples; nothing if unknown."""
    owners: list[Tensor] = []
    place: list[Any] = [min(batch_size(x), _COMPARED)]
    for leaf in pytree.tree_leaves(x):
        if type(leaf) is not Tensor or leaf.is_inference():
            return [], ()
        owners.append(leaf if leaf._base is None else leaf._base)
        place += [id(owners[-1]), leaf.data_ptr(), leaf._version, leaf.stride()]
    return owners, tuple(place)


def _difference(network: Network, model: Model, params: Mapping[str, Tensor], x: Any) -> float:
    """Return the largest difference of graph and model on the first samples, relative to the largest output."""
    rows = samples_of(x, 0, _COMPARED) if network.fixed_batch is None else x
    with torch.no_grad(), unfused_layers, plain_layers():
        expected = call(model, params, copied_buffers(model), rows)
        outputs = network.forward(network.bind(params, rows))
    if outputs.shape != expected.shape or not all_finite(expected):
        return math.inf
    return float((outputs - expected).abs().max()) / max(float(expected.abs().max()), 1e-30)


def _describe_inputs(x: Any) -> tuple[Any, ...]:
    """Return what a capture depends on in the inputs: structure, shapes without the batch, types, devices."""
    if isinstance(x, Tensor):
        return (x.shape[1:], x.dtype, x.device)
    leaves, structure = pytree.tree_flatten(x)
    return structure, [(t.shape[1:], t.dtype, t.device) if isinstance(t, Tensor) else (type(t), t) for t in leaves]

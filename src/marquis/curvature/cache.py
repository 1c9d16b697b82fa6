"""Captured networks, remembered as long as their model lives and does not change.

Capturing costs a fraction of a second, a curvature call on a small network milliseconds. The memory is keyed by the
model object and checked by a fingerprint of everything that can change what `forward` does: module types, train/eval
flags, plain attributes (strides, epsilons, probabilities), names, shapes and identity of parameters, input shapes.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from marquis.curvature.call import Model, batch_size
from marquis.curvature.capture import capture
from marquis.curvature.graph import Network

_NETWORKS: weakref.WeakKeyDictionary[Any, dict[Hashable, Network]] = weakref.WeakKeyDictionary()
_KEPT = 8
"""Captures kept per model: different input shapes, or batch sizes where the capture is tied to one."""

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)


def network_of(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
    """The captured network, from memory if nothing has changed."""
    key = (_inputs(x), tuple((n, tuple(p.shape), p.dtype, p.device) for n, p in params.items()), _fingerprint(model))
    try:
        known = _NETWORKS.setdefault(model, {})
    except TypeError:  # the function cannot be referred to weakly
        return capture(model, params, x)
    size = batch_size(x)
    network = known.get((key, None)) or known.get((key, size))
    if network is None:
        network = capture(model, params, x)
        if len(known) >= _KEPT:
            known.pop(next(iter(known)))
        known[(key, network.fixed_batch)] = network
    return network


def _inputs(x: Any) -> Hashable:
    leaves, spec = pytree.tree_flatten(x)
    described = tuple(
        (tuple(t.shape[1:]), t.dtype, t.device) if isinstance(t, Tensor) else (type(t), t) for t in leaves
    )
    return (str(spec), described)


def _fingerprint(model: Model) -> Hashable:
    if not isinstance(model, nn.Module):
        return id(model)
    return tuple((name, *_of_module(module)) for name, module in model.named_modules(remove_duplicate=False))


def _of_module(module: nn.Module) -> tuple[Hashable, ...]:
    plain: list[Hashable] = [type(module), id(type(module).forward)]
    for name, value in vars(module).items():
        if isinstance(value, _PLAIN):
            plain.append((name, value))
        elif isinstance(value, (tuple, list)) and all(isinstance(item, _PLAIN) for item in value):
            plain.append((name, tuple(value)))
        elif isinstance(value, Tensor) or name == "forward":
            plain.append((name, id(value)))
        elif isinstance(value, dict) and name in ("_forward_hooks", "_forward_pre_hooks"):
            plain.append((name, tuple(map(id, value.values()))))
    plain.extend((name, id(p)) for name, p in module._parameters.items())
    plain.extend((name, id(b)) for name, b in module._buffers.items())
    return tuple(plain)

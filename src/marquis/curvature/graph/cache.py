"""Captured networks, remembered as long as their model lives and does not change.

Capturing costs a fraction of a second, a curvature call on a small network milliseconds. The memory is keyed by the
model object and checked by a fingerprint of everything that can change what `forward` does (`fingerprint.py`), names,
shapes and types of the parameters, and the shapes of the inputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.graph.capture import capture
from marquis.curvature.graph.fingerprint import fingerprint
from marquis.curvature.graph.network import Network
from marquis.curvature.graph.verify import check_separation
from marquis.functional.call import Model, batch_size

_NETWORKS: weakref.WeakKeyDictionary[Any, dict[Hashable, Network]] = weakref.WeakKeyDictionary()
_KEPT = 8
"""Captures kept per model: different input shapes, or batch sizes where the capture is tied to one."""


def network_of(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
    """The captured network, from memory if nothing has changed."""
    key = (_inputs(x), tuple((n, tuple(p.shape), p.dtype, p.device) for n, p in params.items()), fingerprint(model))
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
    elif size > 1 and "separated" not in network.memo:  # captured on one sample, where nothing can mix
        check_separation(network, model, params, x)
    return network


def _inputs(x: Any) -> Hashable:
    leaves, spec = pytree.tree_flatten(x)
    described = tuple(
        (tuple(t.shape[1:]), t.dtype, t.device) if isinstance(t, Tensor) else (type(t), t) for t in leaves
    )
    return (str(spec), described)

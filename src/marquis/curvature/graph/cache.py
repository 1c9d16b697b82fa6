"""Captured networks, remembered as long as their model lives and does not change.

Capturing costs a fraction of a second, a curvature call on a small network a millisecond. The memory is keyed by the
model object and checked at every call: by everything that can change what `forward` does (`fingerprint.py`), by names,
shapes and types of the parameters, and by the shapes of the inputs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.graph.capture import capture
from marquis.curvature.graph.fingerprint import Description, Fingerprint
from marquis.curvature.graph.network import Network
from marquis.curvature.graph.verify import check_separation
from marquis.functional.call import Model, call, copied_buffers
from marquis.functional.checks import batch_size, naming_inputs
from marquis.functional.unwrap import unwrap


@dataclass(frozen=True, eq=False)
class _Capture:
    """One captured network, and what has to be the same for using it again."""

    network: Network
    fingerprint: Fingerprint
    inputs: tuple[Any, ...]
    parameters: list[Any]


_CAPTURES: weakref.WeakKeyDictionary[Any, list[_Capture]] = weakref.WeakKeyDictionary()
_CAPTURING = threading.RLock()
_KEPT = 8
"""Captures kept per model: different input shapes, or batch sizes where the capture is tied to one."""


def network_of(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
    """Return the captured network, from memory if nothing has changed."""
    model = unwrap(model)
    with naming_inputs(model, x, lambda: call(model, params, copied_buffers(model), x)):
        return _network_of(model, params, x)


def _network_of(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
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
                return known.network
        return None

    network = remembered()
    if network is None:
        with _CAPTURING:  # torch.export is not made for several threads; the second finds what the first captured
            network = remembered()
            if network is None:
                network = capture(model, params, x)
                captures[:] = [known for known in captures if not known.fingerprint.expired][1 - _KEPT :]
                captures.append(_Capture(network, Fingerprint(description), inputs, parameters))
                return network
    if size > 1 and "separated" not in network.memo:  # captured on one sample, where nothing can mix
        check_separation(network, model, params, x)
    return network


def _describe_inputs(x: Any) -> tuple[Any, ...]:
    if isinstance(x, Tensor):
        return (x.shape[1:], x.dtype, x.device)
    leaves, structure = pytree.tree_flatten(x)
    return structure, [(t.shape[1:], t.dtype, t.device) if isinstance(t, Tensor) else (type(t), t) for t in leaves]

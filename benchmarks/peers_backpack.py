"""BackPACK: extensions that run during an ordinary backward pass. It computes the gradient along the way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

from benchmarks.workloads import Workload


def _call(workload: Workload, name: str) -> Callable[[], object]:
    from backpack import backpack, extend, extensions  # pyright: ignore[reportMissingImports]

    flat = workload.flattened()  # its MSELoss takes two-dimensional outputs only
    model = extend(copy.deepcopy(flat.model))  # its hooks must not slow down the plain step
    loss = extend(flat.loss_module())
    attribute = {"DiagGGNExact": "diag_ggn_exact", "DiagGGNMC": "diag_ggn_mc", "KFAC": "kfac"}[name]

    def call() -> object:
        with backpack(getattr(extensions, name)()):
            loss(model(flat.x), flat.y).backward()
        result = [getattr(p, attribute) for p in model.parameters()]
        for p in model.parameters():  # the caller owns the result, so that one repetition does not carry the last one's
            delattr(p, attribute)
            p.grad = None
        return result

    return call


METHODS = {
    "exact": partial(_call, name="DiagGGNExact"),
    "mc": partial(_call, name="DiagGGNMC"),
    "kfac": partial(_call, name="KFAC"),
}

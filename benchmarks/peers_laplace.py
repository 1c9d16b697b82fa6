"""laplace-torch: the diagonal with its default back-end, which forms the Jacobian of the batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

from benchmarks.workloads import Workload


def _diagonal(workload: Workload) -> Callable[[], object]:
    from laplace import Laplace  # pyright: ignore[reportMissingImports]

    flat = workload.flattened()
    kind = "regression" if flat.likelihood == "gaussian" else "classification"
    posterior = Laplace(copy.deepcopy(flat.model), kind, subset_of_weights="all", hessian_structure="diag")
    posterior._init_H()

    def call() -> object:
        return posterior.backend.diag(flat.x, flat.y, N=len(flat.x))

    return call


METHODS = {"diagonal": _diagonal}

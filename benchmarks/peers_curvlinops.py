"""curvlinops: KFAC with one sampled label per datum. Only the Kronecker factors are computed, its checks are off."""

from __future__ import annotations

import copy
from collections.abc import Callable

from benchmarks.workloads import Workload


def _kfac(workload: Workload) -> Callable[[], object]:
    from curvlinops import KFACLinearOperator  # pyright: ignore[reportMissingImports]

    flat = workload.flattened()
    model = copy.deepcopy(flat.model)

    def call() -> object:
        operator = KFACLinearOperator(
            model,
            flat.loss_module(),
            list(model.parameters()),
            [(flat.x, flat.y)],
            check_deterministic=False,
            fisher_type="mc",
            num_data=len(flat.x),
            num_per_example_loss_terms=1,
        )
        return operator.compute_kronecker_factors(), operator

    return call


METHODS = {"kfac": _kfac}

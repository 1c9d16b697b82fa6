"""Our own curvature calls, as functions to be measured. The whole call counts, its forward pass included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.workloads import Workload


class LeftOutError(Exception):
    """This measurement cannot be taken here; the message says why, and the table repeats it."""


def _call(workload: Workload, structure: str, estimator: str) -> Callable[[], object]:
    import marquis as mq

    # An engine that takes any word for an estimator would be timed under the wrong name.
    try:
        mq.curvature.ggn(workload.model, workload.x[:1], workload.likelihood, structure, "no such estimator")
    except mq.MarquisError:
        pass
    else:
        raise LeftOutError("this version of the engine does not check the name of its estimator")
    generator = torch.Generator().manual_seed(1)

    def call() -> object:
        try:
            return mq.curvature.ggn(
                workload.model, workload.x, workload.likelihood, structure, estimator, generator=generator
            )
        except (mq.UnsupportedOperationError, NotImplementedError) as error:
            raise LeftOutError(str(error).splitlines()[0]) from error

    return call


METHODS: dict[str, Callable[[Workload], Callable[[], object]]] = {
    "sketched": partial(_call, structure="diagonal", estimator="sketched"),
    "approximate": partial(_call, structure="diagonal", estimator="approximate"),
    "exact": partial(_call, structure="diagonal", estimator="exact"),
    "kronecker": partial(_call, structure="kronecker", estimator="sketched"),
}

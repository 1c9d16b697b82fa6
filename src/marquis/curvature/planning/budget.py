"""Compute how many samples of a batch fit into the memory at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from marquis.curvature.planning.memory import gigabytes
from marquis.curvature.planning.plan import Plan, plan
from marquis.errors import MarquisError, MemoryBudgetError
from marquis.functional.call import Model
from marquis.functional.checks import samples_of
from marquis.likelihoods import Likelihood


@dataclass(eq=False)
class Budget:
    """Plan each new kind of batch once, and halve it until it fits.

    Attributes:
        model: the network.
        likelihood: p(y|f).
        options: what `plan` and `ggn` are called with.
        dtype: of the sum.
        length: number of batches, if known; a low-rank sum grows with it.
        limit_rows: samples at a time from now on, once a batch had to be split.
    """

    model: Model
    likelihood: Likelihood
    options: dict[str, Any]
    dtype: torch.dtype | None
    length: int | None
    limit_rows: int | None = None
    plans: dict[tuple[str, int], Plan | None] = field(default_factory=dict)

    def rows(self, x: Any, size: int, batches: int) -> int:
        """Return how many samples of this batch to treat at a time; `batches` are in the sum already.

        Raises:
            MemoryBudgetError: not even one fits.
        """
        kind = str([(t.shape[1:], t.dtype) for t in pytree.tree_leaves(x) if isinstance(t, Tensor)])
        rows = min(size, self.limit_rows or size)
        while True:
            if (kind, rows) not in self.plans:
                self.plans[kind, rows] = self._plan(x, rows, {})
            made = self.plans[kind, rows]
            if made is None:  # `ggn` will say it better, with the numbers at hand
                return rows
            needed = self._needed(made, size, batches)
            if needed <= made.available_bytes:
                return rows
            if rows == 1:
                raise MemoryBudgetError(self._refusal(x, size, made, needed, batches))
            rows = self.limit_rows = max(1, rows // 2)

    def _plan(self, x: Any, rows: int, changed: dict[str, Any]) -> Plan | None:
        """Return the plan for the first rows of a batch; None where it cannot be made."""
        try:
            return plan(self.model, samples_of(x, 0, rows), self.likelihood, **{**self.options, **changed})
        except MarquisError:
            return None

    def _needed(self, made: Plan, size: int, batches: int) -> int:
        """Return the bytes of one call, the sum so far, and the new sum while they are added."""
        wide = 8 if self.dtype == torch.float64 else 4 if self.dtype is not None else 0
        item = made.item
        result = made.result_bytes * max(wide, item) // item
        if made.structure != "lowrank":
            return made.total_bytes + 2 * result
        whole = result * size // made.batch  # of the batch before it was split
        return made.total_bytes + 2 * whole * max(self.length or 0, batches + 1)  # all columns, and joined

    def _refusal(self, x: Any, size: int, made: Plan, needed: int, batches: int) -> str:
        """Return the message that not even one sample fits, with what would."""
        structure, estimator = self.options["structure"], self.options["estimator"]
        others = [(structure, "sketched"), ("kronecker", estimator), ("diagonal", estimator), ("diagonal", "sketched")]
        fitting = []
        for other in dict.fromkeys(others):
            if other == (structure, estimator):
                continue
            fewer = self._plan(x, 1, {"structure": other[0], "estimator": other[1]})
            if fewer is not None and self._needed(fewer, size, batches) <= fewer.available_bytes:
                fitting.append(f"structure='{other[0]}' with estimator='{other[1]}'")
        advice = f"These fit: {'; '.join(fitting)}. Or" if fitting else "No other structure or estimator fits either;"
        return (
            f"structure='{structure}' with estimator='{estimator}' takes about {gigabytes(needed)} even for one sample "
            f"at a time (forward values {gigabytes(made.forward_bytes)}, backward pass {gigabytes(made.pass_bytes)}, "
            f"result {gigabytes(made.result_bytes)}, and the sum), but {gigabytes(made.available_bytes)} may be used. "
            f"{advice} choose fewer parameters (parameters=...) or raise memory_limit."
        )

"""The diagonal: sums of squared gradients (docs/method/curvature.md, Exact diagonal)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators.base import Accumulator
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.outer_products import RankOne
from marquis.structures import Diagonal


@dataclass(eq=False)
class DiagonalAccumulator(Accumulator):
    """Sums of squares; for dense layers diag(M) is gathered over chunks and multiplied with the inputs at the end."""

    waiting: dict[str, tuple[Tensor, bool, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the result once, unwritten; every parameter's total is a view of it."""
        self.vector = torch.empty(self.layout.total, dtype=self.like.dtype, device=self.like.device)
        self.totals = self.layout.unflatten(self.vector)
        self.unwritten = set(self.layout.names)

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Square and sum."""
        if isinstance(gradients, RankOne):
            if name not in self.waiting:
                self.waiting[name] = (
                    gradients.inputs,
                    gradients.swapped,
                    gradients.factor.columns.new_zeros(gradients.factor.shape),
                )
            gradients.factor.add_square_sum_(self.waiting[name][2])
        else:
            gradients.add_diagonal_(self._zeroed(name))

    def end_segment(self) -> None:
        """Multiply by the squared inputs of dense layers: diag W = sum_n m_n a_n²."""
        for name, (inputs, swapped, squares) in self.waiting.items():
            left, right = (inputs.square(), squares) if swapped else (squares, inputs.square())
            if name in self.unwritten:  # a first product needs no zeros to be added to
                torch.mm(left.t(), right, out=self.totals[name])
                self.unwritten.remove(name)
            else:
                self.totals[name].addmm_(left.t(), right)
        self.waiting.clear()

    def _zeroed(self, name: str) -> Tensor:
        if name in self.unwritten:
            self.totals[name].zero_()
            self.unwritten.remove(name)
        return self.totals[name]

    def finish(self) -> Diagonal:
        """Return the diagonal; parameters that the output does not depend on have zeros."""
        for name in list(self.unwritten):
            self._zeroed(name)
        return Diagonal(self.layout, self.vector)

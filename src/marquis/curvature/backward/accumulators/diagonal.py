"""Accumulate the diagonal as sums of squared gradients (docs/method/curvature.md, Exact diagonal)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators.base import Accumulator
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.outer_products import RankOne
from marquis.errors import NumericalError
from marquis.functional.matmul import add_product_
from marquis.structures import Diagonal


@dataclass
class Running:
    """Add batches to a diagonal in place: `values <- keep * values + gain * batch`."""

    values: Tensor
    keep: float
    gain: float


@dataclass(eq=False)
class DiagonalAccumulator(Accumulator):
    """Sum squared gradients; for dense layers diag(M) is summed over chunks and multiplied with the inputs at the end.

    Attributes:
        running: where the sums go; by default to new memory.
        waiting: inputs, whether the weight is stored as [i, o], and diag(M) of dense layers, per block of samples.
        sums: of all other parameters.
    """

    running: Running | None = None
    takes_blocks: bool = field(default=True, init=False)
    waiting: dict[str, list[tuple[Tensor, bool, Tensor]]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    sums: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the result once, unwritten; every parameter's total is a view of it."""
        if self.running is None:
            self.vector = torch.empty(self.layout.total, dtype=self.like.dtype, device=self.like.device)
        else:
            self.vector = self.running.values
        self.totals = self.layout.unflatten(self.vector)

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Add the squared gradients to the diagonal."""
        if isinstance(gradients, RankOne):
            blocks = self.waiting.setdefault(name, [])
            if name not in self.started:
                squares = gradients.factor.like.new_zeros(gradients.factor.shape)
                blocks.append((gradients.inputs, gradients.swapped, squares))
                self.started.add(name)
            gradients.factor.add_square_sum_(blocks[-1][2])
        else:
            if name not in self.sums:
                new = self.running is not None
                total = torch.zeros_like(self.totals[name]) if new else self.totals[name].zero_()
                self.sums[name] = total
            gradients.add_diagonal_(self.sums[name])

    def end_block(self) -> None:
        """Let the dense layers start with the inputs of other samples."""
        self.started.clear()

    def finish(self) -> Diagonal:
        """Return the diagonal; parameters that the output does not depend on have zeros."""
        products = {name: self._product(name) for name in self.waiting}
        if self.running is None:
            for name, total in self.totals.items():
                if name in products:
                    add_product_(total, *products[name], keep=0.0, gain=1.0)
                elif name not in self.sums:
                    total.zero_()
            return Diagonal(self.layout, self.vector)
        keep, gain = self.running.keep, self.running.gain
        self._require_finite(products)
        left = dict(self.totals)
        try:
            self._apply(left, products, keep, gain)
        finally:  # an interruption (Ctrl-C) leaves at most one parameter without this batch
            self._apply(left, products, keep, gain)
        return Diagonal.trusted(self.layout, self.vector)

    def _apply(
        self, left: dict[str, Tensor], products: dict[str, tuple[Tensor, Tensor]], keep: float, gain: float
    ) -> None:
        """Add what is left, and take it off the list before it is added: nothing is added twice."""
        while left:
            name, total = left.popitem()
            if name in products:
                add_product_(total, *products[name], keep=keep, gain=gain)
            elif name in self.sums:
                total.mul_(keep).add_(self.sums[name], alpha=gain)
            else:
                total.mul_(keep)

    def _product(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the factors of diag W = sum_n m_n a_n² of a dense layer."""
        blocks = self.waiting[name]
        inputs, swapped, squares = blocks[0]
        if len(blocks) > 1:
            inputs, squares = torch.cat([block[0] for block in blocks]), torch.cat([block[2] for block in blocks])
        left, right = (inputs.square(), squares) if swapped else (squares, inputs.square())
        return left.t(), right

    def _require_finite(self, products: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Raise before anything is written if an entry could overflow: no product exceeds that of the sums."""
        largest = torch.finfo(self.vector.dtype).max
        bounds = {name: float(left.sum()) * float(right.sum()) for name, (left, right) in products.items()}
        bounds |= {name: float(total.sum()) for name, total in self.sums.items()}
        for name, bound in bounds.items():
            if not bound <= largest:
                raise NumericalError(
                    f"the curvature of parameter {name!r} is not finite or too large for {self.vector.dtype}: the "
                    "weights may have diverged; lower the learning rate, or compute in float64."
                )

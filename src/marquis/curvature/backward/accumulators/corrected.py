"""Accumulate the curvature along Kronecker eigenvectors: the diagonal of the exact block in that basis (EKFAC)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from typing_extensions import override

from marquis.curvature.backward.accumulators.base import Accumulator
from marquis.curvature.factors.gradients import ParameterGradients
from marquis.curvature.factors.outer_products import RankOne
from marquis.structures import Kronecker
from marquis.structures.corrected import CorrectedPiece
from marquis.structures.kronecker_operator import fold
from marquis.structures.pieces import Piece


@dataclass(eq=False)
class CorrectedAccumulator(Accumulator):
    """Sum `(Q^T G R)_ij^2` over columns and samples, the same columns that the exact estimator has.

    Attributes:
        bases: eigenvectors of every parameter of the layout.
        values: the sums so far, `[g, r, s]`.
    """

    bases: Mapping[str, CorrectedPiece] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)

    @override
    def add(self, name: str, gradients: ParameterGradients) -> None:
        basis = self.bases[name]
        groups, r, s = basis.values.shape
        total = self.values.setdefault(name, self.like.new_zeros(groups, r, s))
        if isinstance(gradients, RankOne):  # the square of a product is the product of squares
            rows, columns = (basis.right[0], basis.left[0]) if gradients.swapped else (basis.left[0], basis.right[0])
            outputs = (gradients.factor.dense() @ rows).square().sum(0)
            product = outputs.t() @ (gradients.inputs @ columns).square()
            total[0] += product.t() if gradients.swapped else product
            return
        for start, stop in gradients.sample_ranges():
            each = fold(gradients.explicit(start, stop).flatten(0, 1).flatten(1), (groups, r, s), basis.channels)
            total += (basis.left.mT @ each @ basis.right).square().sum(0)

    @override
    def finish(self) -> Kronecker:
        pieces: dict[str, Piece] = {}
        for name, basis in self.bases.items():
            pieces[name] = basis.with_tensors([self.values[name]]) if name in self.values else basis
        return Kronecker(self.layout, pieces)

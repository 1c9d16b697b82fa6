"""Accumulate Kronecker factors: sums of input products and of output products for each layer.

See docs/method/kronecker.md, Factors of a dense layer and Convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from marquis.curvature.backward.accumulators.base import GRADIENT_BYTES, Accumulator
from marquis.curvature.factors.centred import CentredFactor
from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import BiasGradients, ExplicitGradients, ParameterGradients
from marquis.curvature.factors.outer_products import OuterProducts, RankOne
from marquis.errors import UnsupportedOperationError
from marquis.functional.matmul import gram, matmul
from marquis.structures import Kronecker
from marquis.structures.linalg import require_finite
from marquis.structures.pieces import DensePiece, DiagonalPiece, KroneckerPiece, Piece


@dataclass(eq=False)
class KroneckerAccumulator(Accumulator):
    """Sum input products and output products; what has no such form is kept exactly.

    Attributes:
        samples: batch size.
        reduce: sum over positions before the products (weight sharing "reduce") instead of after ("expand").
    """

    samples: int = 0
    reduce: bool = False
    left: dict[str, Tensor] = field(default_factory=dict)
    right: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    swapped: dict[str, bool] = field(default_factory=dict)
    orders: dict[str, tuple[Tensor | None, int]] = field(default_factory=dict)
    dense: dict[str, Tensor] = field(default_factory=dict)
    diagonal: dict[str, Tensor] = field(default_factory=dict)
    grams: dict[int, tuple[object, Tensor]] = field(default_factory=dict)

    def refuse_shared(self, name: str, uses: int) -> None:
        """Raise, because two uses of one weight have cross terms that no Kronecker product holds."""
        raise UnsupportedOperationError(
            f"parameter '{name}' is used {uses} times; a Kronecker structure cannot express the cross terms between "
            "its uses. Use structure='diagonal', 'block' or 'full', or leave the parameter out."
        )

    def add(self, name: str, gradients: ParameterGradients) -> None:
        """Add to the two factors, a dense block or a diagonal."""
        if isinstance(gradients, RankOne):
            first = name not in self.left
            product = self._gram_of(gradients.factor)
            self.left[name] = product if first else self.left[name] + product
            if first:
                self.right[name] = matmul(gradients.inputs.t(), gradients.inputs)[None]
                self.counts[name], self.swapped[name] = float(self.samples), gradients.swapped
        elif isinstance(gradients, OuterProducts):
            self._add_outer(name, gradients)
        elif isinstance(gradients, BiasGradients):
            product = self._gram_of(gradients.factor)[0]
            self.dense[name] = self.dense[name] + product if name in self.dense else product
        elif isinstance(gradients, ExplicitGradients) and gradients.as_block:
            share = self.samples if gradients.values.shape[1] == 1 else 1
            flat = gradients.values.flatten(0, 1)
            product = _times_samples(matmul(flat.t(), flat), share)
            self.dense[name] = self.dense[name] + product if name in self.dense else product
        else:
            if name not in self.diagonal:
                self.diagonal[name] = self.like.new_zeros(self.layout.shapes[name])
            gradients.add_diagonal_(self.diagonal[name])

    def _gram_of(self, factor: Factor) -> Tensor:
        """Return the sum of g gᵀ over columns and samples, [1, o, o]; weight and bias of one layer share it."""
        cached = self.grams.get(id(factor))
        if cached is not None and cached[0] is factor:
            return cached[1]
        product = gram_matrix(factor, self.samples)[None]
        self.grams = {id(factor): (factor, product)}
        return product

    def _add_outer(self, name: str, gradients: OuterProducts) -> None:
        """Add outer products to the output factor, and once per batch those of the inputs to the input factor."""
        q, t, i = gradients.sizes
        outputs = gradients.outputs.sum(3, keepdim=True) if self.reduce else gradients.outputs
        if outputs.stride(-1) == 1:
            g = outputs.permute(2, 0, 1, 3, 4).reshape(q, -1, outputs.shape[-1])
        else:  # images: whole channels are copied
            g = outputs.permute(2, 4, 0, 1, 3).reshape(q, outputs.shape[-1], -1).mT
        share = self.samples if outputs.shape[1] == 1 else 1
        product = _times_samples(gram(g), share)
        self.left[name] = self.left[name] + product if name in self.left else product
        if name in self.right:
            return
        self.swapped[name] = gradients.swapped
        self.orders[name] = gradients.order, gradients.channels
        if gradients.input_products is not None:
            self.right[name], self.counts[name] = gradients.input_products("reduce" if self.reduce else "expand")
            return
        products: Tensor | None = None
        limit = max(1, GRADIENT_BYTES // max(1, q * t * i * gradients.item))
        for start in range(0, self.samples, limit):
            a = gradients.inputs(start, min(self.samples, start + limit))
            a = a.mean(2, keepdim=True) if self.reduce else a
            a = a.transpose(0, 1).reshape(q, -1, i)
            products = gram(a) if products is None else products.add_(gram(a))
        self.right[name] = product.new_zeros(q, i, i) if products is None else products
        self.counts[name] = float(self.samples if self.reduce else self.samples * t)

    def finish(self) -> Kronecker:
        """Return the structure, every factor in the order of the parameter's own entries."""
        pieces: dict[str, Piece] = {}
        for name, shape in self.layout.shapes.items():
            if name in self.left:
                pieces[name] = self._piece(name)
            elif name in self.dense:
                pieces[name] = DensePiece(self.dense[name])
            else:
                values = self.diagonal.get(name, self.like.new_zeros(shape))
                pieces[name] = DiagonalPiece(values.flatten())
        for name, piece in pieces.items():
            self._check(name, piece)
        return Kronecker(self.layout, pieces)

    def _check(self, name: str, piece: Piece) -> None:
        """Check the diagonals only: products are symmetric, and a NaN or an infinity in one shows there."""
        for tensor in piece.tensors():
            shown = tensor.diagonal(dim1=-2, dim2=-1) if tensor.dim() > 1 else tensor
            require_finite(shown, f"curvature of parameter {name!r}")
        piece.skip_check(self.layout.sizes[name])

    def _piece(self, name: str) -> KroneckerPiece:
        """Undo the channels-last order of unfolded patches, and put the weight's first axis to the left."""
        left, right = self.left[name], self.right[name]
        order, channels = self.orders.get(name, (None, 1))
        if self.swapped[name]:
            left, right = right, left
        if order is not None:
            right = right[:, order][:, :, order]
        return KroneckerPiece(left, right, self.counts[name], channels)


def _times_samples(product: Tensor, share: int) -> Tensor:
    """Return the Gram matrix times the number of samples that share it, without a pass over it where that is one."""
    return product if share == 1 else product.mul_(share)


def gram_matrix(factor: Factor, samples: int) -> Tensor:
    """Sum over columns and samples of g gᵀ for a factor at a flat value [n, o]: [o, o]."""
    if isinstance(factor, CentredFactor):
        return factor.gram()
    columns = factor.product()
    share = samples if columns.shape[1] == 1 else 1
    flat = columns.reshape(columns.shape[0] * columns.shape[1], -1)
    product = _times_samples(matmul(flat.t(), flat), share)
    window = factor.window
    if window is None or window.is_everything:
        return product
    size = factor.shape[1]
    index = torch.arange(size, device=flat.device).view(window.full)[window.slices].flatten()
    whole = product.new_zeros(size, size)
    whole[index[:, None], index] = product
    return whole

"""Compute the form `G A^-1 Gᵀ` of per-sample gradients G under a precision A without writing a gradient out.

With eigenbases `A = (Q (x) R) diag(d) (Q (x) R)ᵀ` of one parameter (docs/method/predictive.md, Without Jacobians):

* a dense layer has `G_c = g_c aᵀ`. With `u_c = Qᵀ g_c`, `v = Rᵀ a` and `w_i = sum_j v_j² / d_ij`, once per sample, the
  form is `sum_i u_ci w_i u_ei`;
* a layer with positions has `G_c = sum_t g_ct a_tᵀ`; whichever is smaller is rotated, the inputs (once per sample) or
  the products (once per column);
* a diagonal precision is the same with Q = R = I.

Index letters: `c`, `e` columns, `n` samples (`m` at a time), `q` groups, `t` positions, `o` outputs, `i` inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from marquis.curvature.factors.factor import Factor
from marquis.curvature.factors.gradients import (
    BiasGradients,
    EmbeddingGradients,
    ExplicitGradients,
    ParameterGradients,
)
from marquis.curvature.factors.outer_products import OuterProducts, RankOne
from marquis.functional.matmul import by_sample, matmul
from marquis.structures import Structure
from marquis.structures.kronecker_operator import KroneckerOperator, fold
from marquis.structures.operators import DenseOperator, DiagonalOperator, Operator, gram

BLOCK_BYTES = 2**22
"""Size of the products of some samples with all columns: they are made, scaled and summed while in the cache."""


class QuadraticForm(ABC):
    """Multiply gradients from both sides by the inverse of one parameter's precision."""

    @abstractmethod
    def of(self, gradients: ParameterGradients, whole: bool) -> Tensor:
        """Return `G A^-1 Gᵀ` of each sample, `[n or 1, c, c]`; its diagonal `[n or 1, c]` unless `whole`."""


def quadratic_forms(precision: Structure) -> dict[str, QuadraticForm] | None:
    """Return one form per parameter; None where the precision couples parameters (block, full, low rank)."""
    forms: dict[str, QuadraticForm] = {}
    for names, operator in precision.parts:
        if isinstance(operator, DiagonalOperator):
            inverse, start = operator.inverse_diagonal().detach(), 0
            for name in names:
                size = precision.layout.sizes[name]
                forms[name] = SeparableForm(inverse[start : start + size], precision.layout.shapes[name])
                start += size
        elif len(names) == 1 and isinstance(operator, KroneckerOperator):
            left, right = (basis.detach() for basis in operator.bases)
            forms[names[0]] = SeparableForm(
                (1 / operator.eigenvalues).detach(), precision.layout.shapes[names[0]], left, right, operator.channels
            )
        elif len(names) == 1 and isinstance(operator, DenseOperator):
            forms[names[0]] = DenseForm(operator)
        else:
            return None
    return forms


@dataclass(eq=False)
class DenseForm(QuadraticForm):
    """Multiply by the inverse of a dense block, mostly of a bias, through one root of it."""

    operator: Operator

    @cached_property
    def _root(self) -> Tensor:
        """Return M with `M Mᵀ = A^-1`."""
        size = self.operator.size
        like = self.operator.diagonal()
        return self.operator.sample_from(torch.eye(size, dtype=like.dtype, device=like.device)).mT.detach()

    def of(self, gradients: ParameterGradients, whole: bool) -> Tensor:
        """Multiply the rows by the root."""
        rows = _rows(gradients, self._root.dtype)
        return gram(matmul(rows, self._root), not whole)


@dataclass(eq=False)
class SeparableForm(QuadraticForm):
    """Multiply by the inverse of a precision that is diagonal in a Kronecker basis or in the entries.

    Attributes:
        inverse: the inverse eigenvalues, `[q, r, s]` or flat.
        shape: the parameter's.
        left: Q, `[q, r, r]`, or None for the identity.
        right: R, `[q, s, s]`, or None.
        channels: how the parameter is ordered, as in `KroneckerPiece`.
    """

    inverse: Tensor
    shape: tuple[int, ...]
    left: Tensor | None = None
    right: Tensor | None = None
    channels: int = 1

    def of(self, gradients: ParameterGradients, whole: bool) -> Tensor:
        """Return the form by the cheapest way that the gradients allow."""
        if isinstance(gradients, RankOne):
            return self._rank_one(gradients, whole)
        if isinstance(gradients, OuterProducts) and self._is_of(gradients):
            return self._outer(gradients, whole)
        if self.left is None and isinstance(gradients, EmbeddingGradients):
            return self._embedding(gradients, whole)
        if isinstance(gradients, (BiasGradients, ExplicitGradients)):
            return gram(self._times_root(_rows(gradients, self.inverse.dtype)), not whole)
        return torch.cat(
            [
                gram(self._times_root(_flat_rows(gradients.explicit(start, stop), self.inverse.dtype)), not whole)
                for start, stop in gradients.sample_ranges(BLOCK_BYTES)
            ]
        )

    def _is_of(self, gradients: OuterProducts) -> bool:
        """Return whether the eigenbases are of the gradients' two sides; those of an older file may be of others."""
        sides = [gradients.outputs.shape[-1], gradients.sizes[2]]
        sides = [*(sides[::-1] if gradients.swapped else sides), gradients.channels]
        return self.left is None or [*self.inverse.shape[1:], self.channels] == sides

    def _times_root(self, rows: Tensor) -> Tensor:
        """Return rows `[..., size]` times a root of the inverse, in the eigenbasis."""
        if self.left is None or self.right is None:
            return rows * self._root
        q, r, s = self.inverse.shape
        folded = fold(rows, (q, r, s), self.channels)
        return ((self.left.mT @ folded @ self.right) * self._root).flatten(-3)

    @cached_property
    def _root(self) -> Tensor:
        return self.inverse.sqrt()

    def _rank_one(self, gradients: RankOne, whole: bool) -> Tensor:
        """Return the form of gradients that are one outer product per sample and column."""
        q, r = (None, None) if self.left is None or self.right is None else (self.left[0], self.right[0])
        inverse = self.inverse.view(self.shape)
        if gradients.swapped:
            q, r, inverse = r, q, inverse.t()
        inputs = gradients.inputs.to(inverse.dtype)
        weights = matmul((inputs if r is None else matmul(inputs, r)).square(), inverse.t())  # w, [n, o]
        u = _outputs(gradients.factor, q, inverse.dtype)  # [c, n or 1, o]
        if u.shape[1] == 1:
            u = u[:, 0]
            return (u * weights.unsqueeze(1)) @ u.t() if whole else weights @ u.square().t()
        if not whole:
            return torch.einsum("cno,no->nc", u.square(), weights)
        half = (u * weights.sqrt()).transpose(0, 1)
        return half @ half.mT

    def _outer(self, gradients: OuterProducts, whole: bool) -> Tensor:
        """Rotate the cotangents, and either the inputs or the products; then scale, square and sum."""
        (groups, positions, inputs), columns = gradients.sizes, gradients.columns
        outputs = gradients.outputs.shape[-1]
        on_outputs, on_inputs, root = self._arranged(gradients)
        rotate_inputs = on_inputs is not None and positions < columns * outputs
        g = gradients.outputs.to(root.dtype)
        if on_outputs is not None:
            g = g @ on_outputs if groups > 1 else matmul(g, on_outputs[0])
        g = g.permute(1, 2, 0, 4, 3).flatten(2, 3)  # [n or 1, q, c o, t]
        per_sample = max(columns * outputs, positions) * groups * inputs * root.element_size()
        step = max(1, BLOCK_BYTES // per_sample)
        direct = gradients.direct if on_outputs is None else None
        forms = []
        for start in range(0, gradients.samples, step):
            stop = min(gradients.samples, start + step)
            if direct is not None and not rotate_inputs:
                products = direct(start, stop).to(root.dtype)
            else:
                a = gradients.inputs(start, stop).to(root.dtype)
                a = _rotated(a, on_inputs) if rotate_inputs and on_inputs is not None else a
                products = by_sample(g if g.shape[0] == 1 else g[start:stop], a)
            if on_inputs is not None and not rotate_inputs:
                products = _rotated(products, on_inputs)
            half = products.view(-1, groups, columns, outputs, inputs).transpose(1, 2) * root
            forms.append(gram(half.flatten(2), not whole))
        return torch.cat(forms)

    def _arranged(self, gradients: OuterProducts) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Return the bases on the outputs' and inputs' side, and the root `[q, o, i]`, in the gradients' order."""
        (groups, _, inputs), outputs = gradients.sizes, gradients.outputs.shape[-1]
        if self.left is None or self.right is None:
            numbers = torch.arange(groups * outputs * inputs, device=self.inverse.device)
            order = gradients.arrange(numbers.view(groups, outputs, inputs)).reshape(-1)
            return None, None, torch.empty_like(self._root).index_copy_(0, order, self._root).view(groups, outputs, -1)
        left, right, root = self.left, self.right, self._root
        if gradients.order is not None:
            right = right[:, gradients.order.argsort()]
        return (right, left, root.mT) if gradients.swapped else (left, right, root)

    def _embedding(self, gradients: EmbeddingGradients, whole: bool) -> Tensor:
        """Add up the gradients of equal tokens of a sample at the first of them; nothing is as large as the table."""
        tokens = gradients.tokens
        same = tokens.unsqueeze(1) == tokens.unsqueeze(2)
        is_first = ~torch.tril(same, diagonal=-1).any(-1) & (tokens >= 0)
        collect = (same & is_first.unsqueeze(-1)).to(self.inverse.dtype)
        g = collect @ gradients.outputs.to(self.inverse.dtype)  # [c, n, t, e]
        half = g * self._root.view(self.shape)[tokens.clamp(min=0)]
        return gram(half.flatten(2).transpose(0, 1), not whole)


def _rotated(rows: Tensor, basis: Tensor) -> Tensor:
    """Return rows `[n, q, t, i]` times the basis of their group, `[q, i, i]`."""
    return rows @ basis if len(basis) > 1 else matmul(rows, basis[0])


def _outputs(factor: Factor, basis: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a factor's columns `[c, n or 1, o]` at the flat outputs of a layer, in another basis if there is one."""
    window = factor.window
    if window is not None and basis is not None:
        rows = basis.reshape(*window.full, -1)[window.slices].reshape(-1, basis.shape[-1])
        return matmul(factor.product().flatten(2).to(dtype), rows)
    columns = factor.unwindowed().product().to(dtype)
    return columns if basis is None else matmul(columns, basis)


def _rows(gradients: ParameterGradients, dtype: torch.dtype) -> Tensor:
    """Return small gradients written out, `[n or 1, c, size]`."""
    if isinstance(gradients, BiasGradients):
        return _outputs(gradients.factor, None, dtype).transpose(0, 1)
    if isinstance(gradients, ExplicitGradients):
        return _flat_rows(gradients.values, dtype)
    return _flat_rows(gradients.explicit(0, gradients.samples), dtype)


def _flat_rows(written: Tensor, dtype: torch.dtype) -> Tensor:
    """Return gradients as rows `[n, c, P]`."""
    return written.reshape(*written.shape[:2], -1).transpose(0, 1).to(dtype)


Forms = Mapping[str, QuadraticForm]

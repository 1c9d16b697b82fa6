"""Define categorical labels: one class out of C, with the classes along any dimension of the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from marquis.arguments import checked, checked_on_any_device
from marquis.errors import DataError, UnsupportedOperationError
from marquis.likelihoods.averages import softmax_average
from marquis.likelihoods.base import Likelihood, Predictive
from marquis.likelihoods.pointwise import DimensionLikelihood
from marquis.likelihoods.tools import any_not_finite, describe


class Categorical(DimensionLikelihood):
    """Model `y ~ Categorical(softmax(f))` at every position: `l = logsumexp(f) - f_y`, `L = diag(p) - p p^T`.

    Source: docs/method/likelihoods.md#table-of-likelihoods. Outputs are logits `[B, C]`, or `[B, C, H, W]` for one
    label per pixel; labels are integers of the same shape without the class dimension. `apply_sqrt` costs one pass over
    the outputs; `hessian_sqrt` has `positions * (C - 1)` columns, so for images use the former.

    Args:
        dim: Dimension of `f` that holds the classes, counted with the batch; may be negative.
    """

    kind = "categorical"
    label_independent = True

    @property
    def coupling(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the class dimension, counted from the front.

        Raises:
            UnsupportedOperationError: It counts from the back; use `resolve(f)`.
        """
        if self._dim < 0:
            raise UnsupportedOperationError(f"{self}.coupling needs the number of dimensions: use resolve(f).coupling.")
        return self._dim

    def resolve(self, f: Tensor) -> Likelihood:  # noqa: D102
        return Categorical(self._class_dim(f))

    def target_shape(self, f: Tensor) -> torch.Size:  # noqa: D102
        shape = list(f.shape)
        del shape[self._dim]
        return torch.Size(shape)

    def root_shape(self, f: Tensor) -> torch.Size:
        """Return one coordinate less than there are classes, as L has the null vector of equal shifts."""
        shape = list(f.shape)
        shape[self._dim] -= 1
        return torch.Size(shape[1:])

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        self._check_values(f)
        probs = f.detach().movedim(self._class_dim(f), -1).softmax(-1)
        labels = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        return labels.reshape(probs.shape[:-1])

    @checked_on_any_device
    def predictive(self, mean: Tensor, variance: Tensor, covariance: Tensor | None = None) -> Predictive:
        """Return the logits' moments and the softmax averaged over them (see `averages.softmax_average`).

        Args:
            mean: Logits, shaped like the outputs.
            variance: Their variances. Without a covariance the logits count as independent.
            covariance: Of the flattened outputs of each sample, `[B, O, O]`, or of all of them, `[B O, B O]`.
        """
        self._check_moments(mean, variance)
        dim = self._class_dim(mean)
        blocks = None if covariance is None else self._class_blocks(covariance, mean, dim)
        probs = softmax_average(mean.movedim(dim, -1), variance.movedim(dim, -1), blocks)
        return Predictive(mean, variance, probs=probs.movedim(-1, dim))

    def predictive_at(self, f: Tensor) -> Predictive:  # noqa: D102
        return Predictive(f, f.new_zeros(()).expand_as(f), probs=f.softmax(self._class_dim(f)))

    @staticmethod
    def _class_blocks(covariance: Tensor, mean: Tensor, dim: int) -> Tensor:
        """Return the covariance of the classes at every position, `[B, *positions, C, C]`."""
        batch, outputs = len(mean), mean[:1].numel()
        if covariance.dim() == 2:  # over all inputs: their own blocks
            covariance = covariance.reshape(batch, outputs, batch, outputs).diagonal(dim1=0, dim2=2).movedim(-1, 0)
        index = torch.arange(outputs, device=mean.device).reshape(mean.shape[1:]).movedim(dim - 1, -1)
        return covariance[:, index.unsqueeze(-1), index.unsqueeze(-2)]

    def hessian(self, f: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        dim = self._class_dim(f)
        probs = f.softmax(dim).movedim(dim, 1).flatten(2) if f.ndim > 2 else f.softmax(dim).unsqueeze(-1)
        batch, classes, positions = probs.shape
        off_diagonal = -torch.einsum("ncp,ndp->ncdp", probs, probs)
        blocks = torch.diag_embed(off_diagonal).transpose(2, 3)  # [n, c, p, d, q], zero unless p = q
        matrix = blocks.reshape(batch, classes * positions, classes * positions)
        # So far classes come first; reorder rows and columns to the order in which f is flattened.
        order = torch.arange(classes * positions, device=f.device).reshape(f.shape[1:]).movedim(dim - 1, 0).flatten()
        back = order.argsort()
        matrix = matrix[:, back][:, :, back]
        diagonal = self._hessian_diagonal(f).reshape(batch, classes * positions)
        matrix = matrix.diagonal_scatter(diagonal, dim1=1, dim2=2)
        if mask is None:
            return matrix
        observed = self._masked(torch.ones_like(f), f, mask).reshape(batch, classes * positions)
        return matrix * observed.unsqueeze(1) * observed.unsqueeze(2)

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        dim = self._class_dim(f)
        if y.is_floating_point() and any_not_finite(y):
            raise DataError(f"{self}: labels are class numbers, and some are NaN or infinite.")
        return f.log_softmax(dim).gather(dim, y.long().unsqueeze(dim)).squeeze(dim)

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        dim = self._class_dim(f)
        probs, others, _ = self._probabilities(f)
        return torch.where(self._classes(f) == y.long().unsqueeze(dim), -others, probs)

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        probs, others, _ = self._probabilities(f)
        return probs * others

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        """Return `diag(u) Q v` with `u = sqrt p` and the columns of Q an orthonormal basis of the complement of u.

        Q consists of the columns, but the one of the likeliest class j, of the Householder reflection
        `I - w w^T / (1 + u_j)`, `w = u + e_j`, which takes u to -e_j. As `1 + u_j >= 1` nothing is ever divided by a
        small number, and with the likeliest class as pivot nothing cancels when p is almost one-hot.
        """
        dim = self._class_dim(f)
        root = (0.5 * f.log_softmax(dim)).exp()
        _, _, is_pivot = self._probabilities(f)
        # Coordinates are numbered by class; the one that would be the pivot's stands for the last class instead.
        missing = torch.zeros_like(v.narrow(dim + 1, 0, 1))
        padded = torch.cat([v, missing], dim + 1)
        displaced = (padded * is_pivot).sum(dim + 1, keepdim=True)
        is_last = self._classes(f) == f.shape[dim] - 1
        spread = torch.where(is_last, displaced, padded).masked_fill(is_pivot, 0)
        share = (root * spread).sum(dim + 1, keepdim=True) / (1 + root.amax(dim, keepdim=True))
        return root * (spread - (root + is_pivot) * share)

    def _probabilities(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `p`, `1 - p` without cancellation for the likeliest class, and where that class is."""
        dim = self._class_dim(f)
        probs = f.softmax(dim)
        is_pivot = self._classes(f) == f.argmax(dim, keepdim=True)
        others = probs.masked_fill(is_pivot, 0).sum(dim, keepdim=True)
        return probs, torch.where(is_pivot, others, 1 - probs), is_pivot

    def _classes(self, f: Tensor) -> Tensor:
        """Return class numbers along the class dimension of `f`."""
        dim = self._class_dim(f)
        shape = [1] * f.ndim
        shape[dim] = f.shape[dim]
        return torch.arange(f.shape[dim], device=f.device).reshape(shape)

    def _class_dim(self, f: Tensor) -> int:
        self._check_outputs(f)
        return self._dim % f.ndim

    def _spread_mask(self, f: Tensor, seen: Tensor) -> Tensor:
        return seen.unsqueeze(self._class_dim(f)).expand_as(f)

    def _check_outputs(self, f: Tensor) -> None:
        super()._check_outputs(f)
        if not -f.ndim < self._dim < f.ndim or f.shape[self._dim] < 2:
            raise DataError(
                f"{self}: outputs need at least two classes along dim {self._dim}, and that is not the batch; "
                f"got {describe(f)}. With one logit per label, use Bernoulli()."
            )

    def _check_target_shape(self, f: Tensor, y: Tensor) -> None:
        if y.shape == f.shape and y.shape != self.target_shape(f):
            raise DataError(
                f"{self}: the labels have the shape of the outputs, {list(y.shape)}, as one-hot labels or "
                f"probabilities have; pass class numbers of shape {list(self.target_shape(f))}: y.argmax({self._dim})."
            )
        super()._check_target_shape(f, y)

    def _check_labels(self, f: Tensor, y: Tensor) -> None:
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            whole = not y.is_complex() and bool((y == y.long()).all())
            remedy = "Use y.long()." if whole else "These are none: pass the number of each class, from 0 on."
            raise DataError(f"{self}: labels are class numbers, so of an integer dtype; got {y.dtype}. {remedy}")
        classes = f.shape[self._dim]
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise DataError(
                f"{self}: labels must lie between 0 and {classes - 1}, found {int(y.min())} to {int(y.max())}. "
                "For labels to ignore pass mask=(y != ignored)."
            )

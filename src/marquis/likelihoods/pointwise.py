"""Define what likelihoods share that are a product over their labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from marquis.arguments import checked, checked_on_any_device
from marquis.errors import UnsupportedOperationError
from marquis.likelihoods.base import Likelihood
from marquis.likelihoods.tools import as_mask, sum_outputs


class PointwiseLikelihood(Likelihood):
    """Define a likelihood that is a product over its labels, so that a mask simply leaves factors out.

    Subclasses write the four methods with a leading underscore for complete data; masks are dealt with here, once.
    """

    @checked_on_any_device
    def log_prob(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        return self._require_number(sum_outputs(self._entry_log_prob(f, y, mask)))

    @checked
    def entry_log_prob(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the summands of `log_prob`, shaped like the labels; 0 where the mask is."""
        return self._require_number(self._entry_log_prob(f, y, mask))

    def _entry_log_prob(self, f: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        self._check_target_shape(f, y)
        if mask is None:
            return self._log_density(f, y)
        observed = as_mask(mask, y.shape)
        # Both arguments are replaced *before* any arithmetic: 0 * NaN is NaN, in the value and in the gradient.
        f = f.masked_fill(~self._spread_mask(f, observed), 0)
        return self._log_density(f, y.masked_fill(~observed, 0)).masked_fill(~observed, 0)

    def gradient(self, f: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        self._check_target_shape(f, y)
        if mask is not None:
            y = y.masked_fill(~as_mask(mask, y.shape), 0)
        return self._masked(self._gradient(f, y), f, mask)

    def apply_sqrt(self, f: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        self._check_coefficients(f, v)
        return self._masked(self._apply_sqrt(f, v), f, mask)

    def hessian_diagonal(self, f: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: D102
        self._check_outputs(f)
        return self._masked(self._hessian_diagonal(f), f, mask)

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the log density of every label, shaped like `y`."""
        raise NotImplementedError

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the derivative of `-log p(y|f)` in f, per entry."""
        raise NotImplementedError

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        """Return the diagonal of the output Hessian L."""
        raise NotImplementedError

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def _spread_mask(self, f: Tensor, seen: Tensor) -> Tensor:
        """Turn a mask over labels into one over the outputs that they depend on."""
        del f
        return seen

    def _masked(self, value: Tensor, f: Tensor, mask: Tensor | None) -> Tensor:
        """Set entries of `value` (shaped like `f`, possibly with a leading axis) to zero where the label is missing."""
        if mask is None:
            return value
        return value.masked_fill(~self._spread_mask(f, as_mask(mask, self.target_shape(f))), 0)


class DimensionLikelihood(PointwiseLikelihood):
    """Define a likelihood whose outputs have several numbers for every label, along one dimension."""

    @checked
    def __init__(self, dim: int = 1) -> None:
        if dim == 0:
            raise UnsupportedOperationError(f"{type(self).__name__}(dim=0) would be the batch, which dim counts as 0.")
        self._dim = dim

    @property
    def dim(self) -> int:
        """Return the dimension as the user wrote it."""
        return self._dim

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"kind": self.kind, "dim": self._dim}

    def __repr__(self) -> str:
        """Show name and dimension."""
        return f"{type(self).__name__}(dim={self._dim})"

"""Define preferences between two alternatives (Bradley and Terry 1952), as reward models are trained on."""

from __future__ import annotations

from torch import Tensor

from marquis.errors import DataError
from marquis.likelihoods.base import Likelihood
from marquis.likelihoods.categorical import Categorical
from marquis.likelihoods.tools import describe


class Preference(Categorical):
    """Model `p(first preferred) = sigmoid(f_0 - f_1)` for outputs `[B, 2]`, scores of two alternatives.

    With the chosen alternative first and label 0 that is `l = softplus(-(f_chosen - f_rejected))`. Labels say which of
    the two is preferred, 0 or 1, so it is `Categorical` over two logits, and what the scores share cancels in
    predictions (docs/method/likelihoods.md#counts-and-preferences).

    Args:
        dim: Dimension of `f` that holds the two scores, counted with the batch; may be negative.
    """

    kind = "preference"

    def resolve(self, f: Tensor) -> Likelihood:  # noqa: D102
        return Preference(self._class_dim(f))

    def _check_outputs(self, f: Tensor) -> None:
        super()._check_outputs(f)
        if f.shape[self._dim] != 2:
            raise DataError(f"{self}: outputs are the scores of two alternatives, [B, 2]; got {describe(f)}.")

"""Define Bernoulli labels with one logit each: binary and multi-label classification, black-and-white images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from marquis.arguments import checked, checked_on_any_device
from marquis.errors import DataError
from marquis.likelihoods.averages import sigmoid_average
from marquis.likelihoods.base import Predictive
from marquis.likelihoods.pointwise import PointwiseLikelihood
from marquis.randomness import uniform


class Bernoulli(PointwiseLikelihood):
    """Model `y ~ Bernoulli(sigmoid(f))` per output: `l = softplus(f) - y f`, `L = diag(p (1 - p))`.

    Source: docs/method/likelihoods.md#table-of-likelihoods. Cost: one pass over the outputs. Labels are 0 or 1, of any
    dtype. Grey values between 0 and 1 are accepted as well, as is usual for images: `log_prob` is then the cross
    entropy, which is not normalised over grey values; gradient and curvature are still its exact derivatives.
    """

    kind = "bernoulli"
    coupling = None
    label_independent = True

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        self._check_values(f)
        chance = uniform(f.shape, f, generator)
        return (chance < f.detach().sigmoid()).to(f.dtype)

    @checked_on_any_device
    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:
        """Return the logits' moments and the sigmoid averaged over them (see `averages.sigmoid_average`)."""
        self._check_moments(mean, variance)
        return Predictive(mean, variance, probs=sigmoid_average(mean, variance))

    def predictive_at(self, f: Tensor) -> Predictive:  # noqa: D102
        return Predictive(f, f.new_zeros(()).expand_as(f), probs=f.sigmoid())

    # Both tails are spelled out below, for instance sigmoid(-f) and not 1 - sigmoid(f), which rounds to 0 too early.

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        y = y.to(f.dtype)
        return y * logsigmoid(f) + (1 - y) * logsigmoid(-f)

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        y = y.to(f.dtype)
        return (1 - y) * f.sigmoid() - y * (-f).sigmoid()

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        return f.sigmoid() * (-f).sigmoid()

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        return v * (0.5 * (logsigmoid(f) + logsigmoid(-f))).exp()

    def _check_labels(self, f: Tensor, y: Tensor) -> None:
        super()._check_labels(f, y)
        if not bool(((y >= 0) & (y <= 1)).all()):
            raise DataError(
                f"{self}: labels must be 0 or 1 (or grey values between), found {y.min().item()} to {y.max().item()}. "
                "Map labels of -1 and 1 by (y + 1) / 2; divide pixels of 0 to 255 by 255."
            )

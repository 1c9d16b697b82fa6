"""Define the Gaussian whose mean and log variance are both predicted by the network."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marquis.arguments import checked, checked_on_any_device
from marquis.errors import DataError
from marquis.likelihoods.base import Likelihood, Predictive
from marquis.likelihoods.pointwise import DimensionLikelihood
from marquis.likelihoods.tools import describe
from marquis.randomness import normal

LOG_VARIANCE_LIMIT = 40.0
"""Log variances are clamped to plus or minus this: beyond, float32 overflows in the products we need."""


class Heteroscedastic(DimensionLikelihood):
    """Model `f = (mu, s)`, `y ~ N(mu, e^s)`: `l = 1/2 (s + (y - mu)^2 e^-s + log 2 pi)` per label.

    The Hessian in `f` depends on `y` and is indefinite, so the curvature is the Fisher information `L = diag(e^-s,
    1/2)` (docs/method/likelihoods.md#heteroscedastic-gaussian), and `label_independent` is False. Beyond |s| = 40 the
    density is that of the clamped log variance, and gradient and Fisher in `s` are 0, as they are for that density.

    Args:
        dim: Dimension of `f` (counted with the batch) whose first half is the mean and second half the log variance.
            The labels have half its size.
    """

    kind = "heteroscedastic"
    coupling = None

    def target_shape(self, f: Tensor) -> torch.Size:  # noqa: D102
        shape = list(f.shape)
        shape[self._dim] //= 2
        return torch.Size(shape)

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        self._check_values(f)
        mean, log_variance = self._split(f.detach())
        noise = normal(mean.shape, f, generator)
        return mean + noise * (0.5 * log_variance).exp()

    def fisher_column(  # noqa: D102
        self, f: Tensor, generator: torch.Generator | None = None, mask: Tensor | None = None
    ) -> Tensor:
        # The gradient at y = mu + e^(s/2) eps, written in eps: no digits are lost in the difference y - mu.
        mean, log_variance = self._split(f)
        noise = normal(mean.shape, f, generator)
        column = self._join(f, -noise * (-0.5 * log_variance).exp(), 0.5 * (1 - noise.square()))
        return self._masked(column, f, mask)

    @checked_on_any_device
    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:
        """Return the mean half's moments; noise `E[e^s] = exp(E s + Var s / 2)`, exact for Gaussian `s`."""
        self._check_moments(mean, variance)
        self._check_outputs(mean)
        mean_of_mean, mean_of_log = mean.chunk(2, self._dim)
        variance_of_mean, variance_of_log = variance.chunk(2, self._dim)
        exponent = (mean_of_log + 0.5 * variance_of_log).clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT)
        return Predictive(mean_of_mean, variance_of_mean, noise_variance=exponent.exp())

    def resolve(self, f: Tensor) -> Likelihood:  # noqa: D102
        self._check_outputs(f)
        return Heteroscedastic(self._dim % f.ndim)

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = self._split(f)
        scaled = (y.to(f.dtype) - mean).square() * (-log_variance).exp()
        return -0.5 * (log_variance + scaled + math.log(2 * math.pi))

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = self._split(f)
        error, precision = mean - y.to(f.dtype), (-log_variance).exp()
        return self._join(f, error * precision, 0.5 * (1 - error.square() * precision))

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        precision = (-self._split(f)[1]).exp()
        return self._join(f, precision, torch.full_like(precision, 0.5))

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        root_precision = (-0.5 * self._split(f)[1]).exp()
        return v * self._join(f, root_precision, torch.full_like(root_precision, math.sqrt(0.5)))

    def _spread_mask(self, f: Tensor, seen: Tensor) -> Tensor:
        del f
        return torch.cat([seen, seen], self._dim)

    def _split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and clamped log variance."""
        self._check_outputs(f)
        mean, log_variance = f.chunk(2, self._dim)
        return mean, log_variance.clamp(-LOG_VARIANCE_LIMIT, LOG_VARIANCE_LIMIT)

    def _join(self, f: Tensor, mean_part: Tensor, log_variance_part: Tensor) -> Tensor:
        """Return derivatives in mean and log variance side by side; 0 where the log variance is clamped."""
        clamped = f.chunk(2, self._dim)[1].abs() > LOG_VARIANCE_LIMIT
        return torch.cat([mean_part, log_variance_part.masked_fill(clamped, 0)], self._dim)

    def _check_outputs(self, f: Tensor) -> None:
        super()._check_outputs(f)
        if not -f.ndim < self._dim < f.ndim or f.shape[self._dim] % 2:
            raise DataError(
                f"{self}: outputs need an even size along dim {self._dim} (means, then log variances), not the batch; "
                f"got {describe(f)}."
            )

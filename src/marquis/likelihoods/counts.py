"""Define counts with one log rate each: Poisson, and negative binomial for overdispersed counts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from marquis.arguments import Positive, checked, checked_on_any_device
from marquis.errors import DataError
from marquis.likelihoods.base import Predictive
from marquis.likelihoods.pointwise import PointwiseLikelihood
from marquis.likelihoods.tools import any_not_finite


class _Counts(PointwiseLikelihood):
    """Model labels 0, 1, 2, ... with mean `exp(f)`, independently per output."""

    coupling = None

    @checked_on_any_device
    def predictive(self, mean: Tensor, variance: Tensor) -> Predictive:
        """Return the moments of the log rates; `count_moments` has those of the counts."""
        self._check_moments(mean, variance)
        return Predictive(mean, variance)

    @checked
    def count_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a new count for log rates of this mean and variance, exact for Gaussian ones.

        `E[y] = exp(m + v/2)`, `Var[y] = E[Var(y|f)] + Var(exp f)` with `E[exp 2f] = exp(2m + 2v)`.
        """
        self._check_moments(mean, variance)
        rate, squared = (mean + variance / 2).exp(), (2 * (mean + variance)).exp()
        if any_not_finite(squared):
            raise DataError(f"{self}: the variance of the counts is too large for {mean.dtype}.")
        return rate, rate + squared / self._inverse_dispersion() + squared - rate.square()

    def _inverse_dispersion(self) -> float:
        """Return r in `Var(y|f) = mu + mu^2 / r`."""
        return float("inf")

    def _check_values(self, f: Tensor, mask: Tensor | None = None) -> None:
        super()._check_values(f, mask)
        if any_not_finite(self._masked(f, f, mask).exp()):
            raise DataError(f"{self}: exp({f.max().item():.4g}) is infinite; outputs are logarithms of rates.")

    def _check_labels(self, f: Tensor, y: Tensor) -> None:
        super()._check_labels(f, y)
        if not bool(((y >= 0) & (y == y.round())).all()):
            raise DataError(f"{self}: labels are counts 0, 1, 2, ...; found values that are negative or not whole.")


class Poisson(_Counts):
    """Model `y ~ Poisson(exp f)`: `l = exp f - y f + log y!`, `L = diag(exp f)`, whatever the label.

    Source: docs/method/likelihoods.md#table-of-likelihoods. Cost: one pass over the outputs.
    """

    kind = "poisson"
    label_independent = True

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        self._check_values(f)
        return torch.poisson(_wide(f).exp(), generator=generator)

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        y = y.to(f.dtype)
        return y * f - f.exp() - torch.lgamma(y + 1)

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return f.exp() - y.to(f.dtype)

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        return f.exp()

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        return v * (f / 2).exp()


class NegativeBinomial(_Counts):
    """Model `y ~ NB(mean exp f, variance mu + mu^2 / r)`: a Poisson whose rate is gamma distributed.

    `l = -r log(r / (r + mu)) - y log(mu / (r + mu)) + const`. Its Hessian in f, `(y + r) r mu / (r + mu)^2`, depends on
    the label, so L is its mean, the Fisher information `r mu / (r + mu)` (docs/method/likelihoods.md).

    Args:
        dispersion: r; the larger, the nearer to a Poisson.
    """

    kind = "negative-binomial"
    label_independent = False

    @checked
    def __init__(self, dispersion: Positive = 1.0) -> None:
        self.dispersion = float(dispersion)

    @checked
    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:  # noqa: D102
        self._check_values(f)
        f = _wide(f)
        shape = torch.full_like(f, self.dispersion)
        rate = torch._standard_gamma(shape, generator=generator) * f.exp() / self.dispersion
        return torch.poisson(rate, generator=generator)

    def _inverse_dispersion(self) -> float:
        return self.dispersion

    def _odds(self, f: Tensor) -> Tensor:
        """Return `log(mu / r)`, whose sigmoid is `mu / (r + mu)`: no rate is ever formed, so none overflows."""
        return f - math.log(self.dispersion)

    def _log_density(self, f: Tensor, y: Tensor) -> Tensor:
        y, odds, r = y.to(f.dtype), self._odds(f), self.dispersion
        constant = torch.lgamma(y + r) - torch.lgamma(torch.full_like(y, r)) - torch.lgamma(y + 1)
        return constant + r * logsigmoid(-odds) + y * logsigmoid(odds)

    def _gradient(self, f: Tensor, y: Tensor) -> Tensor:
        odds = self._odds(f)
        return self.dispersion * odds.sigmoid() - y.to(f.dtype) * (-odds).sigmoid()

    def _hessian_diagonal(self, f: Tensor) -> Tensor:
        return self.dispersion * self._odds(f).sigmoid()

    def _apply_sqrt(self, f: Tensor, v: Tensor) -> Tensor:
        return v * self._hessian_diagonal(f).sqrt()

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {**super().state_dict(), "dispersion": self.dispersion}

    def __repr__(self) -> str:
        """Show the dispersion."""
        return f"NegativeBinomial(dispersion={self.dispersion:g})"


def _wide(f: Tensor) -> Tensor:
    """Return outputs without gradients, half precision in float32: torch has no random counts in half precision."""
    return f.detach().to(torch.promote_types(f.dtype, torch.float32))

"""Model a table's columns by a mixture of Gaussians, for columns that depend on each other nonlinearly or in groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CHUNK, ROWS = 3_000_000, 1024
"""Largest number of entries of the temporary arrays, patterns x components x columns², and of rows at a time."""
LOG_TWO_PI = 1.8378770664093453


@dataclass(frozen=True, eq=False)
class Components:
    """Hold what each component says about rows, `[N, K]` and `[N, K, d]`.

    Attributes:
        log_share: Log-probability of the component given the observed entries of the row, `[N, K]`.
        mean: Of every entry given the *other* observed entries of its row.
        variance: Likewise.
        log_joint: Log-density of the observed entries together with the component, `[N, K]`.
    """

    log_share: Tensor
    mean: Tensor
    variance: Tensor
    log_joint: Tensor

    def log_shares(self, x: Tensor) -> Tensor:
        """Return the log-probability of the components given the row without the entry, `[N, K, d]`."""
        leaving = self.log_joint[:, :, None] - _log_normal(x[:, None], self.mean, self.variance).nan_to_num(0.0)
        return leaving - leaving.logsumexp(1, keepdim=True)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of every entry over the components, `[N, d]`."""
        share = self.log_shares(x).exp()
        mean = (share * self.mean).sum(1)
        return mean, (share * (self.variance + (self.mean - mean[:, None]).square())).sum(1)


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """Represent `sum_k share_k N(mean_k, covariance_k)`, with closed-form conditionals for missing values.

    The entries of a row are predicted by each component as by one Gaussian, and the components count as much as the
    other entries of the row make them probable (docs/method/tasks.md#tables). Cost: `patterns * K * columns³` for the
    patterns of missing values, plus `rows * K * columns²`.

    Attributes:
        shares: `[K]`.
        means: `[K, d]`.
        covariances: `[K, d, d]`.
        log_discount: Added to what a component contributes to the log-density of an entry, `[K]`; None: nothing.
    """

    shares: Tensor
    means: Tensor
    covariances: Tensor
    log_discount: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Return the mean of the columns, `[d]`."""
        return self.shares @ self.means

    def entries(self, x: Tensor, groups: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return mean and variance `[N, d]` of every entry given the *other* observed entries of its row.

        Args:
            x: `[N, d]`; NaN where entries are missing.
            groups: None; tables with categories have one Gaussian.
        """
        assert not groups
        mean, variance = torch.empty_like(x), torch.empty_like(x)
        for rows, components, _ in self.components(x):
            mean[rows], variance[rows] = components.moments(x[rows])
        return mean, variance

    def filled(self, x: Tensor) -> Tensor:
        """Return `x` with the conditional mean of each missing entry."""
        return torch.where(x.isnan(), self.entries(x)[0], x)

    def log_entries(self, x: Tensor, at: Tensor, shift: Tensor, scale: Tensor, extra: Tensor) -> Tensor:
        """Return the log-density of entries given the other observed entries of their row, `[N, d]`.

        Args:
            x: `[N, d]`; NaN where entries are missing.
            at: Where the density is taken, `[N, d]`; `x` itself for entries that are observed.
            shift: Added to the means of all components, `[N, d]`.
            scale: Factor on their variances, `[d]`.
            extra: Added to these, `[N, d]`.
        """
        result = torch.empty_like(x)
        for rows, components, _ in self.components(x):
            mean = components.mean + shift[rows][:, None]
            variance = components.variance * scale + extra[rows][:, None]
            density = _log_normal(at[rows][:, None], mean, variance)
            if self.log_discount is not None:
                density = density + self.log_discount[:, None]
            result[rows] = (components.log_shares(x[rows]) + density).logsumexp(1)
        return result

    def spread(self, x: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        """Return joint samples `[S, N, d]` of the missing entries minus their conditional mean; 0 where observed."""
        normal = torch.randn(samples, *x.shape, dtype=x.dtype, generator=generator)
        result = torch.zeros_like(normal)
        for rows, components, patterns in self.components(x):
            part, missing = x[rows], x[rows].isnan()
            chosen = torch.multinomial(components.log_share.exp(), samples, replacement=True, generator=generator).T
            # The covariance of missing entries given the others is zero at observed ones, which get the identity.
            covariances = self.covariances - self.covariances @ patterns.precision[patterns.of_rows] @ self.covariances
            both = (missing[:, :, None] & missing[:, None, :])[:, None]
            identity = torch.diag_embed((~missing).to(x))[:, None]
            roots = torch.linalg.cholesky(torch.where(both, covariances, 0.0) + identity)
            places = torch.arange(len(part))
            noise = (roots[places, chosen] @ normal[:, rows, :, None])[..., 0]
            difference = components.mean[places, chosen] - components.moments(part)[0]
            result[:, rows] = torch.where(missing, difference + noise, 0.0)
        return result

    def components(self, x: Tensor, variances: bool = True) -> Iterator[tuple[Tensor, Components, Patterns]]:
        """Yield rows, what the components say about them, and their patterns of missing values, some at a time.

        Args:
            x: `[N, d]`; NaN where entries are missing.
            variances: Whether those of missing entries are needed; if not, they are NaN.
        """
        observed = ~x.isnan()
        patterns, which = torch.unique(observed, dim=0, return_inverse=True)
        order = which.argsort(stable=True)
        size = max(1, CHUNK // self.covariances.numel())
        bounds = torch.searchsorted(which[order], torch.arange(0, len(patterns) + size, size))
        for part, first, stop in zip(patterns.split(size), bounds[:-1], bounds[1:], strict=False):
            numbers = which[order[first:stop]] - which[order[first]]
            prepared = Patterns.of(part, self.covariances, numbers, variances)
            for rows, some in zip(order[first:stop].split(ROWS), numbers.split(ROWS), strict=True):
                here = replace(prepared, of_rows=some)
                yield rows, self._components(x[rows], here), here

    def _components(self, x: Tensor, patterns: Patterns) -> Components:
        """Return what the components say about rows whose patterns are prepared."""
        which, missing = patterns.of_rows, x.isnan()
        centred = (x[:, None] - self.means).nan_to_num(0.0)
        if len(patterns.precision) == 1:  # complete rows: no matrix for each of them
            weighted = (centred.transpose(0, 1) @ patterns.precision[0]).transpose(0, 1)
        else:
            weighted = (patterns.precision[which] @ centred[..., None])[..., 0]
        count = (~missing).sum(1, keepdim=True)
        distance = (centred * weighted).sum(2)
        log_joint = self.shares.log() - 0.5 * (distance + patterns.log_determinant[which] + count * LOG_TWO_PI)
        conditional = self.means + (weighted.transpose(0, 1) @ self.covariances).transpose(0, 1)
        alone = patterns.alone[which]
        mean = torch.where(missing[:, None], conditional, x.nan_to_num(0.0)[:, None] - weighted * alone)
        variance = torch.where(missing[:, None], patterns.variance[which], alone)
        return Components(log_joint.log_softmax(1), mean, variance.clamp_min(1e-12), log_joint)


@dataclass(frozen=True, eq=False)
class Patterns:
    """Hold what follows from which entries are observed, for some patterns of missing values.

    Attributes:
        precision: Inverse covariances of the observed entries, zero elsewhere, `[P, K, d, d]`.
        log_determinant: Of the covariances of the observed entries, `[P, K]`.
        alone: Variances of observed entries given the others, `[P, K, d]`.
        variance: Variances of missing entries given the observed ones, `[P, K, d]`, or NaN.
        of_rows: Number of each row's pattern, `[N]`.
    """

    precision: Tensor
    log_determinant: Tensor
    alone: Tensor
    variance: Tensor
    of_rows: Tensor

    @classmethod
    def of(cls, observed: Tensor, covariances: Tensor, of_rows: Tensor, variances: bool) -> Patterns:
        """Return what follows from patterns of observed entries, `[P, d]`."""
        both = (observed[:, :, None] & observed[:, None, :])[:, None]
        missing = torch.diag_embed((~observed).to(covariances))[:, None]
        root = torch.linalg.cholesky(torch.where(both, covariances, 0.0) + missing)
        log_determinant = 2 * root.diagonal(dim1=2, dim2=3).log().sum(2)
        precision = torch.where(both, torch.cholesky_inverse(root), 0.0)
        diagonal = precision.diagonal(dim1=2, dim2=3)
        alone = torch.where(observed[:, None], 1 / diagonal, 1.0)
        variance = torch.full_like(alone, torch.nan)
        if variances:
            explained = (precision @ covariances * covariances.mT).sum(2)
            variance = covariances.diagonal(dim1=1, dim2=2) - explained
        return cls(precision, log_determinant, alone, variance, of_rows)


def _log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the log-density of normal distributions."""
    return -0.5 * ((x - mean).square() / variance + variance.log() + LOG_TWO_PI)

"""Model a table's columns by a multivariate Gaussian, with closed-form conditionals for missing values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 5_000_000
"""Largest number of entries of the temporary arrays: patterns x columns x factors."""


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """Represent `N(mean, W Wᵀ + diag(noise))`: factor analysis, and with enough factors any covariance.

    With `G = (I + W_oᵀ diag(1/noise_o) W_o)⁻¹` of the observed entries `o` of a row (docs/method/tasks.md#tables), the
    factors have the posterior mean `z = G W_oᵀ ((x_o - mean_o) / noise_o)` and covariance `G`. All else follows from
    the two. Cost: `patterns * columns * factors²` for the patterns of missing values, plus `rows * columns * factors`.

    Attributes:
        mean: `[d]`.
        loadings: W, `[d, K]`.
        noise: Variance of each column that the factors do not explain, `[d]`, positive.
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    def entries(self, x: Tensor, groups: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return mean and variance `[N, d]` of every entry given the *other* observed entries of its row.

        For missing entries these are the conditional moments. For observed ones they are the leave-one-out moments,
        which follow from the precision matrix P of the observed entries: `x_j - (P (x - mean))_j / P_jj` and
        `1 / P_jj`.

        Args:
            x: `[N, d]`; NaN where entries are missing.
            groups: Numbers of columns that are left out together, such as the levels of a category.
        """
        centred, observed = (x - self.mean).nan_to_num(0.0), ~x.isnan()
        mean, variance = torch.empty_like(x), torch.empty_like(x)
        for rows, which, root in self._patterns(observed):
            fitted = self._codes(centred[rows], observed[rows], which, root) @ self.loadings.T
            halves = torch.linalg.solve_triangular(root, self.loadings.T.expand(len(root), -1, -1), upper=False)
            explained = halves.square().sum(1)  # the diagonal of W G Wᵀ
            weighted = (centred[rows] - fitted) / self.noise  # P (x - mean)
            precision = (1 / self.noise - explained / self.noise.square())[which]
            alone, alone_variance = centred[rows] - weighted / precision, 1 / precision
            for group in groups:
                scaled = halves[:, :, group] / self.noise[group]
                block = torch.linalg.inv(torch.diag(1 / self.noise[group]) - scaled.mT @ scaled)[which]
                alone[:, group] = centred[rows][:, group] - (block @ weighted[:, group, None])[:, :, 0]
                alone_variance[:, group] = block.diagonal(dim1=1, dim2=2)
            known = observed[rows]
            mean[rows] = self.mean + torch.where(known, alone, fitted)
            variance[rows] = torch.where(known, alone_variance, explained[which] + self.noise)
        return mean, variance

    def filled(self, x: Tensor) -> Tensor:
        """Return `x` with the conditional mean of each missing entry; cheaper than `entries`."""
        codes = self.codes(x)
        return torch.where(x.isnan(), self.mean + codes @ self.loadings.T, x)

    def codes(self, x: Tensor) -> Tensor:
        """Return the posterior mean of the factors `[N, K]` given the observed entries of each row."""
        centred, observed = (x - self.mean).nan_to_num(0.0), ~x.isnan()
        codes = x.new_empty(len(x), self.loadings.shape[1])
        for rows, which, root in self._patterns(observed):
            codes[rows] = self._codes(centred[rows], observed[rows], which, root)
        return codes

    def spread(self, x: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        """Return joint samples `[S, N, d]` of the missing entries minus their conditional mean; 0 where observed."""
        observed, k = ~x.isnan(), self.loadings.shape[1]
        factors = torch.randn(samples, len(x), k, dtype=x.dtype, generator=generator)
        noise = torch.randn(samples, *x.shape, dtype=x.dtype, generator=generator) * self.noise.sqrt()
        for rows, which, root in self._patterns(observed):
            scaled = torch.linalg.solve_triangular(root[which].mT, factors[:, rows].permute(1, 2, 0), upper=True)
            noise[:, rows] += scaled.permute(2, 0, 1) @ self.loadings.T
        return torch.where(observed, 0.0, noise)

    def expected_scatter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return completed rows `[N, d]`, and the sum of the conditional covariances of what is missing, `[d, d]`."""
        centred, observed = (x - self.mean).nan_to_num(0.0), ~x.isnan()
        complete, total = torch.where(observed, x, 0), x.new_zeros(x.shape[1], x.shape[1])
        for rows, which, root in self._patterns(observed):
            codes = self._codes(centred[rows], observed[rows], which, root)
            complete[rows] = torch.where(observed[rows], x[rows], self.mean + codes @ self.loadings.T)
            hidden = x.new_zeros(len(root), x.shape[1])
            hidden[which] = (~observed[rows]).to(x.dtype)
            counts = torch.bincount(which, minlength=len(root)).to(x.dtype)
            halves = torch.linalg.solve_triangular(root, (hidden[:, :, None] * self.loadings).mT, upper=False)
            halves = (halves * counts.sqrt()[:, None, None]).flatten(0, 1)
            total += halves.T @ halves
            total.diagonal().add_(self.noise * (counts @ hidden))
        return complete, total

    def _patterns(self, observed: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows, the number of each row's pattern, and the Cholesky factors of `G⁻¹` by pattern."""
        patterns, which = torch.unique(observed, dim=0, return_inverse=True)
        order = which.argsort(stable=True)
        size = max(1, CHUNK // self.loadings.numel())
        bounds = torch.searchsorted(which[order], torch.arange(0, len(patterns) + size, size))
        for part, start, stop in zip(patterns.split(size), bounds[:-1], bounds[1:], strict=False):
            rows = order[start:stop]
            precision = (self.loadings.T * (part / self.noise)[:, None, :]) @ self.loadings
            precision.diagonal(dim1=1, dim2=2).add_(1.0)
            yield rows, which[rows] - which[rows[0]], torch.linalg.cholesky(precision)

    def _codes(self, centred: Tensor, observed: Tensor, which: Tensor, root: Tensor) -> Tensor:
        """Return the factors' posterior means for rows with a pattern of observed entries."""
        weighted = torch.where(observed, centred, 0) / self.noise @ self.loadings
        if len(root) == 1:
            return torch.cholesky_solve(weighted.T, root[0]).T
        return torch.cholesky_solve(weighted[:, :, None], root[which])[:, :, 0]

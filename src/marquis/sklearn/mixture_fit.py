"""Fit mixtures of Gaussians to tables with missing values, and choose them where hidden entries support it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from marquis.sklearn.gaussian_mixture import LOG_TWO_PI, GaussianMixture

if TYPE_CHECKING:
    from marquis.sklearn.linear_gaussian import LinearGaussian

COUNTS = (2, 4, 8, 16, 32)
"""Numbers of components that are compared, one after the other until two of them in turn are no better."""
MOST_COLUMNS, FEWEST_ROWS = 20, 100
"""Mixtures are fitted to tables with at most so many columns and at least so many rows."""
WORK = 2e8
"""EM sees as many rows as take so many multiplications a step, `rows * components * columns³`."""
STEPS, TOLERANCE = 30, 5e-3
"""Largest number of steps of EM, and the gain of the mean log-density per row at which it stops."""
COMMON_ROWS = 2.0
"""Number of rows per column with the covariance within all components that count for every component's."""
SURE = 2.0
"""Number of standard errors by which a mixture has to be better than the Gaussian."""
RARE, LINKED = 0.2, 0.01
"""Share of the rows below which a group that stands apart is rare, and share of a component's rows that could belong to
another component of its group."""
OVERLAP_ROWS = 5000
"""About the largest number of rows by which it is decided which components are one group."""
FLOOR = 1e-4
"""Smallest variance of a component in any direction, in units of the columns' variances."""


@dataclass(frozen=True)
class ChosenCounts:
    """Hold numbers of components; 1 is the Gaussian itself.

    Attributes:
        missing: For missing entries.
        alone: For entries that are left out one at a time.
    """

    missing: int = 1
    alone: int = 1


def choose_counts(x: Tensor, tries: Sequence[tuple[LinearGaussian, Tensor]], seed: int) -> ChosenCounts:
    """Return the numbers of components under which hidden entries are predicted best.

    A mixture takes the place of the Gaussian for missing entries if their squared errors are smaller, and for the
    scores of rows if the hidden entries' log-density is larger, by more than `SURE` standard errors over rows. Among
    those the loss of the normal distribution with the mixture's moments, and the density, choose.

    Args:
        x: `[N, d]`, standardised.
        tries: Gaussians, and the rows that they were fitted to, with entries hidden.
        seed: Of the mixtures.
    """
    n, d = x.shape
    best = ChosenCounts()
    if d > MOST_COLUMNS or d < 2 or n < FEWEST_ROWS:
        return best
    baselines = [_losses(gaussian, x, part) for gaussian, part in tries]
    least_moments, least_density, fails = 0.0, 0.0, 0
    for count in COUNTS:
        if n < count * d or fails == 2:
            break
        gains = torch.zeros(3, n, dtype=x.dtype)
        for (gaussian, part), baseline in zip(tries, baselines, strict=True):
            losses = _losses(fit_mixture(part, gaussian.filled(part), count, seed), x, part)
            gains += baseline - losses
        squares, moments, density = gains
        fails += 1
        if _is_sure(squares) and float(moments.sum()) > least_moments:
            best, least_moments, fails = ChosenCounts(count, best.alone), float(moments.sum()), 0
        if _is_sure(density) and float(density.sum()) > least_density:
            best, least_density, fails = ChosenCounts(best.missing, count), float(density.sum()), 0
    return best


def _is_sure(gain: Tensor) -> bool:
    """Return whether a gain by rows is larger than its standard error."""
    return float(gain.sum()) > SURE * float(gain.square().sum().sqrt())


def _losses(model: LinearGaussian | GaussianMixture, x: Tensor, hidden: Tensor) -> Tensor:
    """Return losses of hidden entries by row, `[3, N]`: squares, of the moments, and minus the log-density."""
    mean, variance = model.entries(hidden)
    squares = (x - mean).square()
    moments = 0.5 * squares / variance + 0.5 * variance.log() + 0.5 * LOG_TWO_PI
    none = torch.zeros_like(x)
    density = moments
    if isinstance(model, GaussianMixture):
        density = -model.log_entries(hidden, x, none, torch.ones_like(x[0]), none)
    chosen = hidden.isnan() & ~x.isnan()
    return torch.stack([torch.where(chosen, part, 0.0).sum(1) for part in (squares, moments, density)])


def fit_mixture(x: Tensor, filled: Tensor, count: int, seed: int) -> GaussianMixture:
    """Fit a mixture of Gaussians by EM over missing values (Ghahramani and Jordan 1994), from clusters of the rows.

    Args:
        x: `[N, d]`, standardised; NaN where entries are missing.
        filled: The same rows with entries at the missing ones, for the first clusters.
        count: Number of components.
        seed: Of the clusters.
    """
    generator = torch.Generator().manual_seed(seed)
    most = max(FEWEST_ROWS, int(WORK / (count * x.shape[1] ** 3)))
    if len(x) > most:
        chosen = torch.randperm(len(x), generator=generator)[:most]
        x, filled = x[chosen], filled[chosen]
    share = torch.nn.functional.one_hot(_clusters(filled, count, generator), count).to(x)
    means = share.T @ filled / share.sum(0)[:, None].clamp_min(1e-9)
    centred = filled - means[share.argmax(1)]
    covariances = torch.stack([(centred * share[:, [k]]).T @ centred for k in range(count)])
    mixture = _regular(share.sum(0), means, covariances)
    before = -torch.inf
    for _ in range(STEPS):
        mixture, value = _stepped(x, mixture)
        if value - before < TOLERANCE:
            break
        before = value
    return mixture


def discounted(mixture: GaussianMixture, x: Tensor) -> GaussianMixture:
    """Return the mixture for outlier scores, in which rare groups of rows that stand apart count for less.

    Outliers among the training rows that resemble each other have components of their own, by which each of their
    entries would be foreseen from the others. Components are one group if rows could belong to either. The density
    under a group with a share s below `RARE` is multiplied by `(s / RARE)^(2 / √d)` for each of the d entries, so that
    its rows are set apart from others by several standard deviations of the score, whatever d.

    Args:
        mixture: Fitted to the rows.
        x: `[N, d]`, standardised.
    """
    count, d = mixture.means.shape
    total, overlap = x.new_zeros(count), x.new_zeros(count, count)
    some = x[:: max(1, len(x) // OVERLAP_ROWS)]
    for _, components, _ in mixture.components(some, variances=False):
        share = components.log_share.exp()
        total += share.sum(0)
        overlap += share.T @ share
    linked = overlap > LINKED * torch.minimum(total[:, None], total[None])
    groups, labels = connected_components(linked.numpy(), directed=False)
    shares = x.new_zeros(groups).index_add(0, torch.as_tensor(labels).long(), total / total.sum())
    discount = (shares / RARE).clamp(1e-6, 1.0).log() * 2 / d**0.5
    return replace(mixture, log_discount=discount[torch.as_tensor(labels).long()])


def _stepped(x: Tensor, mixture: GaussianMixture) -> tuple[GaussianMixture, float]:
    """Return the mixture after one step of EM, and the mean log-density per row before it."""
    count, d = mixture.means.shape
    total, sums, value = x.new_zeros(count), x.new_zeros(count, d), 0.0
    scatter, precision = x.new_zeros(count, d, d), x.new_zeros(count, d, d)
    for rows, components, patterns in mixture.components(x, variances=False):
        part, share = x[rows], components.log_share.exp()
        # Rows with their missing entries as each component predicts them, [n, K, d].
        centred = torch.where(part.isnan()[:, None], components.mean, part[:, None]) - mixture.means
        total += share.sum(0)
        weighted = share[:, :, None] * centred
        sums += weighted.sum(0)
        scatter += weighted.permute(1, 2, 0) @ centred.permute(1, 0, 2)
        by_pattern = x.new_zeros(len(patterns.precision), count).index_add(0, patterns.of_rows, share)
        precision += torch.einsum("pk,pkde->kde", by_pattern, patterns.precision)
        value += float(components.log_joint.logsumexp(1).sum())
    # The covariances of missing entries given the others; they are zero at observed entries.
    covariances = mixture.covariances
    scatter += total[:, None, None] * covariances - covariances @ precision @ covariances
    shift = sums / total[:, None].clamp_min(1e-9)
    scatter = scatter - total[:, None, None] * shift[:, :, None] * shift[:, None, :]
    return _regular(total, mixture.means + shift, scatter), value / len(x)


def _regular(total: Tensor, means: Tensor, scatter: Tensor) -> GaussianMixture:
    """Return a mixture whose covariances are drawn to the one within all components, which keeps them regular."""
    d = means.shape[1]
    within, rows = scatter.sum(0) / total.sum(), COMMON_ROWS * d
    covariances = (scatter + rows * within) / (total + rows)[:, None, None]
    covariances = 0.5 * (covariances + covariances.mT) + FLOOR * torch.eye(d, dtype=means.dtype)
    kept = total > 0.5
    shares = total[kept] / total[kept].sum()
    return GaussianMixture(shares, means[kept], covariances[kept])


def _clusters(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the cluster of each row, by k-means from far rows (Arthur and Vassilvitskii 2007)."""
    centres = x[torch.randint(len(x), (1,), generator=generator)]
    for _ in range(count - 1):
        distance = torch.cdist(x, centres).square().amin(1) + 1e-12
        centres = torch.cat([centres, x[torch.multinomial(distance, 1, generator=generator)]])
    for _ in range(10):
        nearest = torch.cdist(x, centres).argmin(1)
        hot = torch.nn.functional.one_hot(nearest, count).to(x)
        sizes = hot.sum(0)[:, None]
        centres = torch.where(sizes > 0, hot.T @ x / sizes.clamp_min(1), centres)
    return torch.cdist(x, centres).argmin(1)

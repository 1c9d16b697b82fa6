"""Fit the Gaussian of a table: its covariance by EM over missing values, its shrinkage chosen on hidden entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marquis.sklearn.gaussian_mixture import GaussianMixture
from marquis.sklearn.linear_gaussian import LinearGaussian
from marquis.sklearn.mixture_fit import ChosenCounts, choose_counts, discounted, fit_mixture

DENSE = 100
"""Largest number of columns whose covariance is fitted as a whole; above, by its largest eigenvalues."""
RANKS = (1, 2, 4, 8, 16, 32)
"""Numbers of factors that are compared above `DENSE` columns."""
SHRINKAGES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Factors by which covariances are reduced; 1 predicts every entry by its column's mean."""
DURING_EM = 0.03
"""Shrinkage while EM runs, which keeps the covariance regular."""
TOLERANCE, MAX_ITERATIONS = 1e-3, 50
"""Change of any entry of the covariance, in units of the columns' variances, at which EM stops, and its most steps."""
WORK, MIN_ROWS = 1e8, 1000
"""EM sees as many rows as take so many multiplications a step, but at least so many rows; a last step sees all."""
HIDINGS = 2
"""Number of times a share of the entries is hidden for the choice of the shrinkage."""
HIDDEN = 0.2
"""Share of the observed entries that is hidden then."""


@dataclass(frozen=True, eq=False)
class CovarianceSpectrum:
    """Hold mean, variances and leading eigenvectors of a covariance: Gaussians with less dependence follow.

    Attributes:
        mean: `[d]`.
        variance: Diagonal of the covariance, `[d]`.
        values: Eigenvalues in ascending order, `[R]`.
        vectors: `[d, R]`.
    """

    mean: Tensor
    variance: Tensor
    values: Tensor
    vectors: Tensor

    def gaussian(self, rank: int, shrinkage: float) -> LinearGaussian:
        """Return the Gaussian of the same variances with `rank` factors, covariances multiplied by `1 - shrinkage`."""
        loadings = self.vectors[:, -rank:] * ((1 - shrinkage) * self.values[-rank:].clamp_min(0)).sqrt()
        explained = loadings.square().sum(1)
        return LinearGaussian(self.mean, loadings, (self.variance - explained).clamp_min(1e-6 * self.variance))

    def components(self, share: float) -> int:
        """Return how many eigenvalues make up a share of the variance."""
        shares = self.values.flip(0).clamp_min(0).cumsum(0) / self.variance.sum()
        return min(int((shares < share).sum()) + 1, len(self.values))

    def directions(self, count: int) -> Tensor:
        """Return the first principal components, `[d, count]`; zeros if there are fewer."""
        leading = self.vectors[:, -count:].flip(1)
        return torch.cat([leading, leading.new_zeros(len(leading), count - leading.shape[1])], 1)


Model = LinearGaussian | GaussianMixture


@dataclass(frozen=True, eq=False)
class FittedGaussian:
    """Hold a Gaussian, the mixtures that take its place where hidden entries support them, and their errors.

    Attributes:
        gaussian: Fitted to all observed entries.
        spectrum: Of its covariance before shrinking.
        rank: Number of factors.
        shrinkage: The one chosen.
        standardised: Errors of hidden entries over their standard deviation, `[M, d]`; NaN for all others.
        counts: Numbers of components; 1 for the Gaussian itself.
        seed: Of the mixtures.
        for_missing: Predicts missing entries: the Gaussian or a mixture.
        for_alone: Predicts entries that are left out one at a time.
        tries: Rows, their predictions and which entries were hidden, for each time entries were.
    """

    gaussian: LinearGaussian
    spectrum: CovarianceSpectrum
    rank: int
    shrinkage: float
    standardised: Tensor
    counts: ChosenCounts
    seed: int
    for_missing: Model
    for_alone: Model
    tries: Sequence[tuple[Tensor, Tensor, Tensor]] = ()

    def gaussian_of(self, rows: Tensor) -> LinearGaussian:
        """Return the Gaussian of other rows with the same rank and shrinkage."""
        return spectrum_of(rows).gaussian(self.rank, self.shrinkage)

    def models_of(self, rows: Tensor, gaussian: LinearGaussian) -> tuple[Model, Model]:
        """Return the models of missing and of left-out entries, of other rows and their Gaussian."""
        return _models(rows, gaussian, self.counts, self.seed)


def fit_gaussian(x: Tensor, groups: Sequence[Tensor], generator: torch.Generator) -> FittedGaussian:
    """Fit a Gaussian to standardised rows with missing values, and mixtures of Gaussians if these predict better.

    Rank and shrinkage are those under which entries that were hidden from EM have the largest density
    (docs/method/tasks.md#tables). Cost: `HIDINGS + 1` runs of EM, each step of `rows * d³` (`rows * d * 32²` above
    `DENSE` columns) for at most `WORK / d³` rows or `MIN_ROWS`; mixtures: see `choose_counts`.

    Args:
        x: `[N, d]`, standardised; NaN where entries are missing.
        groups: Columns that are hidden together, such as the levels of a category.
        generator: Source of hidden entries and of rows.
    """
    few = _rows_for_em(x, generator)
    hidden = [_with_columns_restored(hide(few, HIDDEN, groups, generator), few, groups) for _ in range(HIDINGS)]
    tries = [(spectrum_of(part), part, part.isnan() & ~few.isnan()) for part in hidden]

    def loss(candidate: tuple[int, float]) -> float:
        total = 0.0
        for spectrum, part, chosen in tries:
            mean, variance = spectrum.gaussian(*candidate).entries(part)
            total += float((0.5 * (few - mean).square() / variance + 0.5 * variance.log())[chosen].sum())
        return total

    rank = min(_ranks(few), key=lambda rank: loss((rank, DURING_EM))) if len(_ranks(few)) > 1 else _ranks(few)[0]
    best = rank, min(SHRINKAGES, key=lambda shrinkage: loss((rank, shrinkage)))
    gaussians = [(spectrum.gaussian(*best), part) for spectrum, part, _ in tries]
    seed = generator.initial_seed()
    counts = ChosenCounts() if len(groups) else choose_counts(few, gaussians, seed)
    predicted, standardised = [], []
    for (gaussian, part), (_, _, chosen) in zip(gaussians, tries, strict=True):
        mean, variance = _models(part, gaussian, counts, seed)[0].entries(part)
        predicted.append((few, mean, chosen))
        standardised.append(torch.where(chosen, (few - mean) / variance.sqrt(), torch.nan))
    spectrum = spectrum_of(few)
    if len(few) < len(x):
        spectrum = _stepped(x, spectrum.gaussian(*best))
    gaussian = spectrum.gaussian(*best)
    models = _models(x, gaussian, counts, seed)
    return FittedGaussian(gaussian, spectrum, *best, torch.cat(standardised), counts, seed, *models, predicted)


def _models(rows: Tensor, gaussian: LinearGaussian, counts: ChosenCounts, seed: int) -> tuple[Model, Model]:
    """Return the models of missing and of left-out entries: the Gaussian, or mixtures fitted to rows."""
    if counts == ChosenCounts():
        return gaussian, gaussian
    filled = gaussian.filled(rows)
    made = {count: fit_mixture(rows, filled, count, seed) for count in {counts.missing, counts.alone} - {1}}
    for_missing = made.get(counts.missing, gaussian)
    return for_missing, discounted(made[counts.alone], rows) if counts.alone in made else gaussian


def hide(x: Tensor, fraction: float, groups: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return rows with a share of the entries missing; the columns of a group are hidden together."""
    chance = torch.rand(x.shape, dtype=x.dtype, generator=generator)
    for group in groups:
        chance[:, group] = chance[:, group[:1]]
    return torch.where(chance < fraction, torch.nan, x)


def _with_columns_restored(hidden: Tensor, x: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """Return rows in which a column is seen again whose rare values are all hidden: it would have no variance."""
    low, high = (hidden.nan_to_num(fill) for fill in (torch.inf, -torch.inf))
    constant = high.amax(0) - low.amin(0) < 1e-9
    for group in groups:
        constant[group] = constant[group].any()
    return torch.where(constant, x, hidden)


def spectrum_of(x: Tensor) -> CovarianceSpectrum:
    """Return the maximum-likelihood covariance of rows with missing values, by EM (Dempster, Laird and Rubin 1977).

    Above `DENSE` columns the covariances of missing entries enter its diagonal only.
    """
    present = ~x.isnan()
    mean = x.nanmean(0).nan_to_num(0.0)  # a column may have no entry in a part of the rows
    centred = (x - mean).nan_to_num(0.0)
    spectrum = _spectrum(mean, centred, _missing_variance(centred, present))
    if bool(present.all()):
        return spectrum
    for _ in range(MAX_ITERATIONS):
        before, spectrum = spectrum, _stepped(x, spectrum.gaussian(_em_rank(spectrum), DURING_EM))
        if float((_converging_values(before) - _converging_values(spectrum)).abs().max()) < TOLERANCE:
            break
    return spectrum


def _converging_values(spectrum: CovarianceSpectrum) -> Tensor:
    """Return the values by which EM has converged or not: the covariance, or above `DENSE` columns its eigenvalues."""
    if len(spectrum.mean) > DENSE:
        return spectrum.values
    return (spectrum.vectors * spectrum.values) @ spectrum.vectors.T


def _stepped(x: Tensor, gaussian: LinearGaussian) -> CovarianceSpectrum:
    """Return the covariance after one step of EM."""
    if x.shape[1] <= DENSE:
        complete, extra = gaussian.expected_scatter(x)
    else:
        mean, variance = gaussian.entries(x)
        complete = torch.where(x.isnan(), mean, x)
        extra = torch.where(x.isnan(), variance, 0.0).sum(0)
    mean = complete.mean(0)
    return _spectrum(mean, complete - mean, extra)


def _spectrum(mean: Tensor, centred: Tensor, extra: Tensor) -> CovarianceSpectrum:
    """Return the spectrum of `(centredᵀ centred + extra) / N`; `extra` is a matrix or its diagonal."""
    n, d = centred.shape
    variance = (centred.square().sum(0) + (extra.diagonal() if extra.ndim == 2 else extra)) / n
    # A column of rare values can be constant in some of the rows: its variance is its unit, since nothing is known.
    variance = torch.where(variance < 1e-12, 1.0, variance)
    if d <= DENSE:
        covariance = (centred.T @ centred + (extra if extra.ndim == 2 else torch.diag(extra))) / n
        return CovarianceSpectrum(mean, variance, *torch.linalg.eigh(covariance))
    kept = max(RANKS)
    if n <= d:
        values, left = torch.linalg.eigh(centred @ centred.T / n)
        values, left = values[-kept:], left[:, -kept:]
        vectors = centred.T @ left / (n * values.clamp_min(1e-12)).sqrt()
        return CovarianceSpectrum(mean, variance, values, vectors)
    values, vectors = torch.linalg.eigh(centred.T @ centred / n)
    return CovarianceSpectrum(mean, variance, values[-kept:], vectors[:, -kept:])


def _missing_variance(centred: Tensor, present: Tensor) -> Tensor:
    """Return what missing entries add to the scatter if nothing but their column's variance is known, `[d]`."""
    observed = present.sum(0)
    return centred.square().sum(0) / observed.clamp_min(1) * (len(present) - observed)


def _rows_for_em(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return as many random rows as EM can afford."""
    d = x.shape[1]
    rows = max(MIN_ROWS, int(WORK / (d**3 if d <= DENSE else d * max(RANKS) ** 2)))
    return x if len(x) <= rows else x[torch.randperm(len(x), generator=generator)[:rows]]


def _ranks(x: Tensor) -> list[int]:
    """Return the ranks to choose from."""
    n, d = x.shape
    return [d] if d <= DENSE else [rank for rank in RANKS if rank <= max(1, n // 2)]


def _em_rank(spectrum: CovarianceSpectrum) -> int:
    """Return the rank with which EM runs."""
    d = len(spectrum.mean)
    return d if d <= DENSE else min(8, len(spectrum.values))

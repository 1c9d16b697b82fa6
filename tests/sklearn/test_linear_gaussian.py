"""The Gaussian of a table: conditionals against dense algebra, EM against the likelihood, choices on hidden entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from marquis.sklearn import gaussian_fit
from marquis.sklearn.gaussian_fit import fit_gaussian, spectrum_of
from marquis.sklearn.linear_gaussian import LinearGaussian


def random_gaussian(columns=7, factors=4, seed=0):
    source = torch.Generator().manual_seed(seed)
    loadings = torch.randn(columns, factors, dtype=torch.float64, generator=source)
    mean = torch.randn(columns, dtype=torch.float64, generator=source)
    return LinearGaussian(mean, loadings, 0.1 + torch.rand(columns, dtype=torch.float64, generator=source))


def rows_with_holes(gaussian, rows=40, seed=1, share=0.3):
    source = torch.Generator().manual_seed(seed)
    d, k = gaussian.loadings.shape
    factors, noise = (torch.randn(rows, n, dtype=torch.float64, generator=source) for n in (k, d))
    x = gaussian.mean + factors @ gaussian.loadings.T + noise * gaussian.noise.sqrt()
    return torch.where(torch.rand(rows, d, generator=source) < share, torch.nan, x)


def dense(gaussian):
    return gaussian.loadings @ gaussian.loadings.T + gaussian.noise.diag()


@pytest.mark.parametrize("factors", [2, 7])
@pytest.mark.parametrize("chunk", [gaussian_fit.DENSE, 10_000_000])
def test_every_entry_given_the_others(factors, chunk, monkeypatch):
    """Also an empty row, a complete row, and a group of columns that are left out together."""
    monkeypatch.setattr("marquis.sklearn.linear_gaussian.CHUNK", chunk)
    gaussian, group = random_gaussian(factors=factors), [2, 5]
    x = rows_with_holes(gaussian)
    x[0], x[1] = torch.nan, 1.0
    x[:, 5] = torch.where(x[:, 2].isnan(), torch.nan, 0.3)
    covariance = dense(gaussian)
    mean, variance = gaussian.entries(x, [torch.tensor(group)])
    for i in range(len(x)):
        for j in range(7):
            out = group if j in group else [j]
            others = [k for k in range(7) if k not in out and not x[i, k].isnan()]
            slope = torch.linalg.solve(covariance[others][:, others], covariance[others, j])
            expected = gaussian.mean[j] + slope @ (x[i, others] - gaussian.mean[others])
            torch.testing.assert_close(mean[i, j], expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(variance[i, j], covariance[j, j] - slope @ covariance[others, j])
    missing = x.isnan()
    torch.testing.assert_close(gaussian.filled(x), torch.where(missing, mean, x))


def test_samples_are_joint():
    gaussian = random_gaussian(5, 2)
    x = torch.tensor([[torch.nan, 1.0, torch.nan, 0.5, torch.nan]], dtype=torch.float64)
    drawn = gaussian.spread(x, 200_000, torch.Generator().manual_seed(0))[:, 0]
    out, seen, covariance = [0, 2, 4], [1, 3], dense(gaussian)
    cross = covariance[out][:, seen]
    expected = covariance[out][:, out] - cross @ torch.linalg.solve(covariance[seen][:, seen], cross.T)
    assert (drawn[:, seen] == 0).all()
    torch.testing.assert_close(torch.cov(drawn[:, out].T), expected, rtol=0.02, atol=0.02)


def test_em_climbs_the_likelihood_of_the_observed_entries(monkeypatch):
    """Up to the shrinkage that keeps it regular, so without it; its end is no worse than the truth."""
    monkeypatch.setattr(gaussian_fit, "DURING_EM", 1e-9)
    truth = random_gaussian(4, 4)
    x = rows_with_holes(truth, 300)

    def log_likelihood(mean, covariance):
        total = 0.0
        for row in x:
            seen = torch.nonzero(~row.isnan())[:, 0]
            if len(seen):
                total += multivariate_normal(mean[seen], covariance[seen][:, seen]).logpdf(row[seen])
        return total

    values = []
    for steps in (1, 2, 5, 60):
        monkeypatch.setattr(gaussian_fit, "MAX_ITERATIONS", steps)
        result = spectrum_of(x)
        values.append(log_likelihood(result.mean, (result.vectors * result.values) @ result.vectors.T))
    assert values == sorted(values) and values[-1] > log_likelihood(truth.mean, dense(truth))


def test_complete_rows_have_their_own_covariance():
    x = rows_with_holes(random_gaussian(), share=0.0)
    result = spectrum_of(x)
    np.testing.assert_allclose((result.vectors * result.values) @ result.vectors.T, np.cov(x.T, bias=True), rtol=1e-9)
    gaussian = result.gaussian(7, 0.25)
    expected = 0.75 * np.cov(x.T, bias=True) + 0.25 * np.diag(x.numpy().var(0))
    np.testing.assert_allclose(dense(gaussian), expected, rtol=1e-9)


def test_shrinkage_follows_the_dependence():
    """Nothing depends on anything: means. Much does: hardly any shrinkage."""
    source = torch.Generator().manual_seed(0)
    noise = torch.randn(60, 8, dtype=torch.float64, generator=source)
    assert fit_gaussian(noise, (), source).shrinkage >= 0.7
    common = torch.randn(60, 1, dtype=torch.float64, generator=source)
    assert fit_gaussian(common + 0.1 * noise, (), source).shrinkage <= 0.03


def test_more_columns_than_rows():
    """Factors: hidden entries are predicted by the rank that the table has, at a cost linear in columns."""
    source = torch.Generator().manual_seed(0)
    factors = torch.randn(80, 3, dtype=torch.float64, generator=source)
    x = factors @ torch.randn(3, 300, dtype=torch.float64, generator=source)
    x = x + 0.3 * torch.randn(x.shape, dtype=torch.float64, generator=source)
    incomplete = torch.where(torch.rand(x.shape, generator=source) < 0.2, torch.nan, x)
    result = fit_gaussian(incomplete, (), source)
    errors = (result.gaussian.filled(incomplete) - x)[incomplete.isnan()]
    assert result.rank in (2, 4) and errors.square().mean().sqrt() < 0.45 < 0.3 * x.std()


def test_a_column_whose_rare_value_is_hidden_keeps_its_unit():
    """Columns of which one row in a hundred differs had no variance once that row was hidden: 1e16 in every column."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(100, 5, dtype=torch.float64, generator=source)
    x[:, 4] = -0.1
    x[7, 4] = 9.9
    for seed in range(8):  # the row is hidden in one of two tries by chance .36
        fitted = fit_gaussian(x, [], torch.Generator().manual_seed(seed))
        # The column is seen in the other try at most: a value of 10 standard deviations among 20 hidden ones.
        assert float(fitted.standardised[:, :4].square().nanmean()) < 1.5
        assert float(fitted.standardised.square().nansum()) < 1000
    constant = torch.full((30, 1), 2.0, dtype=torch.float64)
    assert float(spectrum_of(torch.cat([x[:30, :2], constant], 1)).gaussian(3, 0.1).noise[2]) == 1.0


def test_a_column_without_entries_in_a_part_of_the_rows():
    """The few entries of a column can all be in the rows that are held out; its Gaussian was NaN everywhere."""
    x = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, 3] = torch.nan
    gaussian = spectrum_of(x).gaussian(4, 0.1)
    mean, variance = gaussian.entries(x)
    assert bool((mean[:, 3] == 0.0).all())  # of all rows, as columns are standardised
    torch.testing.assert_close(variance[:, 3], torch.ones(40, dtype=torch.float64))
    x[:, 3] = 1.0
    mean, variance = gaussian.entries(x)
    assert bool(mean.isfinite().all()) and bool((variance > 0).all())

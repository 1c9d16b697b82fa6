"""Mixtures of Gaussians of a table: against brute force over components, EM against the likelihood, their choice."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import roc_auc_score

from marquis.sklearn import LaplacianAutoencoder, mixture_fit
from marquis.sklearn.gaussian_fit import fit_gaussian, hide
from marquis.sklearn.gaussian_mixture import GaussianMixture
from marquis.sklearn.mixture_fit import ChosenCounts, fit_mixture


def random_mixture(count=3, d=5, seed=0):
    source = torch.Generator().manual_seed(seed)
    roots = torch.randn(count, d, d, dtype=torch.float64, generator=source) / 2
    shares = torch.rand(count, dtype=torch.float64, generator=source) + 0.2
    means = torch.randn(count, d, dtype=torch.float64, generator=source)
    return GaussianMixture(shares / shares.sum(), means, roots @ roots.mT + 0.1 * torch.eye(d))


def parts_of(mixture):
    return mixture.shares, mixture.means, mixture.covariances


def rows_with_missing_values(rows=30, d=5, seed=1, share=0.3):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d, dtype=torch.float64, generator=source)
    return torch.where(torch.rand(rows, d, generator=source) < share, torch.nan, x)


def conditional(mixture, row, j):
    """Return shares, means and variances of entry j given the other observed entries, component by component."""
    seen = [k for k in range(len(row)) if k != j and not np.isnan(row[k])]
    shares, means, variances = [], [], []
    for share, mean, covariance in zip(*(p.numpy() for p in parts_of(mixture)), strict=True):
        density = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)]).pdf(row[seen]) if seen else 1.0
        slope = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[seen, j]) if seen else np.zeros(0)
        shares.append(share * density)
        means.append(mean[j] + slope @ (row[seen] - mean[seen]))
        variances.append(covariance[j, j] - slope @ covariance[seen, j])
    return np.array(shares) / sum(shares), np.array(means), np.array(variances)


@pytest.mark.parametrize("chunk", [1, 10_000_000])
def test_every_entry_given_the_others(chunk, monkeypatch):
    """Also an empty row and a complete one; the density is the mixture's, not that of a normal distribution."""
    monkeypatch.setattr("marquis.sklearn.gaussian_mixture.CHUNK", chunk)
    monkeypatch.setattr("marquis.sklearn.gaussian_mixture.ROWS", 7)
    mixture, x = random_mixture(), rows_with_missing_values()
    x[0], x[1] = torch.nan, 0.5
    mean, variance = mixture.entries(x)
    shift, extra = torch.full_like(x, 0.1), torch.full_like(x, 0.05)
    scale, at = torch.linspace(0.5, 2, 5, dtype=torch.float64), x.nan_to_num(0.3)
    density = mixture.log_entries(x, at, shift, scale, extra)
    for i in range(len(x)):
        for j in range(5):
            share, means, variances = conditional(mixture, x[i].numpy(), j)
            expected = share @ means
            assert mean[i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
            total = share @ (variances + (means - expected) ** 2)
            assert variance[i, j].item() == pytest.approx(total, rel=1e-8)
            deviation = np.sqrt(variances * scale[j].item() + 0.05)
            wanted = np.log(share @ norm(means + 0.1, deviation).pdf(at[i, j].item()))
            assert density[i, j].item() == pytest.approx(wanted, rel=1e-8, abs=1e-8)
    torch.testing.assert_close(mixture.filled(x), torch.where(x.isnan(), mean, x))


def test_samples_are_joint_and_of_all_components():
    mixture = random_mixture(2, 4)
    x = torch.tensor([[torch.nan, 1.0, torch.nan, 0.5]], dtype=torch.float64)
    sampled = mixture.spread(x, 100_000, torch.Generator().manual_seed(0))[:, 0]
    seen, out = [1, 3], [0, 2]
    parts = []
    for share, mean, covariance in zip(*parts_of(mixture), strict=True):
        slope = torch.linalg.solve(covariance[seen][:, seen], covariance[seen][:, out]).T
        density = multivariate_normal(mean[seen], covariance[seen][:, seen]).pdf(x[0, seen])
        centre = mean[out] + slope @ (x[0, seen] - mean[seen])
        parts.append((float(share) * density, centre, covariance[out][:, out] - slope @ covariance[seen][:, out]))
    total = sum(share for share, _, _ in parts)
    mean = sum(share / total * centre for share, centre, _ in parts)
    expected = sum(
        share / total * (covariance + torch.outer(centre - mean, centre - mean)) for share, centre, covariance in parts
    )
    assert (sampled[:, seen] == 0).all()
    torch.testing.assert_close(sampled[:, out].mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=0.02)
    torch.testing.assert_close(torch.cov(sampled[:, out].T), expected, rtol=0.03, atol=0.03)


def test_em_climbs_the_likelihood_of_the_observed_entries(monkeypatch):
    """Up to the ties between components that keep it regular, so without them."""
    monkeypatch.setattr(mixture_fit, "COMMON_ROWS", 0.0)
    monkeypatch.setattr(mixture_fit, "FLOOR", 0.0)
    x = torch.cat([rows_with_missing_values(150, 3, 1, 0.2), 3 + rows_with_missing_values(150, 3, 2, 0.2)])
    values = []
    for steps in (1, 2, 5, 30):
        monkeypatch.setattr(mixture_fit, "STEPS", steps)
        mixture = fit_mixture(x, x.nan_to_num(1.5), 2, 0)
        total = 0.0
        for row in x.numpy():
            seen = ~np.isnan(row)
            parts = zip(*(p.numpy() for p in parts_of(mixture)), strict=True)
            total += np.log(
                sum(s * multivariate_normal(m[seen], c[np.ix_(seen, seen)]).pdf(row[seen]) for s, m, c in parts)
                if seen.any()
                else 1.0
            )
        values.append(total)
    assert values == sorted(values) and values[-1] > values[0] + 0.01
    torch.testing.assert_close(mixture.means.mean(1).sort().values.round(), torch.tensor([0.0, 3.0]).double())


def product(rows=300, seed=0):
    source = np.random.default_rng(seed)
    a, b = source.normal(size=(2, rows))
    return np.stack([a, b, a * b + 0.1 * source.normal(size=rows)], 1)


def test_mixtures_are_chosen_for_products_and_not_for_gaussian_columns():
    generator = torch.Generator().manual_seed(0)
    x = torch.as_tensor(product())
    x = (x - x.mean(0)) / x.std(0)
    hidden = hide(x, 0.2, (), generator)
    fitted = fit_gaussian(hidden, (), generator)
    assert min(fitted.counts.missing, fitted.counts.alone) > 1
    missing = hidden.isnan()

    def error(model):
        return float((model.entries(hidden)[0] - x)[missing].square().mean().sqrt())

    assert error(fitted.for_missing) < 0.8 * error(fitted.gaussian)
    correlated = torch.randn(300, 3, dtype=torch.float64, generator=generator) @ torch.tensor(
        [[1.0, 0.5, 0.2], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64
    )
    plain = fit_gaussian(correlated, (), generator)
    assert plain.counts == ChosenCounts() and plain.for_missing is plain.for_alone is plain.gaussian


def test_estimator_sees_outliers_inside_a_ring():
    """A Gaussian cannot: the middle of the ring is its mean."""
    source = np.random.default_rng(0)
    angle = source.uniform(0, 2 * np.pi, 600)
    ring = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.05 * source.normal(size=(600, 2))
    middle = 0.3 * source.normal(size=(100, 2))
    model = LaplacianAutoencoder(max_iter=2, random_state=0).fit(ring[:400])
    rows = np.concatenate([ring[400:], middle])
    scores = model.score_samples(rows)
    assert roc_auc_score(np.repeat([0, 1], [200, 100]), -scores) > 0.95
    gaussian = model._entries.network.linear
    assert isinstance(model._entries.model_alone, GaussianMixture)
    mean, variance = gaussian.entries(model._inputs(rows))
    alone = torch.distributions.Normal(mean, variance.sqrt()).log_prob(model._inputs(rows)).sum(1)
    assert roc_auc_score(np.repeat([0, 1], [200, 100]), -alone.numpy()) < 0.3
    np.testing.assert_allclose(model.explain(rows).scores, -scores)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).score_samples(rows), scores)
    assert model.is_drift(middle)


def test_rows_do_not_depend_on_each_other_and_samples_on_their_seed():
    table = product()
    model = LaplacianAutoencoder(max_iter=2, random_state=0).fit(table)
    new = product(40, 1)
    new[::3, 2], new[1::3, 0] = np.nan, np.nan
    imputed = model.impute(new, 200)
    assert isinstance(model._entries.linear, GaussianMixture)
    np.testing.assert_allclose(model.impute(new[[4]], 5).mean, imputed.mean[[4]], rtol=1e-10)
    np.testing.assert_allclose(model.score_samples(new[[4]]), model.score_samples(new)[[4]], rtol=1e-10)
    assert np.isfinite(imputed.samples).all()
    ratio = imputed.samples.std(0)[imputed.missing] / imputed.std[imputed.missing]
    assert 0.9 < np.median(ratio) < 1.1


def test_a_rare_group_that_stands_apart_is_no_ordinary_one():
    """Outliers among the training rows would have a component of their own; two large groups are both ordinary."""
    source = np.random.default_rng(0)
    x = torch.as_tensor(source.normal(size=(400, 4)))
    x[:20, :2] += 12
    x = (x - x.mean(0)) / x.std(0)
    mixture = fit_mixture(x, x, 2, 0)
    none, one = torch.zeros_like(x), torch.ones(4, dtype=torch.float64)
    truth = np.repeat([1, 0], [20, 380])

    def auroc(model):
        return roc_auc_score(truth, -model.log_entries(x, x, none, one, none).sum(1).numpy())

    assert auroc(mixture) < 0.9 < 0.97 < auroc(mixture_fit.discounted(mixture, x))
    halves = torch.cat([x[20:210], x[210:400] + 8])
    discount = mixture_fit.discounted(fit_mixture(halves, halves, 2, 0), halves).log_discount
    assert discount.tolist() == [0.0, 0.0]
    near = fit_mixture(x[20:], x[20:], 4, 0)  # parts of one Gaussian overlap
    assert mixture_fit.discounted(near, x[20:]).log_discount.tolist() == [0.0] * 4


def test_tables_with_categories_keep_the_gaussian():
    table = pd.DataFrame(product(), columns=list("abc")).assign(d=["x", "y"] * 150)
    model = LaplacianAutoencoder(max_iter=1, random_state=0).fit(table)
    assert not isinstance(model._entries.model_alone, GaussianMixture)

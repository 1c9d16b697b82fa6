"""Weighted candidates against brute force and against the conditional of a linear-Gaussian model in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from toy_models import LinearModel, projector

from marquis.autoencoders import Estimate, Reconstruction
from marquis.errors import DataError, NumericalError, UnsupportedOperationError
from marquis.tasks import imputation
from marquis.tasks.imputation_weighted import systematic

F64 = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def case(n: int = 5, width: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.rand(n, width, generator=seeded(3), dtype=F64)
    missing = torch.rand(n, width, generator=seeded(4)) < 0.4
    assert not missing.all(1).any()
    return x, missing, torch.rand(7, width, generator=seeded(5), dtype=F64)


class OwnNoise:
    """A decoder that also claims a variance of its own for every entry of every datum."""

    def __init__(self, model: LinearModel) -> None:
        self.model = model

    def reconstruct(self, x, samples=100, *, generator=None, keep=False):
        message = self.model.reconstruct(x, samples, generator=generator, keep=keep)
        return Reconstruction(**{**vars(message), "noise_variance": 0.05 + x.square()})


@pytest.mark.parametrize("own_noise", [False, True])
def test_equals_brute_force(own_noise):
    plain, _ = projector(scale=0.3)
    plain.noise_variance = 0.2
    model = OwnNoise(plain) if own_noise else plain
    x, missing, donors = case()
    result = imputation.impute_weighted(
        model, x, donors, missing, exponent=0.7, networks=3, samples=4, generator=seeded(), batch_size=2
    )
    _, _, first = plain.calls[0]
    assert torch.equal(first, donors[:2])
    generator = seeded()
    seed = int(torch.randint(2**62, (), generator=generator))
    answers = plain.reconstruct(donors, 3, generator=seeded(seed), keep=True).samples.flatten(0, 1)
    noise = (0.05 + donors.square() if own_noise else torch.full_like(donors, 0.2)).repeat(3, 1)
    for b in range(len(x)):
        logs = []
        for m, v in zip(answers, noise, strict=True):
            each = -0.5 * ((x[b] - m).square() / v + (2 * math.pi * v).log())
            logs.append(0.7 * each[~missing[b]].sum())
        weights = torch.stack(logs).softmax(0)
        hidden, mean = missing[b], weights @ answers
        variance = weights @ (answers - mean).square()
        assert result.mean[b][hidden] == pytest.approx(mean[hidden], rel=1e-10)
        assert result.variance[b][hidden] == pytest.approx(variance[hidden], rel=1e-8)
        total = variance + weights @ noise
        assert result.total_variance[b][hidden] == pytest.approx(total[hidden], rel=1e-8)
        assert float(result.effective[b]) == pytest.approx(float(1 / weights.square().sum()), rel=1e-10)
        for version in result.reconstructions[:, b]:
            assert float((answers - version).abs().amax(1).min()) < 1e-12  # a sample is one of the candidates
    assert result.candidates == 21 and result.samples.shape == (4, 5, 8)
    assert torch.equal(result.mean[~missing], x[~missing]) and float(result.total_variance[~missing].max()) == 0
    assert all(torch.equal(sample[~missing], x[~missing]) for sample in result.samples)


@pytest.mark.parametrize("exponent", [1.0, 0.3])
def test_conditional_of_a_linear_gaussian_model(exponent):
    # One code z with a flat prior on a fine grid, x = d z + noise. The trapezoid rule is exact for a Gaussian to
    # exp(-2 π² (sd / step)²), so the weighted mean and variance are those of z | observed in closed form.
    d = torch.tensor([0.5, -1.0, 2.0, 1.5], dtype=F64)
    noise = 0.3
    model = LinearModel(d[None] / d.square().sum(), d[:, None], noise_variance=noise)
    donors = torch.linspace(-9, 9, 2001, dtype=F64)[:, None] * d
    x = torch.tensor([[0.4, -0.7, 1.0, 0.0], [-0.2, 0.9, 0.0, -1.1]], dtype=F64)
    missing = torch.tensor([[False, False, True, True], [True, False, True, False]])
    result = imputation.impute_weighted(model, x, donors, missing, exponent=exponent, networks=1, samples=2000)
    for row in range(2):
        o, h = ~missing[row], missing[row]
        code = (d[o] @ x[row, o]) / d[o].square().sum()
        variance = noise / (exponent * d[o].square().sum())
        assert result.mean[row, h] == pytest.approx(d[h] * code, rel=1e-8)
        assert result.variance[row, h] == pytest.approx(d[h].square() * variance, rel=1e-8)
        assert result.total_variance[row, h] == pytest.approx(d[h].square() * variance + noise, rel=1e-8)
        drawn = result.samples[:, row, h]
        assert drawn.mean(0) == pytest.approx(d[h] * code, abs=0.01)  # equal steps: far closer than random draws
        assert drawn.var(0) == pytest.approx(d[h].square() * variance, rel=0.01)


def test_nothing_counts_with_exponent_zero_or_nothing_observed():
    model, _ = projector(scale=0.3)
    x, missing, donors = case()
    options = {"networks": 3, "samples": 21, "generator": seeded()}
    ignored = imputation.impute_weighted(model, x, donors, missing, exponent=0.0, **options)
    assert ignored.effective == pytest.approx(torch.full((5,), 21.0, dtype=F64), rel=1e-12)
    candidates = ignored.reconstructions[:, 0]
    assert len(candidates.unique(dim=0)) == 21  # as many steps as candidates of equal weight: each once
    for b in range(5):
        assert torch.equal(ignored.reconstructions[:, b], candidates)
        assert ignored.mean[b][missing[b]] == pytest.approx(candidates.mean(0)[missing[b]], rel=1e-12)
        spread = candidates.var(0, correction=0)
        assert ignored.variance[b][missing[b]] == pytest.approx(spread[missing[b]], rel=1e-10)
    everything = torch.ones(8, dtype=torch.bool)
    made = imputation.impute_weighted(model, x, donors, everything, exponent=1.0, **(options | {"generator": seeded()}))
    assert torch.equal(made.reconstructions, ignored.reconstructions)
    weighed = imputation.impute_weighted(model, x, donors, missing, exponent=1.0, **(options | {"generator": seeded()}))
    assert float(weighed.effective.min()) < 16  # and what was observed does count


def test_one_candidate_has_all_the_weight():
    model, p = projector()
    x, missing, donors = case()
    result = imputation.impute_weighted(model, x, donors[:1], missing, networks=1, samples=3)
    assert torch.equal(result.effective, torch.ones(5, dtype=F64))
    only = (donors[:1] @ p.T).expand_as(x)
    assert result.mean[missing] == pytest.approx(only[missing], rel=1e-12)
    assert float(result.variance.max()) < 1e-30
    assert all(torch.equal(version, result.reconstructions[0]) for version in result.reconstructions)


def test_single_precision_decides_like_double():
    # far from the origin with little noise: in single precision the squares multiplied out would have no digits left
    model, _ = projector(scale=0.05)
    x, missing, donors = case()
    model.noise_variance = 1e-4
    donors, x = donors + 30, x + 30
    exact = imputation.impute_weighted(model, x, donors, missing, networks=2, generator=seeded(1), exponent=0.01)
    single = LinearModel(model.encoder.float(), model.decoder.float(), 0.0, 1e-4)
    double = LinearModel(model.encoder.float().double(), model.decoder.float().double(), 0.0, 1e-4)
    rough = imputation.impute_weighted(single, x.float(), donors.float(), missing, exponent=1e-4)
    fine = imputation.impute_weighted(double, x.float().double(), donors.float().double(), missing, exponent=1e-4)
    assert rough.effective == pytest.approx(fine.effective, rel=1e-2)
    assert exact.effective.dtype == F64 and rough.samples.dtype == torch.float32


def test_nan_marks_what_is_missing():
    model, _ = projector(scale=0.3)
    x, missing, donors = case()
    by_mask = imputation.impute_weighted(model, x, donors, missing, generator=seeded())
    by_nan = imputation.impute_weighted(model, torch.where(missing, torch.nan, x), donors, generator=seeded())
    assert torch.equal(by_mask.samples, by_nan.samples) and torch.equal(by_mask.mean, by_nan.mean)
    assert torch.equal(by_mask.filled, by_nan.filled)
    with pytest.warns(DeprecationWarning, match="impute_weighted"):
        assert torch.equal(imputation.condition(model, x, donors, missing, generator=seeded()).mean, by_mask.mean)
    again = imputation.errors(by_mask, x)  # what holds for any imputation
    assert again.missing.shape == (5,) and bool((again.missing > 0).all())


def test_systematic_resampling_rounds_the_expected_count():
    weights = torch.rand(50, 6, generator=seeded(), dtype=F64)
    weights = weights / weights.sum(1, keepdim=True)
    rows = systematic(weights, 10, seeded(1))
    counts = torch.stack([torch.bincount(row, minlength=6) for row in rows]).double()
    assert bool(((counts - 10 * weights).abs() < 1).all())
    # over all first steps the counts are right on average: 1000 equally spaced first steps, by hand
    first = (torch.arange(1000, dtype=F64) + 0.5) / 1000
    steps = (first[:, None] + torch.arange(10, dtype=F64)) / 10
    total = torch.searchsorted(weights[0].cumsum(0), steps.flatten(), right=True)
    assert torch.bincount(total, minlength=6) / 1000 == pytest.approx(10 * weights[0], abs=0.002)
    sure = torch.tensor([[0.0, 0.0, 1.0]], dtype=F64)
    assert systematic(sure, 4, seeded()).tolist() == [[2, 2, 2, 2]]
    assert systematic(torch.tensor([[1.0, 0.0]], dtype=F64), 3, seeded()).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exponent": -0.1}, "exponent is -0.1"),
        ({"exponent": math.nan}, "exponent is nan"),
        ({"networks": 0}, "networks is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"donors": torch.rand(7, 6, dtype=F64)}, r"reference set must be complete data .* got \[7, 6\]"),
        ({"donors": torch.rand(0, 8, dtype=F64)}, "reference set must be complete data"),
        ({"donors": torch.full((2, 8), torch.nan, dtype=F64)}, "leave out samples with NaN"),
    ],
)
def test_bad_options_are_refused(options, message):
    model, _ = projector()
    x, missing, donors = case()
    with pytest.raises(DataError, match=message):
        imputation.impute_weighted(model, x, options.pop("donors", donors), missing, **options)


def test_models_without_a_likelihood_are_refused():
    class NoNoise(OwnNoise):
        def __init__(self, noise):
            super().__init__(projector()[0])
            self.noise = noise

        def reconstruct(self, x, samples=100, *, generator=None, keep=False):
            message = super().reconstruct(x, samples, generator=generator, keep=keep)
            noise = None if self.noise is None else torch.full_like(x, self.noise)
            return Reconstruction(**{**vars(message), "noise_variance": noise})

    x, missing, donors = case()
    with pytest.raises(UnsupportedOperationError, match="NoNoise has no noise variance"):
        imputation.impute_weighted(NoNoise(None), x, donors, missing)
    with pytest.raises(NumericalError, match="positive and finite"):
        imputation.impute_weighted(NoNoise(0.0), x, donors, missing)
    assert isinstance(projector()[0].encode(x), Estimate)
    with pytest.raises(UnsupportedOperationError, match="no method `reconstruct"):
        imputation.impute_weighted(object(), x, donors, missing)

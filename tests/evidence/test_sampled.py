"""Tuning by posterior samples: exact draws, effective parameters, the fixed point (docs/method/evidence.md)."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from evidence_oracle import F64, Regression, batches, build, generator, randn
from torch import nn

from marquis.errors import DataError, NumericalError
from marquis.evidence import TuningWarning, effective_parameters, tune
from marquis.evidence.adapted import adapted
from marquis.evidence.expectation import Exact, Noise, effective_by_samples, posterior_samples
from marquis.evidence.linear_model import LinearModel
from marquis.evidence.sampled import bounded
from marquis.likelihoods import Categorical, Gaussian
from marquis.priors import Prior


def class_problem(groups: str = "layer"):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    x = randn(14, 2, seed=1)
    y = torch.randint(3, (14,), generator=generator(1))
    return build(model, batches(x, y, 9), Categorical(), Prior(1.7, groups=groups))


def identity_noise(problem, tangent: LinearModel) -> Noise:
    """Deterministic twin: one "sample" per coordinate of all the noise, scaled so that means become sums."""
    size, columns = problem.layout.total, []
    for batch in tangent.batches():
        count = batch.f.shape[0]
        shape = tangent.likelihood.root_shape(batch.f)
        eye = torch.eye(count * shape.numel(), dtype=F64).reshape(-1, count, *shape)
        columns.append(batch.transposed_times(tangent.likelihood.apply_sqrt(batch.f, eye)))
    data = torch.cat(columns)
    total = size + len(data)
    prior = torch.cat([torch.eye(size, dtype=F64), torch.zeros(len(data), size, dtype=F64)]) * total**0.5
    data = torch.cat([torch.zeros(size, size, dtype=F64), data]) * total**0.5
    return Noise(prior, data, problem.curvature.diagonal())


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_solutions_have_exactly_the_posterior_covariance(scale):
    problem = class_problem()
    tangent = LinearModel(problem, "sampled")
    noise = identity_noise(problem, tangent)
    delta = problem.grouped_prior.vector()
    draws = posterior_samples(tangent.product, delta, scale, noise, tolerance=1e-13)
    matrix = scale * problem.curvature.to_dense() + torch.diag(delta)
    torch.testing.assert_close(draws.T @ draws / len(draws), torch.linalg.inv(matrix), rtol=1e-8, atol=1e-10)
    again = posterior_samples(tangent.product, delta, scale, noise, start=draws, tolerance=1e-8)
    assert torch.equal(again, draws)  # already solved
    nudged = posterior_samples(tangent.product, delta, scale, noise, start=draws * 1.1, tolerance=1e-13)
    torch.testing.assert_close(nudged, draws, rtol=1e-7, atol=1e-9)


def test_effective_parameters_from_samples_are_those_of_mackay():
    problem = class_problem()
    tangent = LinearModel(problem, "sampled")
    exact = effective_parameters(problem)
    delta = problem.grouped_prior.vector()
    draws = posterior_samples(tangent.product, delta, 1.0, identity_noise(problem, tangent), tolerance=1e-13)
    gamma = effective_by_samples(problem.grouped_prior, draws, tangent.product(draws))
    torch.testing.assert_close(gamma, exact, rtol=1e-8, atol=0)
    # And with random numbers: 2000 exact samples, within three standard errors.
    dense = problem.curvature.to_dense()
    random = Noise.draw(tangent, 2000, generator(5))
    draws = posterior_samples(lambda rows: rows @ dense, delta, 1.0, random, tolerance=1e-10)
    each = torch.zeros(2000, 2, dtype=F64).index_add(1, problem.grouped_prior.index, draws * (draws @ dense))
    error = each.std(0) / 2000**0.5
    assert bool(((each.mean(0) - exact).abs() < 3 * error).all())
    torch.testing.assert_close(effective_by_samples(problem.grouped_prior, draws, draws @ dense), each.mean(0))


def test_drawn_noise_has_the_covariance_of_the_curvature():
    problem = class_problem()
    drawn = Noise.draw(LinearModel(problem, "sampled"), 4000, generator(3))
    dense = problem.curvature.to_dense()
    variance = drawn.data.square().mean(0)
    error = dense.diagonal() * (2 / 4000) ** 0.5
    assert bool(((variance - dense.diagonal()).abs() < 5 * error + 1e-12).all())
    assert bool(((drawn.diagonal - dense.diagonal()).abs() < 5 * error + 1e-12).all())
    assert bool((drawn.prior.square().mean() - 1).abs() < 0.02)


@pytest.mark.filterwarnings("ignore::marquis.evidence.TuningWarning")
@pytest.mark.parametrize("groups", ["scalar", "tensor"])
def test_expectation_maximisation_ends_at_the_exact_evidence(groups, monkeypatch):
    # With the deterministic twin of the noise, the M-step is exact, and so is where it ends.
    data = Regression(n=12, inputs=3, outputs=2, size=12)
    data.place(3 * randn(8, seed=8))
    problem = data.problem(Prior(groups=groups))
    exact = adapted(problem, tolerance=1e-10, theta_tolerance=1e-18)
    monkeypatch.setattr(Noise, "draw", staticmethod(lambda tangent, samples, g: identity_noise(problem, tangent)))
    tuned = tune(
        replace(problem, curvature=None),
        "sampled",
        samples=1,  # not the exact expectation of few weights
        iterations=200,
        tolerance=1e-9,
        theta_tolerance=1e-18,
        solve_tolerance=1e-12,
    )
    assert tuned.converged
    torch.testing.assert_close(tuned.prior.precision, exact.prior.precision, rtol=1e-7, atol=0)
    torch.testing.assert_close(tuned.theta_star, exact.theta_star, rtol=1e-6, atol=1e-9)
    assert float(tuned.likelihood.noise_precision) == pytest.approx(float(exact.likelihood.noise_precision), rel=1e-7)


@pytest.mark.filterwarnings("ignore::marquis.evidence.TuningWarning")
def test_few_samples_come_close_and_the_seed_decides():
    data = Regression(n=60, outputs=2, size=30)
    problem = data.problem(Prior())
    exact = adapted(problem)
    bare = replace(problem, curvature=None)
    tuned = tune(bare, "sampled", samples=16, generator=generator(0))
    assert float(tuned.prior.precision) == pytest.approx(float(exact.prior.precision), rel=0.2)
    assert float(tuned.likelihood.noise_precision) == pytest.approx(float(exact.likelihood.noise_precision), rel=0.1)
    again = tune(bare, "sampled", samples=16, generator=generator(0))
    other = tune(bare, "sampled", samples=16, generator=generator(1))
    assert torch.equal(tuned.prior.precision, again.prior.precision)
    assert not torch.equal(tuned.prior.precision, other.prior.precision)
    assert tuned.log_evidence is None and "sampled EM (16 samples)" in str(tuned)


@pytest.mark.filterwarnings("ignore::marquis.evidence.TuningWarning")
def test_g_prior_scales_with_the_jacobian(monkeypatch):
    # Measuring an input in other units must not change the model: the g-prior follows, the plain prior does not.
    units = torch.tensor([1.0, 10.0, 0.1, 1.0], dtype=F64)
    results = {}
    for g_prior in (True, False):
        for name, factor in (("before", torch.ones(4, dtype=F64)), ("after", units)):
            data = Regression(n=20, bias=False, size=20)
            x = data.x * factor
            model = nn.Linear(4, 1, bias=False).double()
            problem = build(model, batches(x, data.y, 20), Gaussian(1.0))
            monkeypatch.setattr(
                Noise,
                "draw",
                staticmethod(lambda tangent, samples, g, problem=problem: identity_noise(problem, tangent)),
            )
            tuned = tune(
                problem, "sampled", samples=1, g_prior=g_prior, iterations=60, tolerance=1e-9, theta_tolerance=1e-16,
                solve_tolerance=1e-11, noise=False,
            )  # fmt: skip
            assert tuned.converged
            matrix = problem.curvature.to_dense() + torch.diag(tuned.prior.vector())
            results[g_prior, name] = torch.einsum("ni,ij,nj->n", x, torch.linalg.inv(matrix), x)
    torch.testing.assert_close(results[True, "after"], results[True, "before"], rtol=1e-3, atol=0)  # up to the jitter
    assert float((results[False, "after"] / results[False, "before"] - 1).abs().max()) > 0.01


def test_g_prior_gives_one_precision_per_weight():
    problem = class_problem("scalar")
    with pytest.raises(NumericalError, match="did not converge"):
        tune(problem, "sampled", g_prior=True, iterations=3, generator=generator(0))
    tuned = tune(problem, "sampled", g_prior=True, iterations=100, generator=generator(0))
    assert tuned.prior.precision.shape == (problem.layout.total,) and tuned.effective_parameters.shape == (1,)
    assert any("g-prior" in note for note in tuned.notes)
    assert any("still change" in note for note in tuned.notes) == (not tuned.converged)


def test_at_the_networks_weights_it_is_mackays_fixed_point():
    """No search for theta-star: the same evidence as `tune("evidence")`, here with an exact expectation."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = randn(30, 2, seed=4)
    y = torch.sin(x[:, :1]) + 0.1 * randn(30, 1, seed=5)
    problem = build(model, batches(x, y, 11), Gaussian(5.0), Prior(1.3, groups="layer"))
    exact = tune(problem, "evidence", tolerance=1e-8)
    ours = tune(problem, "sampled", at="network", tolerance=1e-8, iterations=500)
    torch.testing.assert_close(ours.prior.precision, exact.prior.precision, rtol=1e-4, atol=0)
    assert float(ours.likelihood.noise_precision) == pytest.approx(float(exact.likelihood.noise_precision), rel=1e-4)
    assert ours.theta_star is None
    other = tune(problem, "sampled", tolerance=1e-8, iterations=500)
    assert float((other.prior.precision / exact.prior.precision - 1).abs().max()) > 0.01
    with pytest.raises(DataError, match="optimum"):
        tune(problem, "sampled", at="somewhere")


def test_nothing_is_changed_and_bad_numbers_are_refused():
    problem = class_problem()
    before = {name: p.clone() for name, p in problem.model.named_parameters()}
    state = torch.random.get_rng_state()
    with pytest.raises(NumericalError, match="iterations"):
        tune(problem, "sampled", samples=2, iterations=1, generator=generator(0))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(p, before[name]) for name, p in problem.model.named_parameters())
    with pytest.raises(DataError, match="at least 1"):
        tune(problem, "sampled", samples=0)


@pytest.mark.parametrize("groups", ["scalar", "layer", "tensor"])
def test_few_weights_have_their_effective_parameters_exactly(groups):
    problem = class_problem(groups)
    prior = problem.grouped_prior
    gamma, error = Exact(LinearModel(problem, "sampled"))(prior, prior.vector(), 1.0)
    torch.testing.assert_close(gamma, effective_parameters(problem), rtol=1e-8, atol=0)
    assert not bool(error.any())
    # Where the prior decides, P - delta tr(Sigma) would have no digits left: gamma is H/delta to first order.
    strong = prior.with_precision(torch.full_like(prior.precision, 1e8))
    tiny, _ = Exact(LinearModel(problem, "sampled"))(strong, strong.vector(), 1.0)
    expected = torch.zeros_like(tiny).index_add(0, prior.index, problem.curvature.diagonal() / 1e8)
    torch.testing.assert_close(tiny, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("groups", ["scalar", "tensor"])
def test_tiny_problems_are_safe_by_default(groups):
    # Twelve data, eight weights: eight samples are wrong by tens of per cent, and say so; the default is exact.
    problem = Regression(n=12, inputs=3, outputs=2, size=12).problem(Prior(groups=groups))
    exact = adapted(problem, tolerance=1e-8, theta_tolerance=1e-16)
    bare = replace(problem, curvature=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = tune(bare, "sampled", tolerance=1e-7, theta_tolerance=1e-16, iterations=200)
    assert tuned.converged and "exact" in tuned.method
    torch.testing.assert_close(tuned.prior.precision, exact.prior.precision, rtol=1e-5, atol=0)
    assert float(tuned.likelihood.noise_precision) == pytest.approx(float(exact.likelihood.noise_precision), rel=1e-5)
    with pytest.warns(TuningWarning, match="leave samples= out"):
        noisy = tune(bare, "sampled", samples=8, generator=generator(2))
    assert float((noisy.prior.precision / exact.prior.precision - 1).abs().max()) > 0.1
    assert any("standard error" in note for note in noisy.notes)


def test_more_effective_parameters_than_labels_do_not_run_off():
    """Samples can estimate more effective parameters than there are labels: the noise precision then fell to 1e-8."""
    for seed in range(2):
        torch.manual_seed(seed)
        layers = [nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 10), nn.Tanh(), nn.Linear(10, 1)]
        x = randn(20, 10, seed=seed)
        y = 2 * x[:, :1] + 0.05 * randn(20, 1, seed=9)
        problem = build(nn.Sequential(*layers).double(), batches(x, y, 20), Gaussian(1.0), Prior(1.0, groups="tensor"))
        try:
            tuned = tune(problem, "sampled", samples=8, iterations=12, generator=generator(0))
        except NumericalError as error:
            assert "did not converge" in str(error)
        else:
            assert float(tuned.likelihood.scalar_noise_precision) > 1e-6
    prior = problem.grouped_prior
    gamma = bounded(torch.full_like(prior.precision, 50.0), prior, 20.0)
    assert float(gamma.sum()) == pytest.approx(19.0) and bool((gamma <= prior.sizes).all())

"""The studies of the Laplacian autoencoder's Table 2 and Figures 1, 7 and 14 at quick size, and their arithmetic."""

from __future__ import annotations

import json
import math
import re
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr

from marquis.autoencoders import Autoencoder, fit_posthoc, for_data
from marquis.errors import MarquisError
from marquis.priors import BoundPrior
from marquis.report.latent_map import OVER_SAMPLES, LatentMap
from marquis_experiments.common.study import Settings
from marquis_experiments.laplacian_autoencoder.figure1_latent_map import study as latent_map
from marquis_experiments.laplacian_autoencoder.figure7_scaling import study as scaling
from marquis_experiments.laplacian_autoencoder.figure14_vae_variance import study as vae
from marquis_experiments.laplacian_autoencoder.table2_hessians import study as hessians
from marquis_experiments.laplacian_autoencoder.table2_hessians.study import log_density, scores, with_unit_noise


def results_of(page: Path) -> dict:
    """Return a run's results, after a look whether its pictures are there."""
    for name in re.findall(r"\]\(([\w.-]+\.png)\)", page.read_text()):
        assert (page.parent / name).read_bytes().startswith(b"\x89PNG")
    return json.loads((page.parent / "results.json").read_text())


@pytest.fixture(scope="module")
def posterior():
    """A small float64 autoencoder with a post-hoc posterior, and its data."""
    x = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    encoder, decoder = for_data((1, 4, 4), 2, 0.1, seed=0)
    plain = Autoencoder(encoder.double(), decoder.double())
    return fit_posthoc(plain, x.split(10), "diagonal", "exact", progress=False), x, plain


# Scores


def test_scores_against_the_kept_draws(posterior):
    own, x, _ = posterior
    test, train = x[:15], x[15:25]
    result = scores(own, test, train, 7, seed=3)
    prediction = own.reconstruct(test, 7, generator=torch.Generator().manual_seed(3), keep=True)
    each = (prediction.samples - test).square().flatten(2).sum(2)
    assert result["nlp"] == pytest.approx(float(each.mean()), rel=1e-12)
    assert result["mse"] == pytest.approx(
        float((prediction.samples.mean(0) - test).square().flatten(1).sum(1).mean()), rel=1e-12
    )
    assert result["variance"] == pytest.approx(result["nlp"] - result["mse"], rel=1e-9)  # bias and variance
    assert result["log_p"] == pytest.approx(float(prediction.log_prob.mean()), rel=1e-10)
    assert result["log_p_error"] == pytest.approx(float(prediction.log_prob.std()) / 15**0.5, rel=1e-10)
    assert result["noise_precision"] == pytest.approx(float(own.likelihood.noise_precision), rel=1e-12)
    assert result["temperature"] == 1 and result["draws"] == 7


def test_refitted_noise_is_the_most_likely_one_on_training_images(posterior):
    own, x, _ = posterior
    test, train = x[:15], x[15:25]
    result = scores(own, test, train, 5, seed=1)
    drawn = own.reconstruct(train, 5, generator=torch.Generator().manual_seed(1), keep=True).samples
    beta = torch.tensor(result["noise_refitted"], dtype=torch.float64, requires_grad=True)
    torch.distributions.Normal(drawn, beta.rsqrt()).log_prob(train).sum().backward()
    assert abs(float(beta.grad * beta.detach())) < 1e-9 * drawn.numel()  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    on_test = own.reconstruct(test, 5, generator=torch.Generator().manual_seed(1), keep=True).samples
    each = torch.distributions.Normal(on_test, beta.detach().rsqrt()).log_prob(test).flatten(2).sum(2)
    mixture = torch.logsumexp(each, 0) - math.log(5)
    assert result["log_p_refitted"] == pytest.approx(float(mixture.mean()), rel=1e-10)


def test_log_density_of_one_network_is_a_gaussian():
    error = torch.tensor([[2.0, 5.0]], dtype=torch.float64)
    expected = -0.5 * 3 * math.log(2 * math.pi / 4.0) - 0.5 * 4.0 * error[0]
    assert torch.allclose(log_density(error, 3, 4.0), expected, rtol=1e-14)


def test_a_plain_autoencoder_has_one_draw_and_no_variance(posterior):
    _, x, plain = posterior
    result = scores(plain, x[:10], x[10:20], 50, seed=0)
    assert result["draws"] == 1 and result["variance"] == 0 and result["nlp"] == result["mse"]
    assert result["temperature"] is None


def test_unit_noise_is_what_a_fit_with_fixed_noise_finds(posterior):
    _, x, plain = posterior
    made = with_unit_noise(fit_posthoc(plain, x.split(10), "diagonal", "exact", progress=False), x)
    direct = fit_posthoc(plain, x.split(10), "diagonal", "exact", tune=False, progress=False)
    assert direct.laplace is not None and made.laplace is not None
    direct.laplace.tune("evidence", noise=False)
    assert float(made.likelihood.noise_precision) == 1  # pyright: ignore[reportAttributeAccessIssue]
    ours, theirs = made.laplace.prior, direct.laplace.prior
    assert isinstance(ours, BoundPrior) and isinstance(theirs, BoundPrior)
    # Two starts of one search: as close as its tolerance lets them come.
    assert float(ours.precision) == pytest.approx(float(theirs.precision), rel=1e-2)


def test_hessians_and_latent_maps_quick(tmp_path, monkeypatch):
    page = hessians.STUDY.run("quick", tmp_path / "hessians", say=lambda _: None)
    rows = {row["name"]: row for row in results_of(page)["rows"]}
    assert set(rows) == set(hessians.ROWS)
    for row in rows.values():
        assert row["variance"] == pytest.approx(row["nlp"] - row["mse"], rel=1e-3, abs=1e-4)
    # A network sampled after training is worse than one that was trained with its posterior.
    assert rows["posthoc-exact-unit-noise"]["nlp"] > rows["posthoc-exact"]["nlp"] > rows["online-sketched"]["nlp"]
    monkeypatch.setattr(hessians, "scores", lambda *_: pytest.fail("computed twice"))
    text = page.read_text()
    assert hessians.STUDY.run("quick", tmp_path / "hessians", say=lambda _: None).read_text() == text
    # The maps use the models of the table, which are in the folder that both share.
    lines: list[str] = []
    maps = results_of(latent_map.STUDY.run("quick", tmp_path / "latent-map", say=lines.append))["models"]
    assert not any("trained" in line for line in lines)
    assert all(one["near"] > 0 and one["ratio"] == pytest.approx(one["far"] / one["near"]) for one in maps.values())


def test_vaes_again_are_counted_by_length(tmp_path):
    rows = [
        {"epochs": epochs, "ratio": ratio, "rank_correlation": correlation}
        for epochs, ratio, correlation in ((8, 2.0, 0.5), (24, 0.5, 0.1), (8, 1.5, -0.2))
    ]
    found = latent_map.again(rows)
    assert (found["grown"], found["every"]) == (1, 3)  # a ratio above one and a positive correlation
    assert found["lengths"] == [
        {"epochs": 8, "ratios": "2.00 (0.50), 1.50 (-0.20)"},
        {"epochs": 24, "ratios": "0.50 (0.10)"},
    ]
    run = latent_map.STUDY.start("quick", tmp_path, say=lambda _: None, settings={"again": ((1, 3),)})
    images = latent_map.Images.load(run.settings.recipe, run.data_dir)
    (row,) = latent_map.vaes_again(run, images)
    assert (row["epochs"], row["seed"]) == (1, 3) and row["ratio"] == pytest.approx(row["far"] / row["near"])


def a_map(std: torch.Tensor, points: torch.Tensor) -> LatentMap:
    return LatentMap(points, std, (-1.0, 3.0, 0.0, 1.0), ("a", "b"), OVER_SAMPLES)


def test_near_and_far_of_a_map_that_is_the_distance():
    generator = torch.Generator().manual_seed(0)
    rows, columns = 9, 13
    std = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    points = torch.tensor([[-0.77, 0.13], [1.31, 0.58]], dtype=torch.float64)
    distances = torch.empty(rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            across, up = j / (columns - 1), i / (rows - 1)
            distances[i, j] = min(math.hypot(across - (float(x) + 1) / 4, up - float(y)) for x, y in points)
    grows, falls = (latent_map.near_and_far(a_map(one, points)) for one in (1 + distances, 2 - distances))
    assert grows["rank_correlation"] == pytest.approx(1) and grows["ratio"] > 1
    assert falls["rank_correlation"] == pytest.approx(-1) and falls["ratio"] < 1
    noise = latent_map.near_and_far(a_map(std, points))
    assert noise["rank_correlation"] == pytest.approx(spearmanr(distances.flatten(), std.flatten())[0], rel=1e-9)
    assert latent_map.grows({"failed": None, **grows}) and not latent_map.grows({"failed": None, **falls})


def test_expectation_maximisation_never_loses_likelihood_and_ends_at_a_stationary_point():
    x = vae.draw_data(0)
    z, log_weights = vae.grid()
    assert float(log_weights.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    means = vae.SPREAD * z
    rounds = vae.maximise(x, means, log_weights, torch.zeros_like(z), 400)
    values = torch.stack([vae.log_joint(x, means, log_weights, s).logsumexp(1).mean() for s in rounds])
    assert bool((values.diff() > -1e-12).all()) and values[-1] > values[0] + 0.1
    free = rounds[-1] > vae.MIN_LOG_SIGMA  # the others are held by the floor
    last = rounds[-1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(vae.log_joint(x, means, log_weights, last).logsumexp(1).mean(), last)
    assert float(gradient[free].abs().max()) < 1e-3
    # Far outside, responsibilities underflow in ordinary numbers; the variance is still about the squared distance.
    distance = (means.unsqueeze(1) - x).abs()
    sigma = rounds[-1].exp()
    for end in (0, -1):
        assert float(distance[end].min()) <= float(sigma[end]) <= float(distance[end].max())


def test_the_mixtures_variances_grow_away_from_the_data_and_the_vaes_less_so(tmp_path: Path):
    row = results_of(vae.STUDY.run("quick", tmp_path, say=lambda _: None))["rows"][0]
    mixture, network, bound = row["mixture"], row["network"], row["vae"]
    assert mixture["near"] < vae.START < mixture["outside"]
    assert mixture["rank_correlation"] > 0.9
    assert network["outside"] > 2 * bound["outside"]  # same network, same start: the objective makes the difference
    assert mixture["log_likelihood"] >= network["log_likelihood"] >= bound["log_likelihood"]


def test_scaling_measures_every_method_next_to_a_plain_step(tmp_path: Path):
    rows = results_of(scaling.STUDY.run("quick", tmp_path, say=lambda _: None))["rows"]
    assert [row["method"] for row in rows] == list(scaling.METHODS)
    for row in rows:
        assert [r["size"] for r in row["rows"]] == ([8] if row["method"] in scaling.EXACT else [8, 16])
        for r in row["rows"]:
            assert r["seconds"] > 0 and r["plain_seconds"] > 0 and r["turns"] >= 3


def test_scaling_measures_in_a_process_of_its_own_and_says_that_it_stopped(monkeypatch: pytest.MonkeyPatch):
    settings = Settings(seconds=0.01, turns=3)
    assert [row["size"] for row in scaling.in_a_process("approximate", [8], settings)] == [8]

    def stopped(*_, **__):
        raise BrokenProcessPool("terminated abruptly")

    monkeypatch.setattr(scaling, "ProcessPoolExecutor", stopped)
    with pytest.raises(MarquisError, match="measures exact has stopped: terminated abruptly"):
        scaling.in_a_process("exact", [8], settings)


def test_the_network_keeps_the_resolution_and_exponents_are_of_pixels():
    x = torch.rand(1, 3, 9, 9)
    assert scaling.network()(x).shape == x.shape
    rows = [{"size": s, "seconds": 3e-6 * s**2, "mb": 2.0 * s**4} for s in (8, 16, 32, 64)]
    assert scaling.slope(rows, "seconds") == pytest.approx(1.0)
    assert scaling.slope(rows, "mb") == pytest.approx(2.0)
    assert math.isnan(scaling.slope(rows[:1], "mb"))

"""The front door: training, both posteriors, presets, baselines, resuming, and bad input."""

from __future__ import annotations

import math

import pytest
import torch
from tests.tomography.conftest import squares

import marquis as mq
from marquis.errors import (
    DataError,
    MemoryBudgetError,
    ModelMismatchError,
    NumericalError,
    UnsupportedOperationError,
)
from marquis.tomography import (
    Inpainting,
    ParallelBeam,
    UNet,
    constant,
    deep_image_prior,
    dropout,
    ensemble,
    fbp,
    psnr,
    reconstruct,
    scores,
    simulate,
)
from marquis.tomography.result import noise_floor
from marquis.tomography.scores import correlation
from marquis.tomography.training import default_steps, tv_weight_for
from marquis.tomography.unet import default_network, weight_blocks

GEOMETRY = ParallelBeam(10, 8, detectors=16)
NETWORK = UNet((3, 4), range=(0.0, 1.0))


@pytest.fixture(scope="module")
def data():
    return simulate(squares(10), GEOMETRY, noise=0.05, generator=torch.Generator().manual_seed(0))


def quick(data, **options):
    options = {"noise": 0.05, "range": (0.0, 1.0), "steps": 60, "network": NETWORK, "progress": False, **options}
    return reconstruct(data, GEOMETRY, **options)


def test_five_lines():
    geometry = mq.tomography.ParallelBeam(12, angles=6)
    generator = torch.Generator().manual_seed(0)
    y = mq.tomography.simulate(squares(12), geometry, noise=0.05, generator=generator)
    result = mq.tomography.reconstruct(
        y, geometry, noise=0.05, range=(0, 1), steps=300, generator=generator, progress=False
    )
    assert result.image.shape == result.std.shape == (12, 12)
    assert psnr(result.image, squares(12), 1.0) > psnr(fbp(y, geometry), squares(12), 1.0) + 1
    low, high = result.interval(0.95)
    assert 0.7 < float(((squares(12) >= low) & (squares(12) <= high)).double().mean()) <= 1
    assert result.sample(4, generator=generator).shape == (4, 12, 12)
    assert result.covariance.shape == (144, 144)
    assert "noise variance" in result.report()


def test_the_same_seed_gives_the_same_result(data):
    state = torch.get_rng_state()
    first = quick(data, generator=torch.Generator().manual_seed(3))
    second = quick(data, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first.image, second.image) and torch.equal(first.std, second.std)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone
    options = {"tv": 1e-4, "range": (0.0, 1.0), "steps": 3, "progress": False}
    images = [
        deep_image_prior(data, GEOMETRY, generator=torch.Generator().manual_seed(seed), **options).image
        for seed in (3, 4)
    ]
    assert not torch.equal(*images)


def test_the_users_network_is_left_alone(data):
    before = {name: value.clone() for name, value in NETWORK.state_dict().items()}
    quick(data)
    assert all(torch.equal(before[name], value) for name, value in NETWORK.state_dict().items())


def test_both_modes_agree(data):
    exact = quick(data, posterior="exact", groups="scalar", predcp=False)
    iterative = quick(data, posterior="iterative", samples=64, predcp=False)
    torch.testing.assert_close(exact.image, iterative.image, rtol=1e-6, atol=1e-7)
    assert iterative.noise_variance == pytest.approx(exact.noise_variance, rel=1e-2)
    assert float((iterative.variance / exact.variance).mean()) == pytest.approx(1.0, abs=0.2)
    with pytest.raises(UnsupportedOperationError, match="exact"):
        _ = iterative.covariance


def test_paper_preset(data):
    result = quick(data, preset="paper")
    assert result.tuned is not None and result.tuned.lengthscale is not None
    with pytest.raises(UnsupportedOperationError, match="exact"):
        quick(data, preset="paper", posterior="iterative")


def test_auto_falls_back_and_says_so(data):
    result = quick(data, memory=1000, samples=2)
    assert "iterative" in result.method
    assert any("iterative" in note for note in result.notes)


def test_exact_that_does_not_fit(data):
    with pytest.raises(MemoryBudgetError, match=r"iterative.*minutes"):
        quick(data, memory=1000, posterior="exact")


def test_what_is_not_offered_is_refused_before_training(data, monkeypatch):
    import marquis.tomography.reconstruction as module

    tangent = quick(data, steps=2, evidence="tangent")
    assert len(tangent.tuned.variance.unique()) == 1
    monkeypatch.setattr(module, "deep_image_prior", None)
    for options, error in (
        ({"memory": 1000, "posterior": "exact"}, MemoryBudgetError),
        ({"memory": 1000, "preset": "paper"}, UnsupportedOperationError),
        ({"preset": "paper", "posterior": "iterative"}, UnsupportedOperationError),
        ({"evidence": "tangent", "groups": "block"}, UnsupportedOperationError),
    ):
        with pytest.raises(error):
            quick(data, **options)


def test_predcp_is_used_on_request_and_an_unfinished_training_is_said(data):
    """TV-PredCP is off unless asked for, in both modes; a residual above the noise is a note."""
    for options in ({}, {"posterior": "iterative", "samples": 2}):
        plain, narrow = (quick(data, steps=20, **options, predcp=predcp) for predcp in (False, True))
        assert torch.equal(quick(data, steps=20, **options).std, plain.std)
        assert not torch.equal(narrow.std, plain.std)
        assert "PredCP" in narrow.report() and "PredCP" not in plain.report()
    exact = quick(data, steps=20)
    assert any("times the noise variance after 20 steps: raise steps=" in note for note in exact.notes)
    assert not any("raise steps" in note for note in quick(data, steps=20, stop_at=None, noise=3.0).notes)


def test_training_stops_at_the_noise(data):
    variance = float((0.05 * GEOMETRY.forward(squares(10)).abs().mean()) ** 2)
    options = {"tv": 1e-4, "range": (0.0, 1.0), "steps": 2000, "progress": False}
    trained = deep_image_prior(data, GEOMETRY, noise_variance=variance, stop_at=2.0, **options)
    assert trained.stopped == "residual" and len(trained.losses) < 2000
    assert trained.residual == pytest.approx(2.0 * variance, rel=0.2)
    assert trained.residual <= 2.0 * variance * 1.001


def test_larger_images_are_trained_longer():
    """2500 steps end far above the noise at 128 pixels (docs/experiments/tomography.md)."""
    assert [default_steps(ParallelBeam(size, 4)) for size in (28, 32, 33, (20, 128))] == [2500, 2500, 7500, 7500]


def test_a_saturated_output_starts_again(monkeypatch):
    """Seeds 0 and 1 of this problem end in an image of zeros; other initial weights do not."""
    mask = torch.rand(10, 10, generator=torch.Generator().manual_seed(0)) < 0.6
    problem = Inpainting(mask)
    y = simulate(squares(10), problem, noise=0.05, generator=torch.Generator().manual_seed(1))
    options = {"tv": 3.7e-6, "range": (0, 1), "steps": 300, "progress": False}
    for seed in (0, 1):
        trained = deep_image_prior(y, problem, generator=torch.Generator().manual_seed(seed), **options)
        assert trained.residual < 0.05 * float(y.square().mean())
    for bias in (-200.0, 200.0, -9.0):  # the last is not quite flat: pixels differ by a thousandth
        dead = UNet((3, 4), range=(0.0, 1.0))
        torch.nn.init.constant_(dead.out.bias, bias)
        with pytest.raises(NumericalError, match="saturated"):
            deep_image_prior(y, problem, network=dead, **options | ({"learning_rate": 1e-6} if bias == -9.0 else {}))


def test_training_resumes(data, tmp_path):
    file = tmp_path / "training.safetensors"
    options = {"tv": 1e-4, "range": (0.0, 1.0), "steps": 40, "network": NETWORK, "progress": False}
    whole = deep_image_prior(data, GEOMETRY, **options)

    class Stop(Exception):
        pass

    def interrupt(step, image, residual):
        if step == 25:
            raise Stop

    import marquis.tomography.training as training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "SAVE_EVERY", 0.0)
        with pytest.raises(Stop):
            deep_image_prior(data, GEOMETRY, checkpoint=file, watch=interrupt, **options)
    steps = []
    resumed = deep_image_prior(data, GEOMETRY, checkpoint=file, watch=lambda step, *_: steps.append(step), **options)
    assert steps[0] == 25  # the checkpoint is of step 24
    torch.testing.assert_close(resumed.image, whole.image, rtol=1e-6, atol=1e-7)
    assert len(resumed.losses) == 40
    with pytest.raises(ModelMismatchError, match="steps"):
        deep_image_prior(data, GEOMETRY, checkpoint=file, **{**options, "steps": 50})
    with pytest.raises(ModelMismatchError, match="network"):
        deep_image_prior(data, GEOMETRY, checkpoint=file, **{**options, "network": UNet((4, 4))})


def test_reconstruction_resumes_in_a_folder_of_its_own(data, tmp_path):
    first = quick(data, checkpoint=tmp_path, generator=torch.Generator().manual_seed(1))
    again = quick(data, checkpoint=tmp_path, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.image, again.image)
    assert len(list(tmp_path.iterdir())) == 1
    quick(data + 0.1, checkpoint=tmp_path, generator=torch.Generator().manual_seed(1))
    assert len(list(tmp_path.iterdir())) == 2


def test_another_operator_or_network_does_not_resume(data, tmp_path):
    """The same readings of other angles, or another network, are another reconstruction."""

    def run(geometry, network=NETWORK):
        options = {"noise": 0.05, "range": (0.0, 1.0), "steps": 20, "progress": False}
        return reconstruct(data, geometry, network=network, checkpoint=tmp_path, **options)

    turned = ParallelBeam(10, GEOMETRY.angles + 0.2, detectors=16)
    first = run(GEOMETRY)
    assert not torch.equal(run(turned).image, first.image)
    other = UNet((3, 4), range=(0.0, 1.0))
    assert not torch.equal(run(GEOMETRY, other).image, first.image)
    assert len(list(tmp_path.iterdir())) == 3


def test_the_eigenpairs_of_the_iterative_mode_are_kept(data, tmp_path, monkeypatch):
    """A run that was stopped after its eigenpairs does not compute them again, and has the same samples."""
    import marquis.tomography.posterior as module

    options = {"posterior": "iterative", "samples": 3, "steps": 20, "checkpoint": tmp_path}
    whole = quick(data, **options)
    (folder,) = tmp_path.iterdir()
    (folder / "samples.safetensors").unlink()
    monkeypatch.setattr(module, "approximate", None)
    again = quick(data, **options)
    torch.testing.assert_close(again.deviations, whole.deviations)


def test_without_a_range_images_are_not_negative(data):
    result = quick(10 * data, range=None, network=UNet((3, 4), range=None, scale=10.0))
    assert float(result.image.min()) >= 0
    assert float(result.image.max()) > 1.5


def test_another_problem_through_the_same_door():
    mask = torch.rand(10, 10, generator=torch.Generator().manual_seed(0)) < 0.6
    problem = Inpainting(mask)
    y = simulate(squares(10), problem, noise=0.05, generator=torch.Generator().manual_seed(1))
    result = reconstruct(y, problem, noise=0.05, range=(0, 1), steps=300, progress=False)
    assert float(result.std[~mask].mean()) > float(result.std[mask].mean())


def test_baselines(data):
    options = {"tv": 1e-4, "range": (0.0, 1.0), "steps": 30, "progress": False}
    generator = torch.Generator().manual_seed(0)
    dropped = dropout(data, GEOMETRY, rate=0.2, samples=20, generator=generator, **options)
    several = ensemble(data, GEOMETRY, members=3, generator=generator, **options)
    trained = deep_image_prior(data, GEOMETRY, generator=generator, **options)
    flat = constant(trained, GEOMETRY, noise_variance=0.5)
    for result in (dropped, several):
        assert float(result.variance.mean()) > 0
        assert result.sample(2, generator=generator).shape == (2, 10, 10)
    assert torch.allclose(flat.std, torch.full((10, 10), math.sqrt(0.5 * noise_floor(GEOMETRY))).double())
    row = scores(flat, squares(10))
    assert row["correlation"] == 0 and "log_density" not in row
    assert several.deviations.shape == (3, 100)
    with pytest.raises(DataError, match="same initial weights"):
        ensemble(data, GEOMETRY, network=NETWORK, **options)


def test_scores_of_a_known_gaussian(data):
    generator = torch.Generator().manual_seed(0)
    trained = deep_image_prior(data, GEOMETRY, tv=1e-4, steps=2, network=NETWORK, progress=False)
    flat = constant(trained, GEOMETRY, noise_variance=0.04 / noise_floor(GEOMETRY))
    truth = flat.image + 0.2 * torch.randn(10, 10, generator=generator, dtype=torch.float64)
    row = scores(flat, truth, span=1.0)
    assert row["coverage"] == pytest.approx(0.95, abs=0.06)
    assert row["squared_z"] == pytest.approx(1.0, abs=0.4)
    assert row["psnr"] == pytest.approx(-20 * math.log10(0.2), abs=1.5)
    error = (truth - flat.image).flatten()
    assert correlation(error, 2 * error + 1) == pytest.approx(1.0)


def test_default_networks():
    def count(network):
        return sum(network.get_parameter(name).numel() for names in weight_blocks(network).values() for name in names)

    assert count(default_network((28, 28), (0, 1))) == 19_872
    assert count(default_network((128, 128), (0, 1))) == 97_824
    network = default_network((256, 256), None)
    assert network.channels == (32,) * 5
    image = torch.rand(1, 1, 27, 30)
    assert default_network((27, 30), (0, 2.5))(image).shape == image.shape


def test_the_floor_of_kmnist_geometry():
    assert noise_floor(ParallelBeam(28, 20)) == pytest.approx(0.0031, abs=1e-4)


def test_weight_from_the_noise():
    assert tv_weight_for(0.04, 820) == pytest.approx(2 * 0.04 / 820)


class Wrong:
    image_shape, data_shape = (10, 10), (10, 10)

    def forward(self, images):
        return images

    def adjoint(self, data):
        return 1.1 * data


def with_nan(data):
    data = data.clone()
    data[3, 4] = float("nan")
    return data


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda y: y[:5], {}, r"\(5, 16\).*\(8, 16\)"),
        (with_nan, {}, r"1 NaN or infinite entries, the first at \(3, 4\)"),
        (lambda y: y, {"noise": -0.1}, "noise is -0.1"),
        (lambda y: y, {"noise": None}, "neither noise nor tv"),
        (lambda y: y, {"noise": 0.0}, "pass tv="),
        (lambda y: y, {"noise": -0.1, "tv": 1e-4}, "noise is -0.1"),
        (lambda y: y, {"tv": -1.0}, "tv is -1"),
        (lambda y: 0 * y, {}, "zero"),
        (lambda y: y, {"range": (1.0, 0.0)}, "range"),
        (lambda y: y, {"preset": "papier"}, "preset"),
        (lambda y: y, {"posterior": "laplace"}, "posterior"),
        (lambda y: y, {"evidence": "other"}, "evidence"),
        (lambda y: y, {"steps": 0}, "steps"),
        (lambda y: y, {"samples": 0}, "samples is 0"),
        (lambda y: y, {"noise": "five"}, "noise is 'five'"),
        (lambda y: y.to(torch.complex64), {}, "complex"),
    ],
)
def test_bad_input(data, change, options, words):
    with pytest.raises(DataError, match=words):
        quick(change(data), **{"steps": 2, **options})


def test_an_adjoint_that_is_not_one():
    with pytest.raises(DataError, match=r"not the transpose.*0\.\d"):  # with the mismatch
        reconstruct(torch.rand(10, 10), Wrong(), noise=0.05)


def test_levels_and_counts_are_checked(data):
    result = quick(data, steps=2)
    for call in (lambda: result.interval(1.5), lambda: result.sample(0), lambda: result.log_density(torch.zeros(3, 3))):
        with pytest.raises(DataError):
            call()

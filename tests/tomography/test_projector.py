"""The footprint projector against exact identities, an analytic disk, rays, and scikit-image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marquis.errors import DataError
from marquis.tomography import FanBeam, ParallelBeam
from marquis.tomography.operators import check_measurement, dense_matrix


def image(size, seed=0):
    return torch.rand(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def disk(size, radius, centre=(0.0, 0.0), oversampling=16):
    """Area shares of a disk in pixels, by supersampling; x to the right, y upwards, the image's centre at zero."""
    steps = (np.arange(size * oversampling) + 0.5) / oversampling - size / 2
    x, y = np.meshgrid(steps, -steps)
    inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 <= radius**2
    return torch.from_numpy(inside.reshape(size, oversampling, size, oversampling).mean(axis=(1, 3)))


def disk_sinogram(geometry, radius, centre=(0.0, 0.0)):
    """Bin averages of the chord lengths, exact: differences of the segment-area function."""

    def area(t):  # of the part of the disk left of t
        t = np.clip(t / radius, -1, 1)
        return radius**2 * (t * np.sqrt(1 - t**2) + np.arcsin(t))

    edges = (np.arange(geometry.detectors + 1) - geometry.detectors / 2) * geometry.spacing
    rows = []
    for angle in geometry.angles.tolist():
        shift = centre[0] * math.cos(angle) + centre[1] * math.sin(angle)
        rows.append(np.diff(area(edges - shift)) / geometry.spacing)
    return torch.from_numpy(np.stack(rows))


BEAMS = {
    "parallel": ParallelBeam(13, 9),
    "rectangle": ParallelBeam((9, 14), 6, spacing=0.7, pixel_size=0.5),
    "few bins": ParallelBeam(12, 5, detectors=7),
    "fan": FanBeam(13, 8, source=25.0, detector=10.0),
}


@pytest.mark.parametrize("name", BEAMS)
def test_adjoint_is_the_transpose(name):
    beam = BEAMS[name]
    check_measurement(beam)
    matrix = dense_matrix(beam)
    data = torch.randn(beam.data_shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(beam.adjoint(data).flatten(), matrix.T @ data.flatten(), rtol=1e-12, atol=1e-12)
    assert torch.equal(torch.from_numpy(beam.matrix().toarray()), matrix)


@pytest.mark.parametrize("spacing", [0.4, 1.0, 2.3])
def test_mass_is_kept_at_every_angle(spacing):
    beam = ParallelBeam(16, 13, spacing=spacing, pixel_size=0.25)
    x = image(16)
    totals = beam.forward(x).sum(dim=1) * spacing
    torch.testing.assert_close(totals, 0.25 * x.sum().expand(13), rtol=1e-13, atol=0)


def test_fan_mass_of_one_pixel():
    beam = FanBeam(9, 7, source=20.0, detector=5.0)
    x = torch.zeros(9, 9, dtype=torch.float64)
    x[2, 7] = 1
    px, py = 3.0, 2.0
    for row, angle in zip(beam.forward(x), beam.angles.tolist(), strict=True):
        depth = 20 - (py * math.cos(angle) - px * math.sin(angle))
        across = px * math.cos(angle) + py * math.sin(angle)
        gamma = math.atan2(across, depth)
        assert float(row.sum()) == pytest.approx(25 / math.cos(gamma) / depth, rel=1e-12)


@pytest.mark.parametrize("centre", [(0.0, 0.0), (7.3, -4.1)])
def test_analytic_disk(centre):
    beam = ParallelBeam(120, 11)
    sinogram, exact = beam.forward(disk(120, 50.0, centre)), disk_sinogram(beam, 50.0, centre)
    assert float((sinogram - exact).norm() / exact.norm()) < 3e-3  # the rim's pixels are squares


def test_the_disk_notices_a_wrong_centre():
    beam = ParallelBeam(120, 11)
    wrong = 0.5 * (disk(120, 50.0) + torch.roll(disk(120, 50.0), 1, dims=1))  # half a pixel beside the centre
    exact = disk_sinogram(beam, 50.0)
    assert float((beam.forward(wrong) - exact).norm() / exact.norm()) > 1e-2


def test_a_quarter_turn_permutes():
    x = image(15)
    beam = ParallelBeam(15, 8)
    turned = beam.forward(torch.rot90(x, -1))  # clockwise: what was seen at theta + 90 degrees
    expected = beam.forward(x)
    torch.testing.assert_close(turned[:4], expected[4:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turned[4:], expected[:4].flip(1), rtol=1e-12, atol=1e-12)


def test_a_far_source_makes_rays_parallel():
    x = image(14)
    angles = [0.0, 0.3, 1.1, 2.0]
    parallel = ParallelBeam(14, angles)
    fan = FanBeam(14, angles, parallel.detectors, source=1e7, detector=0.0)
    torch.testing.assert_close(fan.forward(x), parallel.forward(x), rtol=1e-5, atol=1e-5)
    near = FanBeam(14, angles, parallel.detectors, source=30.0, detector=0.0)
    assert float((near.forward(x) - parallel.forward(x)).abs().max()) > 0.1


def test_fan_against_rays():
    """Line integrals by fine steps along many rays per bin."""
    size, source, detector = 17, 30.0, 12.0
    beam = FanBeam(size, [0.4, 2.5, 4.0], source=source, detector=detector)
    x = image(size).numpy()
    step, per_bin = 0.02, 24
    for row, angle in zip(beam.forward(torch.from_numpy(x)).numpy(), beam.angles.tolist(), strict=True):
        across = np.array([math.cos(angle), math.sin(angle)])
        towards = np.array([-math.sin(angle), math.cos(angle)])
        offsets = (np.arange(beam.detectors * per_bin) + 0.5) / per_bin - beam.detectors / 2
        ends = offsets[:, None] * across - detector * towards
        start = source * towards
        length = np.linalg.norm(ends - start, axis=1, keepdims=True)
        direction = (ends - start) / length
        positions = start + direction[:, None, :] * np.arange(source - size, source + size, step)[None, :, None]
        column = np.floor(positions[..., 0] + size / 2).astype(int)
        line = np.floor(size / 2 - positions[..., 1]).astype(int)
        inside = (column >= 0) & (column < size) & (line >= 0) & (line < size)
        values = np.where(inside, x[line.clip(0, size - 1), column.clip(0, size - 1)], 0).sum(axis=1) * step
        expected = values.reshape(beam.detectors, per_bin).mean(axis=1)
        assert np.linalg.norm(row - expected) / np.linalg.norm(expected) < 5e-3


def test_scikit_image_agrees_at_an_odd_size():
    transform = pytest.importorskip("skimage.transform")
    size = 63
    x = disk(size, 20.0, (3.0, 5.0)) + 0.5 * disk(size, 8.0, (-6.0, 2.0))
    degrees = np.arange(0, 180, 12.0)
    theirs = torch.from_numpy(transform.radon(x.numpy(), theta=degrees, circle=True).T.copy())
    ours = ParallelBeam(size, np.deg2rad(degrees), detectors=size).forward(x)
    assert float((ours - theirs).norm() / theirs.norm()) < 6e-3


def test_filtered_back_projection_against_scikit_image():
    transform = pytest.importorskip("skimage.transform")
    size = 63
    x = disk(size, 20.0, (3.0, 5.0)) + 0.5 * disk(size, 8.0, (-6.0, 2.0))
    beam = ParallelBeam(size, 45, detectors=size)
    sinogram = beam.forward(x)
    ours = beam.fbp(sinogram)
    theirs = torch.from_numpy(transform.iradon(sinogram.numpy().T, theta=np.arange(45) * 4.0, circle=True))
    circle = disk(size, 29.0) > 0.5
    error, their_error = ((image - x)[circle].square().mean() for image in (ours, theirs))
    assert error < 1.1 * their_error
    assert float(ours[circle].mean()) == pytest.approx(float(x[circle].mean()), rel=0.02)


@pytest.mark.parametrize(
    "beam",
    [
        ParallelBeam(48, 90, spacing=0.8, pixel_size=1 / 48),
        FanBeam(48, 180, source=80.0, detector=40.0, pixel_size=1 / 48),
    ],
)
def test_back_projection_has_the_images_scale(beam):
    x = disk(48, 14.0, (4.0, 3.0))
    inner = disk(48, 10.0, (4.0, 3.0)) == 1
    values = beam.fbp(beam.forward(x))[inner]
    assert float(values.mean()) == pytest.approx(1.0, abs=0.02)


def test_batches_and_float32():
    beam = ParallelBeam(11, 4)
    stack = torch.stack([image(11, 0), image(11, 1)]).reshape(2, 1, 11, 11)
    both = beam.forward(stack)
    assert both.shape == (2, 1, 4, beam.detectors)
    torch.testing.assert_close(both[1, 0], beam.forward(stack[1, 0]))
    single = beam.forward(stack.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), both, rtol=1e-5, atol=1e-5)


def test_subset_keeps_the_readings():
    beam = FanBeam(11, 6, source=20.0, detector=3.0, detectors=19, spacing=0.9)
    x = image(11)
    torch.testing.assert_close(beam.subset([4, 1]).forward(x), beam.forward(x)[[4, 1]])


def test_default_detectors_see_every_pixel():
    assert ParallelBeam(28, 20).data_shape == (20, 41)
    assert ParallelBeam(128, 60).detectors == 183


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ParallelBeam(28, [0.0, 90.0]), "radians"),
        (lambda: ParallelBeam(28, 0), "angles"),
        (lambda: ParallelBeam(1, 4), "2 x 2"),
        (lambda: ParallelBeam(28, 4, spacing=-1), "spacing"),
        (lambda: FanBeam(28, 4, source=10.0, detector=5.0), "inside the image"),
        (lambda: ParallelBeam(8, 4).forward(torch.zeros(7, 8)), r"\(8, 8\)"),
    ],
)
def test_bad_geometry(make, words):
    with pytest.raises(DataError, match=words):
        make()

"""`marquis reconstruct`: every kind of file, results, resuming, and one line for what cannot be used."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import one_line
from marquis.tomography import FanBeam, ParallelBeam, simulate

QUICK = ("--noise", 0.05, "--low", 0, "--high", 1, "--steps", 8)


@pytest.fixture(scope="module")
def truth():
    image = torch.zeros(10, 10, dtype=torch.float64)
    image[2:6, 3:8] = 0.8
    return image


@pytest.fixture(scope="module")
def sinogram(truth):
    return simulate(truth, ParallelBeam(10, 8), noise=0.05, generator=torch.Generator().manual_seed(0)).numpy()


def test_npy_and_everything_that_is_written(marquis, sinogram):
    np.save("s.npy", sinogram)
    code, out, err = marquis("reconstruct", "s.npy", "--out", "r.npz", "--picture", "r.png", "--samples", 3, *QUICK)
    assert code == 0, err
    assert "written: r.npz and r.png" in out and "standard deviation" in out
    assert "10 x 10 pixels, 8 angles, 15 detectors" in out
    with np.load("r.npz") as result:
        assert result["image"].shape == result["std"].shape == (10, 10)
        assert result["samples"].shape == (3, 10, 10)
        assert (result["std"] > 0).all()
        assert float(result["noise_variance"]) > 0
        assert "exact" in str(result["report"])
    with Image.open("r.png") as picture:
        assert min(picture.size) > 200
    assert not Path("r.npz.partial").exists()


def test_npz_with_angles_and_tiff_agree_with_npy(marquis, sinogram):
    np.save("s.npy", sinogram.astype(np.float32))
    np.savez("s.npz", sinogram=sinogram.astype(np.float32), angles=np.arange(8) * math.pi / 8, comment=np.zeros(3))
    Image.fromarray(sinogram.astype(np.float32)).save("s.tif")
    np.savetxt("angles.txt", np.arange(8) * math.pi / 8)
    images = []
    for number, text in enumerate((["s.npy"], ["s.npz"], ["s.tif"], ["s.npy", "--angles", "angles.txt"])):
        code, _, err = marquis("reconstruct", *text, "--out", f"{number}.npz", *QUICK)
        assert code == 0, err
        with np.load(f"{number}.npz") as result:
            images.append(result["image"])
    for image in images[1:]:
        np.testing.assert_array_equal(images[0], image)


def test_fan_beam(marquis, truth):
    beam = FanBeam(10, 8, source=30.0, detector=10.0)
    np.save("s.npy", simulate(truth, beam, noise=0.05, generator=torch.Generator().manual_seed(0)).numpy())
    text = ("--geometry", "fan", "--source", 30, "--detector", 10)
    code, out, err = marquis("reconstruct", "s.npy", "--out", "r.npz", *text, *QUICK)
    assert code == 0, err
    assert "FanBeam(10 x 10 pixels" in out


def test_an_interrupted_reconstruction_resumes(marquis, sinogram, monkeypatch):
    from marquis.tomography import posterior

    np.save("s.npy", sinogram)
    text = ("reconstruct", "s.npy", "--posterior", "iterative", "--samples", 12, *QUICK)
    code, _, err = marquis(*text, "--out", "whole.npz")
    assert code == 0, err
    saved = []

    def interrupted(path, *rest, **options):
        save_tensors(path, *rest, **options)
        saved.append(path.stem)
        if path.stem == "samples":
            raise KeyboardInterrupt

    save_tensors = posterior.save_tensors
    monkeypatch.setattr(posterior, "save_tensors", interrupted)
    code, _, _ = marquis(*text, "--out", "r.npz")
    assert (
        code == 130
        and saved == ["eigenpairs", "samples"]
        and Path("r.npz.partial").is_dir()
        and not Path("r.npz").exists()
    )
    monkeypatch.setattr(posterior, "save_tensors", save_tensors)
    code, _, err = marquis(*text, "--out", "r.npz")
    assert code == 0, err
    with np.load("r.npz") as resumed, np.load("whole.npz") as whole:
        np.testing.assert_allclose(resumed["samples"], whole["samples"], rtol=1e-6)
    assert not Path("r.npz.partial").exists()


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["s.npy", "--angles", "9", *QUICK], ["8 rows", "9 angles"]),
        (["s.npy", "--angles", "15", *QUICK], ["transpose"]),
        (["s.npy", "--angles", "nowhere.txt", *QUICK], ["nowhere.txt"]),
        (["s.npy"], ["neither noise nor tv"]),
        (["s.npy", "--noise", "-1"], ["noise is -1"]),
        (["s.npy", "--noise", "0.05", "--low", "0"], ["--low and --high"]),
        (["s.npy", "--geometry", "cone", *QUICK], ["--geometry", "fan"]),
        (["s.npy", "--geometry", "fan", *QUICK], ["--source"]),
        (["s.npy", "--source", "30", *QUICK], ["--geometry fan"]),
        (["missing.npy", *QUICK], ["missing.npy"]),
        (["s.csv", *QUICK], [".npy"]),
        (["two.npz", *QUICK], ["sinogram"]),
        (["flat.npy", *QUICK], ["[angles, detectors]"]),
        (["broken.tif", *QUICK], ["broken.tif", "TIFF"]),
        (["nan.npy", *QUICK], ["NaN", "(0, 0)"]),
        (["s.npy", "--picture", "r.jpg", *QUICK], [".png"]),
        (["s.npy", "--noise", "0.05", "--steps", "0"], ["steps is 0"]),
        (["s.npy", "--samples", "0", *QUICK], ["samples is 0"]),
        (["s.npy", "--size", "1000000", *QUICK], ["size is 1000000", "8192"]),
    ],
)
def test_refusals(marquis, sinogram, words, texts):
    np.save("s.npy", sinogram)
    np.save("flat.npy", sinogram.ravel())
    np.save("nan.npy", np.full_like(sinogram, np.nan))
    np.savez("two.npz", a=sinogram, b=sinogram)
    Path("s.csv").write_text("1,2\n")
    Path("broken.tif").write_bytes(b"II*\0nothing")
    one_line(marquis("reconstruct", *words, "--out", "r.npz"), *texts)
    assert not Path("r.npz").exists()
    assert not Path("r.npz.partial").exists()


def test_nothing_is_overwritten(marquis, sinogram):
    np.save("s.npy", sinogram)
    np.savez("r.npz", a=np.zeros(2))
    one_line(marquis("reconstruct", "s.npy", "--out", "r.npz", *QUICK), "r.npz", "--force")


@pytest.mark.parametrize("edge", [8000, 20000])  # 64 megapixels are read, 400 are what Pillow calls a bomb
def test_images_that_unpack_to_far_more_than_they_are(marquis, edge):
    Image.new("1", (edge, edge)).save("bomb.tif", compression="group4")
    assert Path("bomb.tif").stat().st_size < 20_000
    said = marquis("--max-bytes", 10**8, "reconstruct", "bomb.tif", "--out", "r.npz")
    one_line(said, "bomb.tif", "--max-bytes" if edge == 8000 else "decompression bomb")
    assert not Path("r.npz").exists() and not Path("r.npz.partial").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_that_never_end(marquis):
    os.mkfifo("pipe.npy")
    Path("zero.csv").symlink_to("/dev/zero")
    one_line(marquis("reconstruct", "pipe.npy", "--out", "r.npz"), "pipe.npy is a device or a pipe")
    one_line(marquis("train", "ae", "--data", "zero.csv", "--out", "run"), "zero.csv")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--noise", "1e300"), "no float holds"),
        (("--pixel-size", "1e-300", "--noise", 0.1), "other units"),
        (("--spacing", "inf", "--noise", 0.1), "--spacing inf"),
        (("--geometry", "fan", "--source", 0, "--detector", 0, "--noise", 0.1), "--source 0"),
    ],
)
def test_lengths_and_noise_that_overflow(marquis, sinogram, options, words):
    np.save("s.npy", sinogram)
    one_line(marquis("reconstruct", "s.npy", "--out", "r.npz", "--steps", 3, *options), words)

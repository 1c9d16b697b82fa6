"""Other linear inverse problems through the same door: each once, on a real image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from marquis.tomography import (
    Blur,
    Dense,
    Downsampling,
    FanBeam,
    Fourier,
    Inpainting,
    Measurement,
    fbp,
    psnr,
    reconstruct,
    scores,
    simulate,
)
from marquis_experiments.common.cells import cell
from marquis_experiments.tomography.data import character, save_arrays

NOISE = 0.02
NAMES = ("fan beam", "inpainting", "blur", "downsampling", "Fourier", "matrix")


def problem(name: str) -> Measurement:
    """Return the measurement of this name for images of 28 x 28 pixels."""
    generator = torch.Generator().manual_seed(5)
    if name == "fan beam":
        return FanBeam(28, 12, source=60.0, detector=30.0)
    if name == "inpainting":
        return Inpainting(torch.rand(28, 28, generator=generator) < 0.35)
    if name == "blur":
        offsets = torch.arange(-4.0, 5.0)
        bell = torch.exp(-(offsets**2) / (2 * 1.8**2))
        kernel = bell[:, None] * bell[None]
        return Blur(kernel / kernel.sum(), 28)
    if name == "downsampling":
        return Downsampling(2, 28)
    if name == "Fourier":
        frequency = torch.fft.fftfreq(28) * 28
        radius = (frequency[:, None] ** 2 + frequency[None] ** 2).sqrt()
        half = (frequency[:, None] > 0) | ((frequency[:, None] == 0) & (frequency[None] >= 0))
        return Fourier(half & ((radius < 4) | (torch.rand(28, 28, generator=generator) < 0.25)))
    return Dense(torch.randn(250, 784, generator=generator, dtype=torch.float64) / 28, 28)


def one_problem(cells: str, arrays: str, settings: dict[str, Any], data_dir: str | None) -> str:
    """Compute one problem's cell and return a line of progress."""
    name = f"problem-{settings['problem'].replace(' ', '-')}"
    cell(Path(cells), name, settings, lambda: _measure(settings, Path(arrays) / f"{name}.npz", data_dir))
    return name


def _measure(settings: dict[str, Any], arrays: Path, data_dir: str | None) -> dict[str, Any]:
    truth = character(settings["image"], None if data_dir is None else Path(data_dir))
    measurement = problem(settings["problem"])
    data = simulate(truth, measurement, noise=NOISE, generator=torch.Generator().manual_seed(2))
    result = reconstruct(data, measurement, noise=NOISE, range=(0.0, 1.0), progress=False)
    start = fbp(data, measurement)
    images = {"truth": truth, "start": start, "image": result.image, "std": result.std}
    save_arrays(arrays, images)
    return {
        "readings": int(np.prod(measurement.data_shape)),
        "start_psnr": psnr(start, truth, 1.0),
        "scores": scores(result, truth, 1.0),
        "notes": result.notes,
    }

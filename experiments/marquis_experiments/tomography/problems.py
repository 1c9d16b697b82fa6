"""Other linear inverse problems through the same code, on real images, with and without TV-PredCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from marquis.tomography import (
    Blur,
    Dense,
    Downsampling,
    FanBeam,
    Fourier,
    Inpainting,
    Measurement,
    deep_image_prior,
    fbp,
    linearise,
    psnr,
    scores,
    simulate,
)
from marquis.tomography.operators import noise_std
from marquis.tomography.reconstruction import STOP_AT
from marquis.tomography.training import tv_weight_for
from marquis_experiments.common.cells import cell
from marquis_experiments.tomography.data import character, save_arrays

NOISE = 0.02
SATURATED = 0.01
"""Distance to an end of the range below which a pixel's output counts as saturated."""
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
    name = f"problem-{settings['problem'].replace(' ', '-')}-i{settings['image']}"
    cell(Path(cells), name, settings, lambda: _measure(settings, Path(arrays) / f"{name}.npz", data_dir))
    return name


def _measure(settings: dict[str, Any], arrays: Path, data_dir: str | None) -> dict[str, Any]:
    """Reconstruct as `reconstruct` does by default, and tune the same network's prior without TV-PredCP as well."""
    truth = character(settings["image"], None if data_dir is None else Path(data_dir))
    measurement = problem(settings["problem"])
    data = simulate(truth, measurement, noise=NOISE, generator=torch.Generator().manual_seed(2))
    variance = noise_std(data, NOISE) ** 2
    trained = deep_image_prior(
        data,
        measurement,
        tv=tv_weight_for(variance, data.numel()),
        range=(0.0, 1.0),
        noise_variance=variance,
        stop_at=STOP_AT,
        generator=torch.Generator().manual_seed(0),
        progress=False,
    )
    prior = linearise(trained, measurement, posterior="exact")
    start = fbp(data, measurement)
    images = {"truth": truth, "start": start, "image": trained.image}
    saturated = (trained.image < SATURATED) | (trained.image > 1 - SATURATED)
    rows: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = {"predcp": {"predcp": "variance"}, "block": {}}
    for name, options in variants.items():
        result = prior.posterior(prior.tune(data, **options))
        low, high = result.interval(0.95)
        inside = ((truth >= low) & (truth <= high)).double()
        rows[name] = scores(result, truth, 1.0)
        rows[name] |= {"saturated": float(inside[saturated].mean()), "others": float(inside[~saturated].mean())}
        images[f"std_{name}"] = result.std
    save_arrays(arrays, images)
    return {
        "readings": data.numel(),
        "start_psnr": psnr(start, truth, 1.0),
        "residual": trained.residual / variance,
        "steps_taken": len(trained.losses),
        "saturated": float(saturated.double().mean()),
        "rows": rows,
    }

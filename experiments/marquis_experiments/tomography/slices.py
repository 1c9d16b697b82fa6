"""One slice of a clinical CT scan: image quality by training, and the iterative posterior with its cost."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import torch

from marquis.tomography import (
    IterativePrior,
    ParallelBeam,
    deep_image_prior,
    fbp,
    linearise,
    psnr,
    scores,
    simulate,
    tv,
)
from marquis.tomography.training import TrainedImage, tv_weight_for
from marquis_experiments.common.cells import cell
from marquis_experiments.tomography.data import CT_RANGE, ct_slice, save_arrays

NOISE = 0.01
SLICE = 7
TV_FACTORS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Multiples of the network's weight at which total variation alone is tried; the best one counts."""


def one_slice(cells: str, arrays: str, settings: dict[str, Any], data_dir: str | None) -> str:
    """Compute one training's cell and return a line of progress."""
    name = f"ct-{settings['size']}-{settings['training']}"
    cell(Path(cells), name, settings, lambda: measure_slice(settings, Path(arrays) / f"{name}.npz", data_dir))
    return name


def measure_slice(settings: dict[str, Any], arrays: Path, data_dir: str | None) -> dict[str, Any]:
    """Train on one slice, and compute the posterior where the settings have samples."""
    size = settings["size"]
    truth = ct_slice(SLICE, size, None if data_dir is None else Path(data_dir))
    if truth is None:
        return {"missing": True}
    span = CT_RANGE[1] - CT_RANGE[0]
    geometry = ParallelBeam(size, settings["angles"], pixel_size=1 / size)
    generator = torch.Generator().manual_seed(0)
    sinogram = simulate(truth, geometry, noise=NOISE, generator=generator)
    variance = float((NOISE * geometry.forward(truth).abs().mean()) ** 2)
    weight = tv_weight_for(variance, sinogram.numel())
    back_projected = fbp(sinogram, geometry)
    by_tv = {}
    for factor in settings.get("tv_factors", TV_FACTORS):
        image = tv(sinogram, geometry, factor * weight, range=CT_RANGE)
        by_tv[factor] = psnr(image, truth, span), image
    best_tv = max(by_tv.values(), key=lambda pair: pair[0])
    started = time.process_time()
    passed: list[float] = []

    def watch(step: int, image: torch.Tensor, _: float) -> None:
        if step % 10 == 0:
            passed.append(psnr(image.double(), truth, span))

    trained = deep_image_prior(
        sinogram,
        geometry,
        tv=settings["tv_factor"] * weight,
        range=CT_RANGE,
        steps=settings["steps"],
        noise_variance=variance,
        stop_at=settings["stop_at"],
        start=best_tv[1] if settings["start"] == "tv" else None,
        generator=generator,
        progress=False,
        watch=watch,
    )
    result: dict[str, Any] = {
        "psnr": {
            "fbp": psnr(back_projected, truth, span),
            "tv": best_tv[0],
            "tv_weights": {str(factor): pair[0] for factor, pair in by_tv.items()},
            "dip": psnr(trained.image, truth, span),
            "dip_best_step": max(passed),
        },
        "residual": trained.residual / variance,
        "steps_taken": len(trained.losses),
        "training_seconds": time.process_time() - started,
        "clock": "cpu",
    }
    images = {"truth": truth, "fbp": back_projected, "tv": best_tv[1], "dip": trained.image}
    if settings["samples"]:
        result |= _posterior(trained, geometry, sinogram, truth, span, variance, settings, images)
    save_arrays(arrays, images)
    return result


def _posterior(
    trained: TrainedImage,
    geometry: ParallelBeam,
    sinogram: torch.Tensor,
    truth: torch.Tensor,
    span: float,
    variance: float,
    settings: dict[str, Any],
    images: dict[str, torch.Tensor],
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    rows, seconds = {}, {}
    prior = linearise(trained, geometry, posterior="iterative", generator=generator, rank=settings["rank"])
    assert isinstance(prior, IterativePrior)
    variants: tuple[tuple[str, dict[str, Any]], ...] = (("scalar", {"predcp": None}), ("scalar_predcp", {}))
    for name, options in variants:
        started = time.process_time()
        tuned = prior.tune(sinogram, **options)
        seconds[f"tune_{name}"] = time.process_time() - started
        started = time.process_time()
        posterior = prior.posterior(tuned, samples=settings["samples"])
        seconds[f"sample_{name}"] = (time.process_time() - started) / settings["samples"]
        rows[name] = scores(posterior, truth, span)
        rows[name]["noise_ratio"] = posterior.noise_variance / variance
        rows[name]["weight_variance"] = float(tuned.variance[0])
        images[f"std_{name}"] = posterior.std
        if not settings["both"]:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"rows": rows, "seconds": seconds, "peak_gib": peak}

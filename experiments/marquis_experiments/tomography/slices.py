"""One slice of a clinical CT scan: image quality by training, and the iterative posterior with its cost."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
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
from marquis_experiments.tomography.characters import STOPS
from marquis_experiments.tomography.data import CT_RANGE, ct_slice, save_arrays

NOISE = 0.01
SLICE = 7
"""The slice whose cells have no `slice` among their settings."""
TV_FACTORS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Multiples of the network's weight at which total variation alone is tried; the best one counts."""


def slice_name(settings: dict[str, Any]) -> str:
    """Return the name of a training's cell; slices other than the first one have their number in it."""
    name = f"ct-{settings['size']}-{settings['training']}"
    return f"{name}-s{settings['slice']}" if "slice" in settings else name


def one_slice(cells: str, arrays: str, settings: dict[str, Any], data_dir: str | None) -> str:
    """Compute one training's cell and return a line of progress."""
    name = slice_name(settings)
    cell(Path(cells), name, settings, lambda: measure_slice(settings, Path(arrays) / f"{name}.npz", data_dir))
    return name


def measure_slice(settings: dict[str, Any], arrays: Path, data_dir: str | None) -> dict[str, Any]:
    """Train on one slice, and compute the posterior where the settings have samples; resumes where it was stopped."""
    size = settings["size"]
    started = time.process_time(), time.time()
    settled = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    unfinished = arrays.with_name(f"{arrays.stem}-{settled}")
    resumed = unfinished.exists()
    unfinished.mkdir(parents=True, exist_ok=True)
    truth = ct_slice(settings.get("slice", SLICE), size, None if data_dir is None else Path(data_dir))
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
    training_started = time.process_time()
    trace = unfinished / "trace.jsonl"  # survives an interruption, as the training's checkpoint does

    def watch(step: int, image: torch.Tensor, residual: float) -> None:
        if step % 10 == 0:
            with trace.open("a", encoding="utf-8") as file:
                file.write(json.dumps([step, psnr(image.double(), truth, span), residual / variance]) + "\n")

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
        checkpoint=unfinished / "training.safetensors",
        progress=False,
        watch=watch,
    )
    training_seconds = time.process_time() - training_started
    passed = {step: values for step, *values in map(json.loads, trace.read_text(encoding="utf-8").splitlines())}
    reached: dict[str, float] = {}
    for step in sorted(passed):
        for share in STOPS:
            if passed[step][1] <= share:
                reached.setdefault(str(share), passed[step][0])
    result: dict[str, Any] = {
        "psnr": {
            "fbp": psnr(back_projected, truth, span),
            "tv": best_tv[0],
            "tv_weights": {str(factor): pair[0] for factor, pair in by_tv.items()},
            "dip": psnr(trained.image, truth, span),
            "dip_best_step": max(quality for quality, _ in passed.values()),
        },
        "residual": trained.residual / variance,
        "steps_taken": len(trained.losses),
        "reached": reached,
        "trace": [[step, *passed[step]] for step in sorted(passed) if step % 250 == 0],
        "training_seconds": training_seconds,
        "clock": "cpu",
        "resumed": resumed,
    }
    images = {"truth": truth, "fbp": back_projected, "tv": best_tv[1], "dip": trained.image}
    if settings["samples"]:
        result |= _posterior(trained, geometry, sinogram, truth, span, variance, settings, images, unfinished)
    result |= {"seconds_in_all": time.process_time() - started[0], "wall_seconds": time.time() - started[1]}
    save_arrays(arrays, images)
    shutil.rmtree(unfinished)
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
    unfinished: Path,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    rows, seconds = {}, {}
    prior = linearise(
        trained, geometry, posterior="iterative", generator=generator, rank=settings["rank"], checkpoint=unfinished
    )
    assert isinstance(prior, IterativePrior)
    variants: tuple[tuple[str, dict[str, Any]], ...] = (("scalar", {}), ("scalar_predcp", {"predcp": "variance"}))
    for name, options in variants:
        started = time.process_time()
        tuned = prior.tune(sinogram, **options)
        seconds[f"tune_{name}"] = time.process_time() - started
        started = time.process_time()
        posterior = prior.posterior(tuned, samples=settings["samples"], checkpoint=unfinished / f"{name}.safetensors")
        seconds[f"sample_{name}"] = (time.process_time() - started) / settings["samples"]
        rows[name] = scores(posterior, truth, span)
        rows[name]["noise_ratio"] = posterior.noise_variance / variance
        rows[name]["weight_variance"] = float(tuned.variance[0])
        images[f"std_{name}"] = posterior.std
        if not settings["both"]:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"rows": rows, "seconds": seconds, "peak_gib": peak}

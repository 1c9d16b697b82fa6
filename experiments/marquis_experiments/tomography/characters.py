"""One KMNIST character from few noisy angles: every method's image and error bars against the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.tomography import (
    ExactPrior,
    ParallelBeam,
    UNet,
    constant,
    deep_image_prior,
    dropout,
    fbp,
    linearise,
    psnr,
    reconstruct,
    scores,
    simulate,
    tv,
)
from marquis.tomography.baselines import from_images
from marquis_experiments.common.cells import cell
from marquis_experiments.tomography.data import character, save_arrays

TV_WEIGHTS = {
    (5, 0.05): 1e-5, (10, 0.05): 3e-5, (20, 0.05): 1e-4, (30, 0.05): 1e-4,
    (5, 0.1): 3e-5, (10, 0.1): 1e-4, (20, 0.1): 3e-4, (30, 0.1): 3e-4,
}  # fmt: skip
"""Weights of the total variation by angles and noise, from the published code's configuration."""

STEPS = {
    (5, 0.05): 900, (10, 0.05): 1800, (20, 0.05): 2500, (30, 0.05): 3000,
    (5, 0.1): 700, (10, 0.1): 800, (20, 0.1): 1050, (30, 0.1): 1350,
}  # fmt: skip
"""Training steps, in the published code's proportions."""

STOPS = (1.2, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Multiples of the noise variance at which training could stop."""

EXACT: dict[str, dict[str, Any]] = {
    "block": {},
    "predcp": {"predcp": "variance"},
    "scalar": {"groups": "scalar"},
    "scalar_predcp": {"predcp": "variance", "groups": "scalar"},
    "tangent": {"groups": "scalar", "evidence": "tangent"},
}
"""Ways of tuning independent weights."""


def measurement_of(image: Tensor, angles: int, noise: float, seed: int) -> tuple[ParallelBeam, Tensor, float]:
    """Return geometry, noisy sinogram and the true noise variance."""
    geometry = ParallelBeam(28, angles)
    generator = torch.Generator().manual_seed(1000 + seed)
    sinogram = simulate(image, geometry, noise=noise, generator=generator)
    return geometry, sinogram, float((noise * geometry.forward(image).abs().mean()) ** 2)


def one_character(work: str, cells: str, arrays: str, settings: dict[str, Any], data_dir: str | None) -> str:
    """Compute one cell and return a line of progress; `work` is the name of one of this module's parts."""
    name = f"{work}-a{settings['angles']}-n{round(100 * settings['noise'])}-i{settings['image']}"
    compute = {"linearised": linearised_rows, "ensemble": ensemble_rows, "defaults": default_rows, "stop": stop_rows}
    truth = character(settings["image"], None if data_dir is None else Path(data_dir))
    cell(Path(cells), name, settings, lambda: compute[work](truth, settings, Path(arrays) / f"{name}.npz"))
    return name


def _train(truth: Tensor, settings: dict[str, Any], seed: int = 0, **options: Any):
    angles, noise, index = settings["angles"], settings["noise"], settings["image"]
    geometry, sinogram, variance = measurement_of(truth, angles, noise, index)
    generator = torch.Generator().manual_seed(100 * index + seed)
    network = None
    if settings["channels"] != 16:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(100 * index + seed)
            network = UNet((settings["channels"],) * 3, range=(0.0, 1.0))
    trained = deep_image_prior(
        sinogram,
        geometry,
        tv=settings["tv"],
        range=(0.0, 1.0),
        steps=settings["steps"],
        generator=generator,
        network=network,
        progress=False,
        **options,
    )
    return geometry, sinogram, variance, trained


def linearised_rows(truth: Tensor, settings: dict[str, Any], arrays: Path) -> dict[str, Any]:
    """Compare images without a network, the deep image prior, its linearised posteriors, dropout, constant noise."""
    geometry, sinogram, variance, trained = _train(truth, settings)
    weights = [settings["tv"] * factor for factor in (1 / 3, 1.0, 3.0)]
    smooth = {weight: tv(sinogram, geometry, weight, range=(0.0, 1.0)) for weight in weights}
    by_tv = {weight: psnr(image, truth, 1.0) for weight, image in smooth.items()}
    best_tv = smooth[max(by_tv, key=lambda weight: by_tv[weight])]
    back_projected = fbp(sinogram, geometry)
    images = {"truth": truth, "fbp": back_projected, "tv": best_tv, "dip": trained.image}
    result: dict[str, Any] = {
        "psnr": {
            "fbp": psnr(back_projected, truth, 1.0),
            "tv": max(by_tv.values()),
            "tv_same_weight": by_tv[weights[1]],
            "dip": psnr(trained.image, truth, 1.0),
        },
        "true_noise": variance,
        "residual": trained.residual,
        "rows": {},
        "variance": {},
    }
    published = linearise(trained, geometry, posterior="exact", taps=settings["paper"])
    assert isinstance(published, ExactPrior)
    prior = replace(published, grams=published.grams.independent(), taps=False)
    for name in settings["exact"]:
        tuned = prior.tune(sinogram, **EXACT[name])
        posterior = prior.posterior(tuned)
        result["rows"][name] = scores(posterior, truth, 1.0)
        result["variance"][name] = dict(zip(tuned.blocks, tuned.variance.tolist(), strict=True))
        images[f"std_{name}"] = posterior.std
        if name == "predcp":
            generator = torch.Generator().manual_seed(0)
            images["samples"] = posterior.sample(6, generator=generator)
            result["rows"]["constant_tuned"] = scores(
                constant(trained, geometry, noise_variance=tuned.noise_variance), truth, 1.0
            )
        if name in ("block", "predcp"):
            covariance = prior.grams.image_covariance(prior.grams.coefficients(tuned.variance))
            images[f"prior_{name}"] = _draws(covariance).reshape(3, 28, 28)
    result["rows"]["constant_1"] = scores(constant(trained, geometry, noise_variance=1.0), truth, 1.0)
    if settings["paper"]:
        variants: tuple[tuple[str, dict[str, Any]], ...] = (
            ("gp", {}),
            ("paper", {"predcp": "lengthscale", "rate": settings["tv"] * sinogram.numel(), "tempered": True}),
        )
        for name, options in variants:
            tuned = published.tune(sinogram, **options)
            result["rows"][name] = scores(published.posterior(tuned), truth, 1.0)
            assert tuned.lengthscale is not None
            result.setdefault("lengthscale", {})[name] = tuned.lengthscale.tolist()
    if settings["dropout"]:
        generator = torch.Generator().manual_seed(7 + settings["image"])
        options = {"range": (0.0, 1.0), "steps": settings["steps"], "progress": False}
        dropped = dropout(
            sinogram, geometry, tv=settings["tv"], noise_variance=variance, generator=generator, **options
        )
        result["rows"]["dropout"] = scores(dropped, truth, 1.0)
        images["std_dropout"] = dropped.std
        images["dropout"] = dropped.image
    save_arrays(arrays, images)
    return result


def _draws(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    noise = torch.randn(3, len(values), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (noise * values.clamp_min(0).sqrt()) @ vectors.T


def ensemble_rows(truth: Tensor, settings: dict[str, Any], arrays: Path) -> dict[str, Any]:
    """Train networks from different initial weights."""
    images, sinogram, geometry, variance = [], None, None, 0.0
    for seed in range(settings["members"]):
        geometry, sinogram, variance, trained = _train(truth, settings, seed)
        images.append(trained.image)
    assert sinogram is not None and geometry is not None
    result = from_images(torch.stack(images), sinogram, geometry, "ensemble", variance)
    save_arrays(arrays, {"ensemble": result.image, "std_ensemble": result.std})
    return {"rows": {"ensemble": scores(result, truth, 1.0)}}


def default_rows(truth: Tensor, settings: dict[str, Any], arrays: Path) -> dict[str, Any]:
    """Run `reconstruct` as a user would, with nothing but noise level and range, and with TV-PredCP."""
    geometry, sinogram, _ = measurement_of(truth, settings["angles"], settings["noise"], settings["image"])
    rows, notes = {}, ()
    for name in ("defaults", "defaults_predcp"):
        result = reconstruct(
            sinogram,
            geometry,
            noise=settings["noise"],
            range=(0.0, 1.0),
            predcp=name == "defaults_predcp",
            generator=torch.Generator().manual_seed(100 * settings["image"]),
            progress=False,
        )
        rows[name], notes = scores(result, truth, 1.0), result.notes
    return {"rows": rows, "notes": notes}


def stop_rows(truth: Tensor, settings: dict[str, Any], _: Path) -> dict[str, Any]:
    """Record the image's quality at every residual at which training could have stopped."""
    variance = measurement_of(truth, settings["angles"], settings["noise"], settings["image"])[2]
    reached: dict[str, float] = {}
    best = [0.0]

    def watch(step: int, image: Tensor, residual: float) -> None:
        if step % 5 == 0:
            quality = psnr(image.double(), truth, 1.0)
            best[0] = max(best[0], quality)
            for share in STOPS:
                if residual <= share * variance:
                    reached.setdefault(str(share), quality)

    trained = _train(truth, settings, watch=watch)[3]
    return {"reached": reached, "best": best[0], "end": psnr(trained.image, truth, 1.0)}

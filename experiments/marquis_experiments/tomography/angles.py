"""Which angles to measure next: greedy choices by the posterior against equidistant and random ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.tomography import ExactPrior, ParallelBeam, deep_image_prior, linearise, next_angles, psnr, simulate, tv
from marquis_experiments.common.cells import cell
from marquis_experiments.tomography.data import rectangles

CANDIDATES, FIRST, MORE = 60, 5, 5
NOISE = 0.05
STEPS = 1500
CHOICES = ("variance", "information", "equidistant", "random")


def one_design(cells: str, settings: dict[str, Any]) -> str:
    """Compute one image's cell and return a line of progress."""
    name = f"design-i{settings['image']}"
    cell(Path(cells), name, settings, lambda: compare_choices(settings["image"]))
    return name


def compare_choices(index: int) -> dict[str, Any]:
    """Measure five angles, choose five more in four ways, and reconstruct from all ten."""
    truth = rectangles(index)
    grid = torch.arange(CANDIDATES, dtype=torch.float64) * (math.pi / CANDIDATES)
    everything = ParallelBeam(28, grid)
    generator = torch.Generator().manual_seed(index)
    sinogram = simulate(truth, everything, noise=NOISE, generator=generator)
    weight = 2 * float((NOISE * sinogram.abs().mean()) ** 2)  # λ = 1, divided by the readings below
    start = torch.arange(FIRST) * (CANDIDATES // FIRST)
    first = everything.subset(start)
    trained = _train(sinogram[start], first, weight, index)
    prior = linearise(trained, first, posterior="exact")
    assert isinstance(prior, ExactPrior)
    posterior = prior.posterior(prior.tune(sinogram[start], predcp="variance"))
    rest = torch.tensor([i for i in range(CANDIDATES) if i not in start.tolist()])
    chosen: dict[str, Tensor] = {}
    for criterion in ("variance", "information"):
        picked = next_angles(posterior, grid[rest], MORE, criterion)
        chosen[criterion] = torch.stack([(grid - angle).abs().argmin() for angle in picked])
    chosen["equidistant"] = start + CANDIDATES // (2 * FIRST)
    chosen["random"] = rest[torch.randperm(len(rest), generator=generator)[:MORE]]
    result: dict[str, Any] = {"before": psnr(trained.image, truth, 1.0), "dip": {}, "tv": {}, "angles": {}}
    for name, more in chosen.items():
        both = torch.cat([start, more])
        geometry = everything.subset(both)
        data = sinogram[both]
        result["dip"][name] = psnr(_train(data, geometry, weight, index).image, truth, 1.0)
        result["tv"][name] = psnr(tv(data, geometry, weight / data.numel(), range=(0.0, 1.0)), truth, 1.0)
        result["angles"][name] = more.tolist()
    return result


def _train(data: Tensor, geometry: ParallelBeam, weight: float, seed: int):
    return deep_image_prior(
        data,
        geometry,
        tv=weight / data.numel(),
        range=(0.0, 1.0),
        noise_variance=weight / 2,
        stop_at=0.8,
        steps=STEPS,
        generator=torch.Generator().manual_seed(seed),
        progress=False,
    )

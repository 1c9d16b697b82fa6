"""The study `latent-map`: codes of test images over the decoder's standard deviation (LAE Figures 1 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.report.canvas import png
from marquis.report.latent_map import LatentMap, latent_figure, latent_map
from marquis_experiments.common.figure import GREY_LEVEL, Panel, image_rows
from marquis_experiments.common.metrics import rank_correlation
from marquis_experiments.common.page import table, verdict, yes
from marquis_experiments.common.study import Run, Study
from marquis_experiments.laplacian_autoencoder.describe import training
from marquis_experiments.laplacian_autoencoder.models import RECIPES, Images, Recipe, model

SHOWN = {
    "vae": "VAE",
    "posthoc-exact": "post-hoc Laplace, exact diagonal",
    "online-sketched": "online Laplace, default",
}
"""Models of Figure 1."""
FIGURE_8 = {
    "posthoc-kronecker": "post-hoc Laplace, Kronecker",
    "posthoc-approximate": "post-hoc Laplace, approximate diagonal",
    "online-exact": "online Laplace, exact diagonal",
    "online-approximate": "online Laplace, approximate diagonal",
}
"""Further models of Figure 8."""
AGAIN = ((8, 1), (8, 2), (8, 3), (24, 0), (24, 1))
"""Epochs and seeds of further VAEs: how far Figure 1a depends on them."""
THUMBNAILS = 3
"""Test images that are shown reconstructed."""


def measure(run: Run) -> dict[str, Any]:
    """Compute and draw the maps; models are those of `hessians`, trained here if that has not run."""
    images = Images.load(run.settings.recipe, run.data_dir)
    chosen = images.test[: run.settings.images]
    maps: dict[str, LatentMap] = {}
    numbers: dict[str, dict[str, Any]] = {}
    thumbnails: dict[str, list[Panel | None]] = {}
    for key, label in {**SHOWN, **FIGURE_8}.items():
        outcome = model(run.shared, key, 0, run.settings.recipe, images, run.say)
        if outcome.model is None:
            numbers[label] = {"failed": outcome.failed}
            continue
        maps[label] = one_map(outcome.model, chosen.x, run.settings)
        numbers[label] = {"failed": None, "meaning": maps[label].meaning, **near_and_far(maps[label])}
        thumbnails[label] = reconstructed(outcome.model, chosen.x[:THUMBNAILS], run.settings.samples)
        run.say(f"{label}: {numbers[label]}")
    run.folder.mkdir(parents=True, exist_ok=True)
    for name, labels in {"latent-map": SHOWN, "latent-map-hessians": FIGURE_8}.items():
        shown = {label: maps[label] for label in labels.values() if label in maps}
        if shown:
            (run.folder / f"{name}.png").write_bytes(png(latent_figure(shown, chosen.y)))
    if thumbnails:
        titles = ("image", "mean", "std") * THUMBNAILS
        image_rows(run.folder / "latent-map-images.png", thumbnails, titles, size=0.85)
    return {"settings": run.settings.plain(), "models": numbers, "again": vaes_again(run, images)}


def vaes_again(run: Run, images: Images) -> list[dict[str, Any]]:
    """Compute the numbers of VAEs with other seeds and lengths of training: does Figure 1a depend on them?"""
    rows = []
    for epochs, seed in run.settings.again:
        recipe = replace(run.settings.recipe, epochs=epochs)

        def compute(recipe: Recipe = recipe, seed: int = seed) -> dict[str, Any]:
            trained = model(run.shared, "vae", seed, recipe, images, run.say).require()
            return near_and_far(one_map(trained, images.test[: run.settings.images].x, run.settings))

        described = {"epochs": epochs, "seed": seed, **run.settings.without("again")}
        rows.append(run.cell(f"vae-{epochs}-s{seed}", described, compute, "again"))
        run.say(f"VAE, {epochs} epochs, seed {seed}: far / near {rows[-1]['ratio']:.2f}")
    return rows


def one_map(autoencoder: BaseAutoencoder, x: Tensor, settings: Any) -> LatentMap:
    """Compute mean codes over posterior samples, and the decoder's standard deviation around them."""
    codes = autoencoder.encode(x, settings.samples, generator=torch.Generator().manual_seed(0)).mean
    generator = torch.Generator().manual_seed(0)
    return latent_map(autoencoder, codes, edge=settings.edge, samples=settings.samples, generator=generator)


def reconstructed(autoencoder: BaseAutoencoder, x: Tensor, samples: int) -> list[Panel | None]:
    """Return each image with mean and standard deviation of its reconstruction; noise is in the latter if predicted."""
    outputs = autoencoder.reconstruct(x, samples, generator=torch.Generator().manual_seed(0))
    predicted = autoencoder.likelihood.scalar_noise_precision is None
    variance = outputs.noise_variance if predicted else outputs.variance
    assert variance is not None
    panels: list[Panel | None] = []
    for image, mean, std in zip(x, outputs.mean, variance.sqrt(), strict=True):
        top = float(std.max())
        spread = std[0].numpy(), max(top, GREY_LEVEL), f"≤ {top:.2g}"
        panels += [(image[0].numpy(), None, ""), (mean[0].clamp(0, 1).numpy(), None, ""), spread]
    return panels


def near_and_far(shown: LatentMap) -> dict[str, float]:
    """Compute the mean standard deviation over the quarter of the grid nearest to a code and over the farthest.

    `rank_correlation` is Spearman's between a grid point's distance to the nearest code and its standard deviation.
    Distances are in units of the map's edges.
    """
    left, right, bottom, top = shown.extent
    rows, columns = shown.std.shape
    across = torch.linspace(0, 1, columns, dtype=torch.float64)
    up = torch.linspace(0, 1, rows, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(up, across, indexing="ij")[::-1], -1).reshape(-1, 2)
    corner = torch.tensor([left, bottom], dtype=torch.float64)
    span = torch.tensor([right - left, top - bottom], dtype=torch.float64)
    distance = torch.cdist(grid, (shown.points.double() - corner) / span).amin(1)
    std = shown.std.double().flatten()
    order = distance.argsort()
    quarter = max(1, len(order) // 4)
    near, far = float(std[order[:quarter]].mean()), float(std[order[-quarter:]].mean())
    return {"near": near, "far": far, "ratio": far / near, "rank_correlation": rank_correlation(distance, std)}


def grows(numbers: Mapping[str, Any]) -> bool:
    """Return whether the standard deviation grows away from the codes."""
    return numbers["failed"] is None and numbers["ratio"] > 1 and numbers["rank_correlation"] > 0


def values(results: dict[str, Any]) -> Mapping[str, Any]:
    """Return what the template needs; the claim about the VAE (Figure 1a) is that its variance does not grow."""
    lines = []
    for name, numbers in results["models"].items():
        if numbers["failed"]:
            lines.append([name, f"failed: {numbers['failed']}", "", "", "", ""])
        else:
            cells = [f"{numbers[key]:.3g}" for key in ("near", "far", "ratio")]
            lines.append([name, numbers["meaning"], *cells, f"{numbers['rank_correlation']:.2f}"])
    vae, posthoc, online = (results["models"][name] for name in SHOWN.values())
    every = [{"epochs": results["settings"]["recipe"]["epochs"], **vae}, *results.get("again", [])]
    return {
        "again": again(every) if len(every) > 1 else None,
        "training": training(results["settings"]["recipe"]),
        "verdict": verdict(not grows(vae), grows(posthoc), grows(online)),
        "holds": {"vae": yes(not grows(vae)), "posthoc": yes(grows(posthoc)), "online": yes(grows(online))},
        "vae": vae,
        "posthoc": posthoc,
        "online": online,
        "narrower": posthoc["near"] / online["near"],
        "table": table(["model", "standard deviation of", "near", "far", "far / near", "rank correlation"], lines),
    }


def again(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how often and how much the standard deviation of a VAE grows, by length of training."""
    lengths = [
        {
            "epochs": epochs,
            "ratios": ", ".join(f"{row['ratio']:.2f} ({row['rank_correlation']:.2f})" for row in each),
        }
        for epochs in sorted({row["epochs"] for row in rows})
        if (each := [row for row in rows if row["epochs"] == epochs])
    ]
    grown = sum(grows({"failed": None, **row}) for row in rows)
    return {"lengths": lengths, "grown": grown, "every": len(rows)}


# fmt: off
STUDY = Study(
    "latent-map", Path(__file__).with_name("page.md"), measure, values,
    default={"recipe": RECIPES["default"], "images": 1000, "edge": 40, "samples": 30, "again": AGAIN},
    quick={"recipe": RECIPES["quick"], "images": 60, "edge": 8, "samples": 4, "again": ()},
    full={"recipe": RECIPES["full"], "images": 3000, "edge": 80, "samples": 100, "again": ()},
)
# fmt: on

"""`latent-map`: codes of test images over the decoder's standard deviation, model by model (LAE Figure 1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders.base import BaseAutoencoder
from marquis.report.canvas import png
from marquis.report.latent_map import LatentMap, latent_figure, latent_map
from marquis_experiments.cells import write_json
from marquis_experiments.hessians_report import data_name
from marquis_experiments.pages import command, table, write_page
from marquis_experiments.shared_autoencoders import RECIPES, Images, Recipe, model
from marquis_experiments.trained import shared_networks

SHOWN = {
    "vae": "VAE",
    "posthoc-exact": "post-hoc Laplace, exact diagonal",
    "online-sketched": "online Laplace, default",
}


@dataclass(frozen=True)
class Settings:
    """How large the experiment is."""

    recipe: Recipe
    images: int = 1000
    edge: int = 40
    samples: int = 30


SETTINGS = {
    "quick": Settings(RECIPES["quick"], images=60, edge=8, samples=4),
    "default": Settings(RECIPES["default"]),
    "full": Settings(RECIPES["full"], images=3000, edge=80, samples=100),
}


def run(
    size: str = "default",
    out: str | Path = "runs/latent-map",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Make the maps and the page; models are those of `hessians`, trained here if that has not run."""
    settings = SETTINGS[size]
    folder, shared = Path(out) / size, shared_networks(out)
    folder.mkdir(parents=True, exist_ok=True)
    images = Images.load(settings.recipe, data_dir)
    chosen = images.test[: settings.images]
    maps: dict[str, LatentMap] = {}
    numbers: dict[str, dict[str, Any]] = {}
    started = time.time()
    for key, label in SHOWN.items():
        outcome = model(shared, key, 0, settings.recipe, images, say)
        if outcome.model is None:
            numbers[label] = {"failed": outcome.failed}
            continue
        maps[label] = one_map(outcome.model, chosen.x, settings)
        numbers[label] = {"failed": None, "meaning": maps[label].meaning, **near_and_far(maps[label])}
        say(f"[{time.time() - started:5.0f} s] {label}: {numbers[label]}")
    results = {"size": size, "settings": asdict(settings), "models": numbers}
    write_json(folder / "results.json", results)
    if maps:
        (folder / "latent-map.png").write_bytes(png(latent_figure(maps, chosen.y)))
    return write_report(folder, results)


def one_map(own: BaseAutoencoder, x: Tensor, settings: Settings) -> LatentMap:
    """Codes by the mean over draws, and the decoder's standard deviation around them."""
    codes = own.encode(x, settings.samples, generator=torch.Generator().manual_seed(0)).mean
    generator = torch.Generator().manual_seed(0)
    return latent_map(own, codes, edge=settings.edge, samples=settings.samples, generator=generator)


def near_and_far(shown: LatentMap) -> dict[str, float]:
    """Standard deviation at the quarter of the grid nearest to a code and at the farthest, and how they are ordered.

    `rank_correlation` is Spearman's between a grid point's distance to the nearest code and its standard deviation:
    1 if uncertainty grows with every step away from the data. Distances are in units of the map's edges.
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


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, without ties; nearly constant values give what their rounding gives."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def write_report(folder: Path, results: dict[str, Any]) -> Path:
    """Write `latent-map.md`."""
    settings = results["settings"]
    recipe = settings["recipe"]
    lines = []
    for name, found in results["models"].items():
        if found["failed"]:
            lines.append([name, "*failed*", "", "", "", ""])
            continue
        numbers = [f"{found[key]:.3g}" for key in ("near", "far", "ratio")]
        lines.append([name, found["meaning"], *numbers, f"{found['rank_correlation']:.2f}"])
    training = (
        "early stopping"
        if recipe["validation"]
        else f"{recipe['epochs']} epochs, a fixed number (the paper stops early on 55,000 images)"
    )
    pieces = [
        "# Where an autoencoder knows what it draws",
        f"Written by {command('latent-map', results['size'])} from its results (LAE Figure 1). Codes of "
        f"{settings['images']:,} test images of {data_name(recipe)}, coloured by class, over the standard deviation of "
        f"the decoder's outputs at every code ({settings['samples']} draws, root mean over pixels; dark is unsure). "
        f"The models are those of [the table of curvatures](hessians.md): {recipe['images']:,} training images, "
        f"{training}. A VAE has one decoder: its standard deviation is the noise that a second network predicts, not "
        "doubt about the first. Every map has a scale of its own.",
        "![Codes over the decoder's standard deviation](latent-map.png)",
        "*Near* and *far* are the mean standard deviations over the quarter of the map nearest to any code and over "
        "the quarter farthest away; the rank correlation is between the distance to the nearest code and the standard "
        "deviation (1: uncertainty grows with every step away from the data).",
        table(["model", "standard deviation of", "near", "far", "far / near", "rank correlation"], lines),
        verdict(results["models"]),
    ]
    return write_page(folder / "latent-map.md", pieces)


def verdict(models: dict[str, dict[str, Any]]) -> str:
    """Who is less sure away from the data."""
    said = [f"- {name}: could not be trained: {found['failed']}" for name, found in models.items() if found["failed"]]
    for name, found in models.items():
        if not found["failed"]:
            grows = found["ratio"] > 1 and found["rank_correlation"] > 0
            how = "grows away from the data" if grows else "does **not** grow away from the data"
            order = f"rank correlation with the distance {found['rank_correlation']:.2f}"
            said.append(f"- {name}: uncertainty {how} (far / near {found['ratio']:.2f}, {order}).")
    return "\n".join(said)

"""`hessians`: which curvature a Laplacian autoencoder needs, after training and while training (LAE Table 2, Figure 8).

MNIST, dense 784-512-256-2 and back. Post-hoc posteriors of one plain autoencoder (Kronecker; exact, approximate and
sketched diagonal), their prior precision chosen by the evidence, with the noise learnt too or fixed at one as in the
paper; and online posteriors with the three diagonals, by our default and by both presets. Every row has the paper's
two numbers (methods.md 6.5) and proper log densities.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import PosteriorAutoencoder, from_posterior
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.estimate import Moments
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.evidence.problem import noise_precision
from marquis.likelihoods import Gaussian
from marquis.priors import BoundPrior
from marquis.report.canvas import png
from marquis.report.examples import Examples, choose, image_figure
from marquis.variational.base import evaluating
from marquis_experiments.cells import cell, timed_from_now, write_json
from marquis_experiments.hessians_report import write_report
from marquis_experiments.shared_autoencoders import ESTIMATORS, PRESETS, RECIPES, Images, Recipe, model
from marquis_experiments.trained import shared_networks

UNIT = "-unit-noise"
"""End of the name of a post-hoc row whose noise is fixed at one, as in the paper."""
POSTHOC = tuple(f"posthoc-{name}" for name in ("kronecker", *ESTIMATORS))
ONLINE = tuple(f"online-{name}{end}" for end in PRESETS for name in ESTIMATORS)
ROWS = ("ae", *POSTHOC, *(f"{name}{UNIT}" for name in POSTHOC), *ONLINE)
MAIN = ("ae", "online-sketched", "online-sketched-paper-code")
"""Rows that are run for several seeds where time is short."""
SHOWN = {
    f"posthoc-kronecker{UNIT}": "post-hoc Kronecker",
    f"posthoc-exact{UNIT}": "post-hoc exact",
    "online-sketched": "online, default",
    "online-sketched-paper-code": "online, paper-code",
    "online-sketched-paper": "online, paper",
}
"""Rows of the picture; the post-hoc ones with unit noise, which is the paper's setting."""


@dataclass(frozen=True)
class Settings:
    """How large the experiment is."""

    recipe: Recipe
    seeds: int = 1
    main_seeds: int = 1
    test: int = 1000
    noise: int = 200
    samples: int = 100
    shown: int = 8


SETTINGS = {
    "quick": Settings(RECIPES["quick"], test=60, noise=50, samples=8, shown=4),
    "default": Settings(RECIPES["default"], main_seeds=2),
    "full": Settings(RECIPES["full"], seeds=5, main_seeds=5, test=10_000, noise=5_000),
}


def run(
    size: str = "default",
    out: str | Path = "runs/hessians",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; models are kept, and shared with other experiments."""
    settings = SETTINGS[size]
    folder, shared = Path(out) / size, shared_networks(out)
    images = Images.load(settings.recipe, data_dir)
    rows: list[dict[str, Any]] = []
    timed = timed_from_now(say)

    results = {"size": size, "settings": asdict(settings), "planned": jobs(settings), "rows": rows}
    try:
        for name, seed in jobs(settings):
            row = one_row(folder, shared, settings, images, name, seed, timed)
            rows.append(row)
            timed(f"{name}, seed {seed}: " + (row["failed"] or f"-log p {row['nlp']:.2f}, MSE {row['mse']:.2f}"))
            write_json(folder / "results.json", results)
        draw_reconstructions(folder, shared, settings, images)
    finally:  # a run that is stopped shows what it has
        page = write_report(folder, results)
    return page


def jobs(settings: Settings) -> list[tuple[str, int]]:
    """Rows and seeds, the first seed of all rows first."""
    wanted = {name: settings.main_seeds if name in MAIN else settings.seeds for name in ROWS}
    return [(name, seed) for seed in range(max(wanted.values())) for name in ROWS if seed < wanted[name]]


def one_row(
    folder: Path,
    shared: Path,
    settings: Settings,
    images: Images,
    name: str,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """One row of the table for one seed, from the folder if it is there."""
    kept = {key: value for key, value in asdict(settings).items() if key not in ("seeds", "main_seeds", "shown")}

    def compute() -> dict[str, Any]:
        outcome = model(shared, name.removesuffix(UNIT), seed, settings.recipe, images, say)
        trained = {"train_seconds": outcome.cpu_seconds, "steps": outcome.steps, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        own = with_unit_noise(outcome.model) if name.endswith(UNIT) else outcome.model
        before = time.process_time()
        found = scores(own, images.test[: settings.test].x, images.train[: settings.noise].x, settings.samples, seed)
        return {**trained, **found, "evaluation_seconds": time.process_time() - before}

    return cell(folder, f"{name}-s{seed}", {"name": name, "seed": seed, **kept}, compute)


def with_unit_noise(fitted: BaseAutoencoder) -> PosteriorAutoencoder:
    """The same curvature with the noise precision fixed at one, and the prior precision by the evidence under it."""
    assert isinstance(fitted, PosteriorAutoencoder) and fitted.laplace is not None
    laplace = fitted.laplace.update(likelihood=Gaussian(1.0))
    laplace.tune("evidence", noise=False)
    return from_posterior(fitted.encoder, fitted.decoder, laplace)


@torch.no_grad()
def scores(own: BaseAutoencoder, test: Tensor, train: Tensor, samples: int, seed: int) -> dict[str, Any]:
    """The paper's two numbers and log densities per image, means over the test images (methods.md 6.5).

    `nlp = (1/S) Σ_s |x - x_s|²` and `mse = |x - (1/S) Σ_s x_s|²`. `log_p` is `log (1/S) Σ_s N(x; x_s, 1/β)` with the
    model's own noise precision β; `log_p_refitted` the same with `β = n O / Σ (1/S) Σ_s |x - x_s|²` of some training
    images, so that a model whose noise is fixed is not punished for that number alone. Cost: `samples` passes.

    Args:
        own: A model with constant Gaussian noise.
        test: Held-out images.
        train: Training images for the noise.
        samples: Draws of the model.
        seed: Of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    found = Moments()
    errors: list[Tensor] = []
    on_train: list[Tensor] = []
    with evaluating(own):
        for draw in own.draws(samples, generator):
            outputs = draw.decode(draw.encode(test)).mean
            found.add(outputs)
            errors.append(squared(outputs, test))
            on_train.append(squared(draw.decode(draw.encode(train)).mean, train))
    each = torch.stack(errors)  # [S, n]
    count, pixels = len(each), test[0].numel()
    own_noise = float(noise_precision(own.likelihood) or 0.0)
    refitted = pixels / float(torch.stack(on_train).mean())
    nlp, mse = each.mean(0), squared(found.mean, test)
    densities = {"log_p": log_density(each, pixels, own_noise), "log_p_refitted": log_density(each, pixels, refitted)}
    result: dict[str, Any] = {
        "nlp": float(nlp.mean()),
        "nlp_error": standard_error(nlp),
        "mse": float(mse.mean()),
        "mse_error": standard_error(mse),
        "variance": float(found.variance.double().flatten(1).sum(1).mean()) * (count - 1) / count,
        "noise_precision": own_noise,
        "noise_refitted": refitted,
        "draws": count,
        "temperature": None,
        "prior_precision": None,
    }
    for name, values in densities.items():
        result |= {name: float(values.mean()), f"{name}_error": standard_error(values)}
    if isinstance(own, LaplacianAutoencoder) and own.online is not None:
        result |= {"temperature": own.temperature, "prior_precision": own.online.state.prior_precision}
    if isinstance(own, PosteriorAutoencoder) and own.laplace is not None:
        prior = own.laplace.prior
        assert isinstance(prior, BoundPrior)
        result |= {"temperature": own.laplace.temperature, "prior_precision": float(prior.precision.mean())}
    return result


def squared(outputs: Tensor, x: Tensor) -> Tensor:
    """Squared error per image, summed over pixels, in float64."""
    return (outputs - x).double().square().flatten(1).sum(1)


def log_density(errors: Tensor, pixels: int, precision: float) -> Tensor:
    """`log (1/S) Σ_s N(x; x_s, 1/β)` per image from squared errors `[S, n]`."""
    each = 0.5 * pixels * math.log(precision / (2 * math.pi)) - 0.5 * precision * errors
    return torch.logsumexp(each, 0) - math.log(len(errors))


def standard_error(values: Tensor) -> float:
    """Of the mean over images."""
    return float(values.std() / len(values) ** 0.5)


def draw_reconstructions(folder: Path, shared: Path, settings: Settings, images: Images) -> None:
    """Figure 8: mean and standard deviation of the drawn networks, for some rows of the first seed."""
    rows = choose(images.test.y, 200, settings.shown)
    originals = images.test[rows].x
    said: dict[str, Examples] = {}
    for name, label in SHOWN.items():
        outcome = model(shared, name.removesuffix(UNIT), 0, settings.recipe, images)
        if outcome.model is None:
            continue
        own = with_unit_noise(outcome.model) if name.endswith(UNIT) else outcome.model
        drawn = own.reconstruct(originals, settings.samples, generator=torch.Generator().manual_seed(0))
        said[label] = Examples(drawn.mean, drawn.variance, None)
    if said:
        (folder / "hessians-reconstructions.png").write_bytes(png(image_figure(originals, said)))

"""The study `hessians`: which curvature a Laplacian autoencoder needs (LAE Table 2, Figure 8).

MNIST, dense 784-512-256-2 and back. Post-hoc posteriors of one plain autoencoder (Kronecker; exact, approximate and
sketched diagonal), their prior precision chosen by the evidence, with the noise learnt or fixed at one as in the paper;
and online posteriors with the three diagonals, by our default and by both presets. Every row has the paper's two
numbers and normalised log densities (docs/method/autoencoders.md).
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import PosteriorAutoencoder, from_posterior
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.predictions import Moments
from marquis.likelihoods import Gaussian
from marquis.priors import BoundPrior
from marquis.report.canvas import png
from marquis.report.examples import Examples, choose, image_figure
from marquis.variational.base import evaluation_mode
from marquis_experiments.common.study import Run, Study
from marquis_experiments.laplacian_autoencoder.models import ESTIMATORS, PRESETS, RECIPES, Images, model
from marquis_experiments.laplacian_autoencoder.table2_hessians.page import values

UNIT = "-unit-noise"
"""Suffix of a post-hoc row whose noise precision is fixed at one, as in the paper."""
POSTHOC = tuple(f"posthoc-{name}" for name in ("kronecker", *ESTIMATORS))
ONLINE = tuple(f"online-{name}{suffix}" for suffix in PRESETS for name in ESTIMATORS)
ROWS = ("ae", *POSTHOC, *(f"{name}{UNIT}" for name in POSTHOC), *ONLINE)
MAIN = ("ae", "online-sketched", "online-sketched-paper-code")
"""Rows that are run for several seeds at the default size."""
SHOWN = {
    f"posthoc-kronecker{UNIT}": "post-hoc Kronecker",
    f"posthoc-exact{UNIT}": "post-hoc exact",
    "online-sketched": "online, default",
    "online-sketched-paper-code": "online, paper-code",
    "online-sketched-paper": "online, paper",
}
"""Rows of the picture; the post-hoc ones with unit noise, which is the paper's setting."""


def measure(run: Run) -> dict[str, Any]:
    """Score every row; models are kept and shared with other studies."""
    images = Images.load(run.settings.recipe, run.data_dir)
    rows: list[dict[str, Any]] = []
    for name, seed in jobs(run.settings):
        row = one_row(run, images, name, seed)
        rows.append(row)
        run.say(f"{name}, seed {seed}: " + (row["failed"] or f"sampled {row['nlp']:.2f}, mean {row['mse']:.2f}"))
    draw_reconstructions(run, images)
    return {"settings": run.settings.plain(), "planned": jobs(run.settings), "rows": rows}


def jobs(settings: Any) -> list[tuple[str, int]]:
    """Return rows and seeds, the first seed of all rows first."""
    wanted = {name: settings.main_seeds if name in MAIN else settings.seeds for name in ROWS}
    return [(name, seed) for seed in range(max(wanted.values())) for name in ROWS if seed < wanted[name]]


def one_row(run: Run, images: Images, name: str, seed: int) -> dict[str, Any]:
    """Return one row of the table for one seed."""
    settings = run.settings

    def compute() -> dict[str, Any]:
        outcome = model(run.shared, name.removesuffix(UNIT), seed, settings.recipe, images, run.say)
        trained = {"train_seconds": outcome.cpu_seconds, "steps": outcome.steps, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        autoencoder = with_unit_noise(outcome.model) if name.endswith(UNIT) else outcome.model
        before = time.process_time()
        test, train = images.test[: settings.test].x, images.train[: settings.noise].x
        scored = scores(autoencoder, test, train, settings.samples, seed)
        return {**trained, **scored, "evaluation_seconds": time.process_time() - before}

    described = {"name": name, "seed": seed, **settings.without("seeds", "main_seeds", "shown")}
    return run.cell(f"{name}-s{seed}", described, compute)


def with_unit_noise(fitted: BaseAutoencoder) -> PosteriorAutoencoder:
    """Return the same curvature with the noise precision fixed at one and the prior precision by the evidence."""
    assert isinstance(fitted, PosteriorAutoencoder) and fitted.laplace is not None
    laplace = fitted.laplace.update(likelihood=Gaussian(1.0))
    laplace.tune("evidence", noise=False)
    return from_posterior(fitted.encoder, fitted.decoder, laplace)


@torch.no_grad()
def scores(autoencoder: BaseAutoencoder, test: Tensor, train: Tensor, samples: int, seed: int) -> dict[str, Any]:
    """Compute the paper's two numbers and log densities per image, means over the test images.

    `nlp = (1/S) Σ_s |x - x_s|²` and `mse = |x - (1/S) Σ_s x_s|²`. `log_p` is `log (1/S) Σ_s N(x; x_s, 1/β)` with the
    model's noise precision β; `log_p_refitted` the same with `β = n O / Σ (1/S) Σ_s |x - x_s|²` of training images, so
    that a model with fixed noise is not judged by that number alone. Cost: `samples` forward passes.

    Args:
        autoencoder: A model with constant Gaussian noise.
        test: Held-out images.
        train: Training images for the noise.
        samples: Number of posterior samples.
        seed: Random seed of the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    moments = Moments()
    errors: list[Tensor] = []
    train_errors: list[Tensor] = []
    with evaluation_mode(autoencoder):
        for sample in autoencoder.draws(samples, generator):
            outputs = sample.decode(sample.encode(test)).mean
            moments.add(outputs)
            errors.append(squared(outputs, test))
            train_errors.append(squared(sample.decode(sample.encode(train)).mean, train))
    each = torch.stack(errors)  # [S, n]
    count, pixels = len(each), test[0].numel()
    noise = float(autoencoder.likelihood.scalar_noise_precision or 0.0)
    refitted = pixels / float(torch.stack(train_errors).mean())
    per_image = {
        "nlp": each.mean(0),
        "mse": squared(moments.mean, test),
        "log_p": log_density(each, pixels, noise),
        "log_p_refitted": log_density(each, pixels, refitted),
    }
    result: dict[str, Any] = {
        "variance": float(moments.estimate().variance.double().flatten(1).sum(1).mean()) * (count - 1) / count,
        "noise_precision": noise,
        "noise_refitted": refitted,
        "draws": count,
        "temperature": None,
        "prior_precision": None,
    }
    for name, each in per_image.items():
        result |= {name: float(each.mean()), f"{name}_error": float(each.std() / len(each) ** 0.5)}
    if isinstance(autoencoder, LaplacianAutoencoder) and autoencoder.online is not None:
        prior_precision = autoencoder.online.state.prior_precision
        result |= {"temperature": autoencoder.effective_temperature, "prior_precision": prior_precision}
    if isinstance(autoencoder, PosteriorAutoencoder) and autoencoder.laplace is not None:
        prior = autoencoder.laplace.prior
        assert isinstance(prior, BoundPrior)
        result |= {"temperature": autoencoder.laplace.temperature, "prior_precision": float(prior.precision.mean())}
    return result


def squared(outputs: Tensor, x: Tensor) -> Tensor:
    """Compute the squared error per image, summed over pixels, in float64."""
    return (outputs - x).double().square().flatten(1).sum(1)


def log_density(errors: Tensor, pixels: int, precision: float) -> Tensor:
    """Compute `log (1/S) Σ_s N(x; x_s, 1/β)` per image from squared errors `[S, n]`."""
    each = 0.5 * pixels * math.log(precision / (2 * math.pi)) - 0.5 * precision * errors
    return torch.logsumexp(each, 0) - math.log(len(errors))


def draw_reconstructions(run: Run, images: Images) -> None:
    """Draw Figure 8: mean and standard deviation of sampled networks, for some rows of the first seed."""
    chosen = choose(images.test.y, 200, run.settings.shown)
    originals = images.test[chosen].x
    examples: dict[str, Examples] = {}
    for name, label in SHOWN.items():
        trained = model(run.shared, name.removesuffix(UNIT), 0, run.settings.recipe, images).model
        if trained is None:
            continue
        autoencoder = with_unit_noise(trained) if name.endswith(UNIT) else trained
        outputs = autoencoder.reconstruct(originals, run.settings.samples, generator=torch.Generator().manual_seed(0))
        examples[label] = Examples(outputs.mean, outputs.variance, None)
    if examples:
        (run.folder / "hessians-reconstructions.png").write_bytes(png(image_figure(originals, examples)))


# fmt: off
STUDY = Study(
    "hessians", Path(__file__).with_name("page.md"), measure, values, cells=".",
    default={
        "recipe": RECIPES["default"], "seeds": 1, "main_seeds": 2, "test": 1000, "noise": 200, "samples": 100,
        "shown": 8,
    },
    quick={"recipe": RECIPES["quick"], "main_seeds": 1, "test": 60, "noise": 50, "samples": 8, "shown": 4},
    full={"recipe": RECIPES["full"], "seeds": 5, "main_seeds": 5, "test": 10_000, "noise": 5_000},
)
# fmt: on

"""The study `hessians`: which curvature a Laplacian autoencoder needs (LAE Table 2, Figure 8).

MNIST, dense 784-512-256-2 and back. Post-hoc posteriors of one plain autoencoder (Kronecker; exact, approximate and
sketched diagonal), their prior precision chosen by the evidence, with the noise learnt or fixed at one as in the paper,
sampled or linearised; online posteriors with the three diagonals, by our default and by the presets, that of the paper
with three rates of forgetting; the other autoencoders, and those that learn their variance. Every row has the paper's
two numbers and normalised log densities (docs/method/autoencoders.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import Autoencoder, PosteriorAutoencoder, fit_posthoc, from_posterior, linearised
from marquis.autoencoders.base import BaseAutoencoder
from marquis.autoencoders.laplacian import LaplacianAutoencoder
from marquis.autoencoders.learnt_variance import LearntVarianceAutoencoder, PredictedNoise
from marquis.autoencoders.predictions import SampleMoments
from marquis.likelihoods import Gaussian, Heteroscedastic
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
LINEARISED = "-linearised"
"""Suffix of a row whose predictive is linearised."""
LAPLACE = "-laplace"
"""Suffix of the autoencoder with learnt variance and a post-hoc posterior over all its weights."""
OTHERS = (
    "ae-variance",
    f"ae-variance{LAPLACE}",
    "vae",
    "vae-kl-0.001",
    "dropout",
    "ensemble",
    "bbb",
    "online-variance",
)
ONLINE = tuple(f"online-{name}{suffix}" for suffix in PRESETS for name in ESTIMATORS)
ROWS = (
    "ae",
    *(f"{name}{suffix}" for suffix in ("", UNIT, LINEARISED) for name in POSTHOC),
    *ONLINE,
    *OTHERS,
)
MAIN = ("ae", f"posthoc-exact{UNIT}", "online-sketched", "online-exact", "online-sketched-paper-code")
"""Rows that are run first, and for several seeds at the default size."""
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
        run.keep({"settings": run.settings.plain(), "planned": jobs(run.settings), "rows": rows})
        run.say(f"{name}, seed {seed}: " + (row["failed"] or f"sampled {row['nlp']:.2f}, mean {row['mse']:.2f}"))
    draw_reconstructions(run, images)
    return {"settings": run.settings.plain(), "planned": jobs(run.settings), "rows": rows}


def jobs(settings: Any) -> list[tuple[str, int]]:
    """Return rows and seeds, the first seed of all rows first.

    In a seed the rows that carry the claims and are made of the plain autoencoder come first, then the other rows made
    of it, which cost no training, then the other trainings, the longest ones last.
    """

    def rank(name: str) -> tuple[bool, bool, bool]:
        trained = not (name == "ae" or name.startswith("posthoc"))
        return trained, name not in MAIN, trained and (name == "ensemble" or "exact" in name)

    order = sorted(ROWS, key=rank)
    seeds = {name: settings.main_seeds if name in MAIN else settings.seeds for name in order}
    return [(name, seed) for seed in range(max(seeds.values())) for name in order if seed < seeds[name]]


def one_row(run: Run, images: Images, name: str, seed: int) -> dict[str, Any]:
    """Return one row of the table for one seed."""
    settings = run.settings

    def compute() -> dict[str, Any]:
        suffix = next((one for one in READ_AS if name.endswith(one)), "")
        outcome = model(run.shared, name.removesuffix(suffix), seed, settings.recipe, images, run.say)
        trained = {"train_seconds": outcome.cpu_seconds, "steps": outcome.steps, "failed": outcome.failed}
        if outcome.model is None:
            return trained
        autoencoder = READ_AS[suffix](outcome.model, images.train.x) if suffix else outcome.model
        before = time.process_time()
        test, train = images.test[: settings.test].x, images.train[: settings.noise].x
        scored = scores(autoencoder, test, train, settings.samples, seed)
        return {**trained, **scored, "evaluation_seconds": time.process_time() - before}

    described = {"name": name, "seed": seed, **settings.without("seeds", "main_seeds", "shown")}
    return run.cell(f"{name}-s{seed}", described, compute, "rows")


def with_unit_noise(fitted: BaseAutoencoder, x: Tensor) -> PosteriorAutoencoder:
    """Return the same curvature with the noise precision fixed at one and the prior precision by the evidence."""
    assert isinstance(fitted, PosteriorAutoencoder) and fitted.laplace is not None
    laplace = fitted.laplace.update(likelihood=Gaussian(1.0))
    laplace.tune("evidence", noise=False)
    return from_posterior(fitted.encoder, fitted.decoder, laplace)


def with_linear_predictive(fitted: BaseAutoencoder, x: Tensor) -> BaseAutoencoder:
    """Return the same posterior with its predictive linearised at the mean weights."""
    assert isinstance(fitted, PosteriorAutoencoder)
    return linearised(fitted)


def with_posterior(trained: BaseAutoencoder, x: Tensor) -> PosteriorAutoencoder:
    """Return an autoencoder with learnt variance with a post-hoc posterior over the weights of all three networks."""
    assert isinstance(trained, LearntVarianceAutoencoder)
    decoder = PredictedNoise(trained.decoder, trained.variance_decoder, trained.min_log_sigma)
    plain = Autoencoder(trained.encoder, decoder, Heteroscedastic()).eval()
    generator = torch.Generator().manual_seed(0)
    return fit_posthoc(plain, x.split(128), "diagonal", "sketched", generator=generator, progress=False)


READ_AS: dict[str, Callable[[BaseAutoencoder, Tensor], BaseAutoencoder]] = {
    UNIT: with_unit_noise,
    LINEARISED: with_linear_predictive,
    LAPLACE: with_posterior,
}
"""Suffix of a row to what is made of the trained model and its training images."""


@torch.no_grad()
def scores(autoencoder: BaseAutoencoder, test: Tensor, train: Tensor, samples: int, seed: int) -> dict[str, Any]:
    """Compute the paper's two numbers and log densities per image, means over the test images.

    `nlp = (1/S) Σ_s |x - x_s|²` and `mse = |x - (1/S) Σ_s x_s|²`. `log_p` is `log (1/S) Σ_s N(x; x_s, 1/β)` with the
    model's noise precision β; `log_p_refitted` the same with `β = n O / Σ (1/S) Σ_s |x - x_s|²` of training images, so
    that a model with fixed noise is not judged by that number alone. Where the decoder predicts the noise, `log_p` is
    the model's own. Cost: `samples` forward passes, twice with predicted noise.

    Args:
        autoencoder: A model with Gaussian noise.
        test: Held-out images.
        train: Training images for the noise.
        samples: Number of posterior samples.
        seed: Random seed of the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    moments = SampleMoments()
    errors: list[Tensor] = []
    train_errors: list[Tensor] = []
    with evaluation_mode(autoencoder):
        for sample in autoencoder.sampled_models(samples, generator):
            outputs = sample.decode(sample.encode(test)).mean
            moments.add(outputs)
            errors.append(squared(outputs, test))
            train_errors.append(squared(sample.decode(sample.encode(train)).mean, train))
    each = torch.stack(errors)  # [S, n]
    count, pixels = len(each), test[0].numel()
    noise = (
        None
        if autoencoder.likelihood.scalar_noise_precision is None
        else float(autoencoder.likelihood.scalar_noise_precision)
    )
    refitted = pixels / float(torch.stack(train_errors).mean())
    per_image = {
        "nlp": each.mean(0),
        "mse": squared(moments.mean, test),
        "log_p": own_density(autoencoder, test, samples, seed) if noise is None else log_density(each, pixels, noise),
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


def own_density(autoencoder: BaseAutoencoder, x: Tensor, samples: int, seed: int) -> Tensor:
    """Compute the model's own log density per image."""
    generator = torch.Generator().manual_seed(seed)
    density = autoencoder.reconstruct(x, samples, generator=generator).log_prob
    assert density is not None
    return density


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
        autoencoder = with_unit_noise(trained, images.train.x) if name.endswith(UNIT) else trained
        outputs = autoencoder.reconstruct(originals, run.settings.samples, generator=torch.Generator().manual_seed(0))
        examples[label] = Examples(outputs.mean, outputs.variance, None)
    if examples:
        (run.folder / "hessians-reconstructions.png").write_bytes(png(image_figure(originals, examples)))


# fmt: off
STUDY = Study(
    "hessians", Path(__file__).with_name("page.md"), measure, values, cells=".",
    default={
        "recipe": RECIPES["default"], "seeds": 1, "main_seeds": 3, "test": 1000, "noise": 200, "samples": 100,
        "shown": 8,
    },
    quick={"recipe": RECIPES["quick"], "main_seeds": 1, "test": 60, "noise": 50, "samples": 8, "shown": 4},
    full={"recipe": RECIPES["full"], "seeds": 5, "main_seeds": 5, "test": 10_000, "noise": 5_000},
)
# fmt: on

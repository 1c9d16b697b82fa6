"""One cell of `claims`: data, a model, its training and its held-out scores."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import Autoencoder, BaseAutoencoder, LaplacianAutoencoder, MeanFieldAutoencoder, for_data
from marquis.data import load
from marquis.errors import MarquisError
from marquis.likelihoods import Gaussian
from marquis.online.settings import NEW_NAMES
from marquis.tasks.calibration import coverage
from marquis.tasks.ranking import auroc
from marquis_experiments.common.study import Settings
from marquis_experiments.common.training import Shuffled, descend

LATENT, BATCH, LEVEL = 2, 64, 0.9
QUIET, LIVELY = 0.1, 0.3
"""Standard deviations over the training data below which a pixel hardly varies and above which it varies most."""


@dataclass(frozen=True)
class Job:
    """Describe one row of one part; everything but `part` and `label` identifies its cell."""

    part: str
    label: str
    model: str
    seed: int
    epochs: int
    lr: float
    data: str = "digits"
    width: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Images:
    """Hold training and test images of a cell; `outside` maps a name to outliers."""

    train: Tensor
    test: Tensor
    outside: dict[str, Tensor]


def number_of_training_images(settings: Settings) -> int:
    """Return the number of training digits: four in five."""
    return settings.train or len(load("digits", "all").x) * 4 // 5


def read(job: Job, settings: Settings, data_dir: str | Path | None) -> Images:
    """Load digits, split anew for every seed, with two kinds of outliers; or Fashion-MNIST with MNIST.

    `shuffled`: rows and columns of each held-out image in random order, which keeps its grey levels.
    `mirrored`: each held-out image flipped; some digits do not change, so that an AUROC of 1 is out of reach.
    """
    generator = torch.Generator().manual_seed(job.seed)
    if job.data != "digits":
        train, test = (load(job.data, split, data_dir).x for split in ("train", "test"))
        other = load("mnist", "test", data_dir).x
        rows = torch.randperm(len(train), generator=generator)[: settings.fashion]
        return Images(train[rows], test[: settings.test], {"mnist": other[: settings.test]})
    everything = load("digits", "all").x
    order = torch.randperm(len(everything), generator=generator)
    border = len(everything) * 4 // 5
    test = everything[order[border:]]
    edge = test.shape[-1]
    shuffled = torch.stack(
        [
            image[:, torch.randperm(edge, generator=generator)][:, :, torch.randperm(edge, generator=generator)]
            for image in test
        ]
    )
    outside = {"shuffled": shuffled, "mirrored": test.flip(-1)}
    return Images(everything[order[:border]][: settings.train], test, outside)


def build(job: Job, images: Images) -> BaseAutoencoder:
    """Return an untrained model; its initial weights depend on the seed alone, so that models compare in pairs."""
    encoder, decoder = for_data(images.train.shape[1:], LATENT, job.width, kind="dense", seed=job.seed)
    generator = torch.Generator().manual_seed(1000 + job.seed)
    number, options = len(images.train), {NEW_NAMES.get(name, name): value for name, value in job.options.items()}
    if job.model == "plain":
        return Autoencoder(encoder, decoder, lr=job.lr)
    if job.model == "mean-field":
        likelihood = Gaussian(options.pop("noise_precision", 1.0))
        return MeanFieldAutoencoder(
            encoder, decoder, likelihood, num_data=number, generator=generator, lr=job.lr, **options
        )
    return LaplacianAutoencoder(encoder, decoder, num_data=number, generator=generator, lr=job.lr, **options)


def evaluate(job: Job, settings: Settings, images: Images) -> dict[str, Any]:
    """Train one model and score it; a training that fails is a row with the reason."""
    model = build(job, images)
    optimiser = torch.optim.Adam(model.parameter_groups(), job.lr, fused=True)
    batches = Shuffled((images.train,), BATCH, 2000 + job.seed)
    curve = [float((model(images.test) - images.test).detach().square().flatten(1).sum(1).mean())]
    started = time.thread_time()
    try:
        for _ in range(job.epochs):
            deque(descend(optimiser, batches, 1, lambda x: model.loss(x, None)), 0)
            curve.append(float(scored(model, images.test, 5).sampled_errors.mean()))
        seconds = time.thread_time() - started
        result = {**scores(model, images, settings.draws), "curve": curve, "cpu_seconds": seconds}
    except MarquisError as error:
        return {"failed": f"{type(error).__name__}: {error}", "curve": curve}
    means = [*model.encoder.parameters(), *model.decoder.parameters()]
    result["weights"] = sum(p.numel() for p in means)
    result["weight_size"] = (sum(float(p.detach().square().sum()) for p in means) / result["weights"]) ** 0.5
    if isinstance(model, LaplacianAutoencoder) and model.online is not None:
        state, effective = model.online.state, model.effective_temperature
        result |= {"noise": state.noise_precision, "prior": state.prior_precision, "effective": effective}
    return result


@dataclass(frozen=True)
class Scored:
    """Hold the scores of images under a model, per image except for `sampled_errors [draws, n]` and `covered`."""

    sampled_errors: Tensor
    error: Tensor
    log_prob: Tensor
    expected_log_prob: Tensor
    output_variance: Tensor
    latent_variance: Tensor
    covered: Tensor


def scored(model: BaseAutoencoder, x: Tensor, draws: int, batch: int = 500) -> Scored:
    """Score images in batches that all use the same posterior samples."""
    parts: list[tuple[Tensor, ...]] = []
    for part in x.split(batch):
        outputs = model.reconstruct(part, draws, generator=torch.Generator().manual_seed(0), keep=True)
        assert outputs.samples is not None
        covered = coverage(outputs.mean, outputs.total_variance, part, (LEVEL,))[LEVEL]
        parts.append(
            (
                (outputs.samples - part).square().flatten(2).sum(2).T,
                (outputs.mean - part).square().flatten(1).sum(1),
                outputs.log_prob,
                outputs.expected_log_prob,
                outputs.variance.flatten(1).sum(1),
                outputs.latent.variance.flatten(1).sum(1),
                torch.full((len(part),), covered),
            )
        )
    joined = [torch.cat(values) for values in zip(*parts, strict=True)]
    return Scored(joined[0].T, *joined[1:])


def scores(model: BaseAutoencoder, images: Images, draws: int) -> dict[str, Any]:
    """Compute held-out scores with the same posterior samples for all data.

    `log_prob` uses the model's noise. `refitted_log_prob` uses, for every model alike, the noise that fits the sampled
    networks' errors on training data: what a noise fixed at 1 costs is then left out.
    """
    held_out = scored(model, images.test, draws)
    train = scored(model, images.train[: len(images.test)], draws)
    pixels = images.test[0].numel()
    result: dict[str, Any] = {
        "error": float(held_out.error.mean()),
        "log_prob": float(held_out.log_prob.mean()),
        "expected_log_prob": float(held_out.expected_log_prob.mean()),
        "refitted_log_prob": float(log_mixture(held_out.sampled_errors, pixels, train.sampled_errors).mean()),
        "coverage": float(held_out.covered.mean()),
        "pixel_coverage": pixel_coverage(model, images, draws),
        "output_variance": float(held_out.output_variance.mean()),
        "latent_variance": float(held_out.latent_variance.mean()),
        "mean_image_error": float((images.train.mean(0) - images.test).square().flatten(1).sum(1).mean()),
        "auroc": {},
    }
    for name, x in images.outside.items():
        other = scored(model, x, draws)
        result["auroc"][name] = {
            "nll": auroc(-held_out.log_prob, -other.log_prob),
            "output": auroc(held_out.output_variance, other.output_variance),
            "latent": auroc(held_out.latent_variance, other.latent_variance),
        }
    return result


def pixel_coverage(model: BaseAutoencoder, images: Images, draws: int) -> dict[str, float]:
    """Compute the coverage of pixels that hardly vary over the training data, and of those that vary most."""
    x, spread = images.test[:1000], images.train.std(0)
    outputs = model.reconstruct(x, draws, generator=torch.Generator().manual_seed(0))
    places = {"quiet": spread < QUIET, "lively": spread > LIVELY}
    return {
        name: coverage(outputs.mean[:, where], outputs.total_variance[:, where], x[:, where], (LEVEL,))[LEVEL]
        for name, where in places.items()
    }


def log_mixture(errors: Tensor, pixels: int, train_errors: Tensor) -> Tensor:
    """Compute `log (1/S) Σ_s N(x; f_s, I/β)` per image from squared errors `[S, n]`, β from those of training data."""
    precision = pixels / float(train_errors.mean())
    constant = 0.5 * pixels * math.log(precision / (2 * math.pi)) - math.log(len(errors))
    return (-0.5 * precision * errors).logsumexp(0) + constant

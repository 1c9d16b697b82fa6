"""One cell of `claims`: data, a model, its training and its held-out scores."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.autoencoders import Autoencoder, BaseAutoencoder, LaplacianAutoencoder, MeanFieldAutoencoder, for_data
from marquis.autoencoders.base import adam
from marquis.data import load
from marquis.errors import MarquisError
from marquis.likelihoods import Gaussian
from marquis.tasks.calibration import coverage
from marquis.tasks.ranking import auroc

LATENT, BATCH, LEVEL = 2, 64, 0.9
QUIET, LIVELY = 0.1, 0.3
"""Standard deviations over the training data below and above which a pixel is called so."""


@dataclass(frozen=True)
class Settings:
    """How large the experiment is. Epochs of Fashion-MNIST are passes over `fashion` images."""

    seeds: int = 2
    epochs: int = 40
    lr: float = 2e-3
    train: int | None = None
    fashion: int = 5000
    fashion_epochs: int = 12
    fashion_seeds: int = 1
    test: int = 1000
    temperatures: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)
    widths: tuple[float, ...] = (1 / 16, 1 / 4, 1.0, 2.0)
    samples_epochs: int = 20
    draws: int = 50


@dataclass(frozen=True)
class Job:
    """One row of one part; everything but `part` and `label` is the cell's identity."""

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
    """What a cell is trained on and judged by; `outside` maps a name to outliers."""

    train: Tensor
    test: Tensor
    outside: dict[str, Tensor]


def number_of_training_images(settings: Settings) -> int:
    """Of the digits: four in five."""
    return settings.train or len(load("digits", "all").x) * 4 // 5


def read(job: Job, settings: Settings, data_dir: str | Path | None) -> Images:
    """Digits, split anew for every seed, with two kinds of outliers; or Fashion-MNIST with MNIST.

    `shuffled`: rows and columns of each held-out image in random order, so that grey levels alone tell nothing.
    `mirrored`: each held-out image the other way round; some digits do not change, so nobody can reach 1.
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
    """An untrained model; the networks' start depends on the seed alone, so that models are compared in pairs."""
    encoder, decoder = for_data(images.train.shape[1:], LATENT, job.width, kind="dense", seed=job.seed)
    generator = torch.Generator().manual_seed(1000 + job.seed)
    number, options = len(images.train), dict(job.options)
    if job.model == "plain":
        return Autoencoder(encoder, decoder, lr=job.lr)
    if job.model == "mean-field":
        likelihood = Gaussian(options.pop("noise_precision", 1.0))
        return MeanFieldAutoencoder(
            encoder, decoder, likelihood, num_data=number, generator=generator, lr=job.lr, **options
        )
    return LaplacianAutoencoder(encoder, decoder, num_data=number, generator=generator, lr=job.lr, **options)


def evaluate(job: Job, settings: Settings, images: Images) -> dict[str, Any]:
    """Train one model and judge it; a training that fails says why, it does not stop the experiment."""
    model = build(job, images)
    optimiser = adam(model.parameter_groups(), job.lr)
    order = torch.Generator().manual_seed(2000 + job.seed)
    curve = [float((model(images.test) - images.test).detach().square().flatten(1).sum(1).mean())]
    started = time.thread_time()
    try:
        for _ in range(job.epochs):
            for rows in torch.randperm(len(images.train), generator=order).split(BATCH):
                optimiser.zero_grad()
                model.loss(images.train[rows], None).backward()
                optimiser.step()
            curve.append(float(judged(model, images.test, 5).sampled_errors.mean()))
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
class Judged:
    """What a model says about some images, per image but for `sampled_errors [draws, n]` and `covered`."""

    sampled_errors: Tensor
    error: Tensor
    log_prob: Tensor
    expected_log_prob: Tensor
    output_variance: Tensor
    latent_variance: Tensor
    covered: Tensor


def judged(model: BaseAutoencoder, x: Tensor, draws: int, batch: int = 500) -> Judged:
    """In batches that all meet the same draws; `sampled_errors` are squared errors of the single networks."""
    parts: list[tuple[Tensor, ...]] = []
    for part in x.split(batch):
        said = model.reconstruct(part, draws, generator=torch.Generator().manual_seed(0), keep=True)
        assert said.samples is not None
        inside = coverage(said.mean, said.total_variance, part, (LEVEL,))[LEVEL]
        parts.append(
            (
                (said.samples - part).square().flatten(2).sum(2).T,
                (said.mean - part).square().flatten(1).sum(1),
                said.log_prob,
                said.expected_log_prob,
                said.variance.flatten(1).sum(1),
                said.latent.variance.flatten(1).sum(1),
                torch.full((len(part),), inside),
            )
        )
    joined = [torch.cat(values) for values in zip(*parts, strict=True)]
    return Judged(joined[0].T, *joined[1:])


def scores(model: BaseAutoencoder, images: Images, draws: int) -> dict[str, Any]:
    """Held-out scores with the same draws for all data.

    `log_prob` is with the model's own noise. `refitted_log_prob` is with the noise that suits the drawn networks'
    errors on training data, for every model alike: what a fixed noise of 1 costs is then left out.
    """
    said = judged(model, images.test, draws)
    seen = judged(model, images.train[: len(images.test)], draws)
    pixels = images.test[0].numel()
    result: dict[str, Any] = {
        "error": float(said.error.mean()),
        "log_prob": float(said.log_prob.mean()),
        "expected_log_prob": float(said.expected_log_prob.mean()),
        "refitted_log_prob": float(log_mixture(said.sampled_errors, pixels, seen.sampled_errors).mean()),
        "coverage": float(said.covered.mean()),
        "pixel_coverage": pixel_coverage(model, images, draws),
        "output_variance": float(said.output_variance.mean()),
        "latent_variance": float(said.latent_variance.mean()),
        "mean_image_error": float((images.train.mean(0) - images.test).square().flatten(1).sum(1).mean()),
        "auroc": {},
    }
    for name, x in images.outside.items():
        other = judged(model, x, draws)
        result["auroc"][name] = {
            "nll": auroc(-said.log_prob, -other.log_prob),
            "output": auroc(said.output_variance, other.output_variance),
            "latent": auroc(said.latent_variance, other.latent_variance),
        }
    return result


def pixel_coverage(model: BaseAutoencoder, images: Images, draws: int) -> dict[str, float]:
    """Coverage by itself for pixels that hardly vary over the training data, and for those that vary most."""
    x, spread = images.test[:1000], images.train.std(0)
    said = model.reconstruct(x, draws, generator=torch.Generator().manual_seed(0))
    places = {"quiet": spread < QUIET, "lively": spread > LIVELY}
    return {
        name: coverage(said.mean[:, where], said.total_variance[:, where], x[:, where], (LEVEL,))[LEVEL]
        for name, where in places.items()
    }


def log_mixture(errors: Tensor, pixels: int, train_errors: Tensor) -> Tensor:
    """`log (1/S) Σ_s N(x; f_s, I/β)` per image, from squared errors `[S, n]`, with `β` from those of training data."""
    precision = pixels / float(train_errors.mean())
    constant = 0.5 * pixels * math.log(precision / (2 * math.pi)) - math.log(len(errors))
    return (-0.5 * precision * errors).logsumexp(0) + constant

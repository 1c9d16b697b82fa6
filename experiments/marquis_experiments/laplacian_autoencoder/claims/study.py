"""The study `claims`: claims of the LAE paper that have no table, and the ablation behind our default.

Parts (docs/method/online.md), on the 8x8 digits, or on Fashion-MNIST where the name says so; codes of dimension 2,
Adam, constant learning rate:

- `ablation`: noise fixed or learnt x prior fixed or learnt x temperature, both presets, a plain autoencoder
- `fashion`: the main rows of it on part of Fashion-MNIST, with MNIST as outliers
- `width` and `fashion-width`: over-parametrisation, on both data sets
- `forgetting`: the forgetting rate B/N against the learning rate
- `samples`: one sampled network per step against ten
- `backprop`: learning curves of Bayes by Backprop

A cell is one trained model; parts share cells.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from marquis_experiments.common.study import Run, Settings, Study
from marquis_experiments.laplacian_autoencoder.claims import training
from marquis_experiments.laplacian_autoencoder.claims.page import draw, values
from marquis_experiments.laplacian_autoencoder.claims.training import BATCH, LATENT, Job

PARTS = ("ablation", "fashion", "width", "fashion-width", "forgetting", "samples", "backprop")


def measure(run: Run) -> dict[str, Any]:
    """Train and score every row, seed by seed."""
    rows: list[dict[str, Any]] = []
    for job in jobs(run.settings):
        row = one_cell(run, job)
        rows.append({**row, "part": job.part, "label": job.label})
        text = f"error {row['error']:.2f}, log p {row['refitted_log_prob']:.1f}" if "error" in row else row["failed"]
        run.say(f"{job.part}, seed {job.seed}, {job.label}: {text}")
    return {"settings": run.settings.plain(), "rows": rows}


def one_cell(run: Run, job: Job) -> dict[str, Any]:
    """Return the cell of a row, which several parts may share."""
    settings = run.settings
    images = {"train": settings.fashion, "test": settings.test} if job.data != "digits" else {"train": settings.train}
    described = {**asdict(job), **images, "latent": LATENT, "batch": BATCH, "draws": settings.draws}
    del described["part"], described["label"]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
    name = f"{job.data}-{job.model}-s{job.seed}-{digest}"
    done = run.stored(name, {**described, "part": job.part, "label": job.label}, "rows")  # committed rows say the part
    return done or run.cell(
        name,
        described,
        lambda: training.evaluate(job, settings, training.read(job, settings, run.data_dir)),
    )


def jobs(settings: Settings) -> list[Job]:
    """Return all rows, the first seed of every part first."""
    rows: list[Job] = []
    for seed in range(settings.seeds):
        common: dict[str, Any] = {"seed": seed, "epochs": settings.epochs, "lr": settings.lr}
        rows += [Job("ablation", *row[:2], **common, options=row[2]) for row in ablation(settings.temperatures)]
        rows += by_width("width", settings, common)
        rows += [Job("forgetting", *row[:2], **common, options=row[2]) for row in forgetting(settings)]
        rows += sampling(settings, seed)
        rows += [Job("backprop", *row[:2], **{**common, **row[3]}, options=row[2]) for row in BACKPROP]
    if settings.fashion:
        for seed in range(settings.fashion_seeds):
            common = {"seed": seed, "epochs": settings.fashion_epochs, "lr": 1e-3, "data": "fashion-mnist"}
            rows += [Job("fashion", *row[:2], **common, options=row[2]) for row in ablation((1.0, 0.01), main=True)]
        for seed in range(settings.fashion_width_seeds):
            common = {"seed": seed, "epochs": settings.fashion_epochs, "lr": 1e-3, "data": "fashion-mnist"}
            rows += by_width("fashion-width", settings, common)
    return sorted(rows, key=lambda job: (job.seed, PARTS.index(job.part)))


def by_width(part: str, settings: Settings, common: dict[str, Any]) -> list[Job]:
    """Return a row for every width and model."""
    return [
        Job(part, f"{kind}, width {width:g}", model, **common, width=width, options=options)
        for width, (kind, model, options) in product(settings.widths, WIDTH_MODELS)
    ]


Row = tuple[str, str, dict[str, Any]]
DEFAULT: dict[str, Any] = {"noise_precision": "learnt", "prior_precision": 1.0, "temperature": 0.01}
"""The shipped default, written out so that a change of the library does not change the meaning of stored cells."""


def ablation(temperatures: tuple[float, ...], main: bool = False) -> list[Row]:
    """Return noise x prior x temperature, presets, a plain autoencoder; `main`: one change of the default at most."""
    rows: list[Row] = [("plain autoencoder", "plain", {})]
    for noise, prior, temperature in product((1.0, "learnt"), (1.0, "learnt"), temperatures):
        options = {"noise_precision": noise, "prior_precision": prior, "temperature": temperature}
        if main and sum(options[name] != DEFAULT[name] for name in options) > 1:
            continue
        parts = [f"noise {'learnt' if noise == 'learnt' else 1}", f"prior {'learnt' if prior == 'learnt' else 1}"]
        rows.append((", ".join([*parts, f"T = {temperature:g}"]), "laplacian", options))
    return [*rows, *((f'preset "{name}"', "laplacian", {"preset": name}) for name in ("paper", "paper-code"))]


WIDTH_MODELS: tuple[Row, ...] = (
    ("plain", "plain", {}),
    ("default", "laplacian", DEFAULT),
    ("paper-code", "laplacian", {"preset": "paper-code"}),
)


def forgetting(settings: Settings) -> list[Row]:
    """Return rows for the rate α: B/N, the learning rate, and that with a temperature that cancels the larger H."""
    ratio = BATCH / training.number_of_training_images(settings) / settings.lr
    matched = float(f"{DEFAULT['temperature'] * ratio:.3g}")
    slow = {"forgetting": settings.lr}
    return [
        ("B/N, T = 0.01", "laplacian", DEFAULT),
        ("learning rate, T = 0.01", "laplacian", {**DEFAULT, **slow}),
        ("learning rate, T matched", "laplacian", {**DEFAULT, **slow, "temperature": matched}),
        ("B/N, T = 1", "laplacian", {**DEFAULT, "temperature": 1.0}),
        ("learning rate, T = 1", "laplacian", {**DEFAULT, **slow, "temperature": 1.0}),
    ]


def sampling(settings: Settings, seed: int) -> list[Job]:
    """Return rows with one network per step, ten with as many steps, ten with a tenth of the steps (equal cost)."""
    rows = []
    for temperature, (samples, epochs) in product(
        (0.01, 1.0), ((1, settings.samples_epochs), (10, settings.samples_epochs), (10, settings.samples_epochs // 10))
    ):
        options = {**DEFAULT, "temperature": temperature, **({"samples": samples} if samples > 1 else {})}
        epochs = max(epochs, 1)
        label = f"{samples} per step, {epochs} epoch{'s' * (epochs > 1)}, T = {temperature:g}"
        rows.append(Job("samples", label, "laplacian", seed, epochs, settings.lr, options=options))
    return rows


BACKPROP: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("plain autoencoder", "plain", {}, {}),
    ("Laplacian, default", "laplacian", DEFAULT, {}),
    ("as published, rate 0.002", "mean-field", {}, {}),
    ("as published, rate 0.01", "mean-field", {}, {"lr": 1e-2}),
    ("noise precision 30", "mean-field", {"noise_precision": 30.0}, {}),
    ("noise precision 30, rate 0.01", "mean-field", {"noise_precision": 30.0}, {"lr": 1e-2}),
    ("noise precision 30, KL x 0.01", "mean-field", {"noise_precision": 30.0, "tempering": 0.01}, {}),
)
"""Bayes by Backprop from the published initialisation; 30 is about the noise precision that our default learns."""

# fmt: off
STUDY = Study(
    "claims", Path(__file__).with_name("page.md"), measure, values, draw,
    default={
        "seeds": 2, "epochs": 40, "lr": 2e-3, "train": None, "fashion": 5000, "fashion_epochs": 12, "fashion_seeds": 1,
        "fashion_width_seeds": 2, "test": 1000, "temperatures": (1.0, 0.1, 0.01, 0.001),
        "widths": (1 / 16, 1 / 4, 1.0, 2.0), "samples_epochs": 20, "draws": 50,
    },
    quick={
        "seeds": 1, "epochs": 2, "train": 200, "fashion": 0, "temperatures": (0.01,), "widths": (1 / 16, 1.0),
        "samples_epochs": 2, "draws": 10,
    },
    full={
        "seeds": 10, "epochs": 200, "fashion": 55_000, "fashion_epochs": 60, "fashion_seeds": 5, "test": 10_000,
        "fashion_width_seeds": 5, "widths": (1 / 16, 1 / 4, 1.0, 4.0), "samples_epochs": 200,
    },
)
# fmt: on

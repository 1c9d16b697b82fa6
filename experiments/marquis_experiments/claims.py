"""`claims`: what the Laplacian autoencoder's paper says without a table, and the ablation behind our default.

Parts (methods.md 6.3 and 8.6), on the 8x8 digits unless said otherwise; latent size 2, Adam, constant learning rate:

- `ablation`: noise fixed or learnt x prior fixed or learnt x temperature, both presets, a plain autoencoder
- `fashion`: the main rows of it on part of Fashion-MNIST, with MNIST as outliers
- `width`: does over-parametrisation help?
- `forgetting`: the rate B/N against the learning rate
- `samples`: one network per step against ten
- `backprop`: learning curves of Bayes by Backprop

A cell is one trained model; parts share cells. `claims_report` writes the page.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from marquis_experiments.cells import cell, write_json
from marquis_experiments.claims_cells import BATCH, LATENT, Job, Settings, evaluate, number_of_training_images, read
from marquis_experiments.claims_report import write_report

PARTS = ("ablation", "fashion", "width", "forgetting", "samples", "backprop")

SETTINGS = {
    "quick": Settings(
        1, 2, train=200, fashion=0, temperatures=(0.01,), widths=(1 / 16, 1.0), samples_epochs=2, draws=10
    ),
    "default": Settings(),
    "full": Settings(
        10,
        200,
        fashion=55000,
        fashion_epochs=60,
        fashion_seeds=5,
        test=10000,
        widths=(1 / 16, 1 / 4, 1.0, 4.0),
        samples_epochs=200,
    ),
}


def run(
    size: str = "default",
    out: str | Path = "runs/claims",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; seed by seed, so that a stopped run shows every part."""
    settings = SETTINGS[size]
    folder = Path(out) / size
    rows: list[dict[str, Any]] = []
    started = time.time()

    def save() -> Path:
        results = {"size": size, "settings": asdict(settings), "rows": rows}
        write_json(folder / "results.json", results)
        return write_report(folder, results)

    for job in jobs(settings):
        if rows and job.seed > rows[-1]["seed"]:
            save()  # a page of the seeds so far, should the rest be stopped
        row = one_cell(folder, settings, job, data_dir)
        rows.append({**row, "part": job.part, "label": job.label})
        words = f"error {row['error']:.2f}, log p {row['refitted_log_prob']:.1f}" if "error" in row else row["failed"]
        say(f"[{time.time() - started:5.0f} s] {job.part}, seed {job.seed}, {job.label}: {words}")
    return save()


def one_cell(folder: Path, settings: Settings, job: Job, data_dir: str | Path | None) -> dict[str, Any]:
    """The cell behind a row, from the folder if some part has computed it before."""
    images = {"train": settings.fashion, "test": settings.test} if job.data != "digits" else {"train": settings.train}
    described = {**asdict(job), **images, "latent": LATENT, "batch": BATCH, "draws": settings.draws}
    del described["part"], described["label"]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
    return cell(
        folder / "cells",
        f"{job.data}-{job.model}-s{job.seed}-{digest}",
        described,
        lambda: evaluate(job, settings, read(job, settings, data_dir)),
    )


# What is trained


def jobs(settings: Settings) -> list[Job]:
    """All rows, the first seed of every part first."""
    found: list[Job] = []
    for seed in range(settings.seeds):
        common: dict[str, Any] = {"seed": seed, "epochs": settings.epochs, "lr": settings.lr}
        found += [Job("ablation", *row[:2], **common, options=row[2]) for row in ablation(settings.temperatures)]
        found += [
            Job("width", f"{kind}, width {width:g}", model, **common, width=width, options=options)
            for width, (kind, model, options) in product(settings.widths, WIDTH_MODELS)
        ]
        found += [Job("forgetting", *row[:2], **common, options=row[2]) for row in forgetting(settings)]
        found += sampling(settings, seed)
        found += [Job("backprop", *row[:2], **{**common, **row[3]}, options=row[2]) for row in BACKPROP]
    if settings.fashion:
        for seed in range(settings.fashion_seeds):
            common = {"seed": seed, "epochs": settings.fashion_epochs, "lr": 1e-3, "data": "fashion-mnist"}
            found += [Job("fashion", *row[:2], **common, options=row[2]) for row in ablation((1.0, 0.01), main=True)]
    return sorted(found, key=lambda job: (job.seed, PARTS.index(job.part)))


Row = tuple[str, str, dict[str, Any]]
DEFAULT: dict[str, Any] = {"noise_precision": "learnt", "prior_precision": 1.0, "temperature": 0.01}
"""The shipped default, written out, so that a change of the library's does not change the meaning of stored cells."""


def ablation(temperatures: tuple[float, ...], main: bool = False) -> list[Row]:
    """Noise x prior x temperature, the presets, a plain autoencoder; `main`: what differs from the default in one."""
    rows: list[Row] = [("plain autoencoder", "plain", {})]
    for noise, prior, temperature in product((1.0, "learnt"), (1.0, "learnt"), temperatures):
        options = {"noise_precision": noise, "prior_precision": prior, "temperature": temperature}
        if main and sum(options[name] != DEFAULT[name] for name in options) > 1:
            continue
        words = [f"noise {'learnt' if noise == 'learnt' else 1}", f"prior {'learnt' if prior == 'learnt' else 1}"]
        rows.append((", ".join([*words, f"T = {temperature:g}"]), "laplacian", options))
    return [*rows, *((f'preset "{name}"', "laplacian", {"preset": name}) for name in ("paper", "paper-code"))]


WIDTH_MODELS: tuple[Row, ...] = (
    ("plain", "plain", {}),
    ("default", "laplacian", DEFAULT),
    ("paper-code", "laplacian", {"preset": "paper-code"}),
)


def forgetting(settings: Settings) -> list[Row]:
    """The rate α: B/N, the learning rate, and the latter with a temperature that makes up for the larger H."""
    ratio = BATCH / number_of_training_images(settings) / settings.lr
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
    """Networks per step: one, ten with as many steps, ten with a tenth of the steps (about equal cost)."""
    found = []
    for temperature, (samples, epochs) in product(
        (0.01, 1.0), ((1, settings.samples_epochs), (10, settings.samples_epochs), (10, settings.samples_epochs // 10))
    ):
        options = {**DEFAULT, "temperature": temperature, **({"samples": samples} if samples > 1 else {})}
        epochs = max(epochs, 1)
        label = f"{samples} per step, {epochs} epoch{'s' * (epochs > 1)}, T = {temperature:g}"
        found.append(Job("samples", label, "laplacian", seed, epochs, settings.lr, options=options))
    return found


BACKPROP: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("plain autoencoder", "plain", {}, {}),
    ("Laplacian, default", "laplacian", DEFAULT, {}),
    ("as published, rate 0.002", "mean-field", {}, {}),
    ("as published, rate 0.01", "mean-field", {}, {"lr": 1e-2}),
    ("noise precision 30", "mean-field", {"noise_precision": 30.0}, {}),
    ("noise precision 30, rate 0.01", "mean-field", {"noise_precision": 30.0}, {"lr": 1e-2}),
    ("noise precision 30, KL x 0.01", "mean-field", {"noise_precision": 30.0, "tempering": 0.01}, {}),
)
"""Bayes by Backprop with the published start; 30 is about the noise precision that the Laplacian default learns."""

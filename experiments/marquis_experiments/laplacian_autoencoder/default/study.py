"""The study `lae-default`: which Laplacian autoencoder should a user get who says nothing?

The protocol is `PROTOCOL.md`, written before any number. One cell is one training with everything that is evaluated
from it. The sets at the end stay closed until `choice.freeze` has written the choices of every criterion.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marquis.errors import MarquisError
from marquis.laplace import Laplace
from marquis.likelihoods import Gaussian, Heteroscedastic, Likelihood
from marquis.posterior import Posterior
from marquis.tasks.calibration import coverage
from marquis.tasks.ranking import auroc
from marquis_experiments.common.cells import write_json
from marquis_experiments.common.study import Run, Study
from marquis_experiments.laplacian_autoencoder.default import training as networks
from marquis_experiments.laplacian_autoencoder.default.candidates import (
    STRUCTURES,
    Candidate,
    Training,
    candidates_of,
    trainings,
)
from marquis_experiments.laplacian_autoencoder.default.choice import freeze, frozen
from marquis_experiments.laplacian_autoencoder.default.data import ADAPTED, ALL, SPLITS, Images, closed_sets, images
from marquis_experiments.laplacian_autoencoder.default.page import draw, values
from marquis_experiments.laplacian_autoencoder.default.reading import Reading, read

LEVEL, VARIES = 0.9, 0.05
KEYS = ("train", "validation", "epochs", "batch", "architecture", "width", "samples", "few_samples", "side", "clusters")


@dataclass(frozen=True)
class Cell:
    """One training on one data set and split with one seed."""

    seed: int
    data: str
    split: str
    training: Training

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.data}-{self.split}-{self.training.name}-s{self.seed}"


def cells(settings: Any) -> list[Cell]:
    """Return all cells in the order in which they run: one seed of everything first, adapted evidence last."""
    noises = [noise for noise in ("one", "predicted", "per output") if noise in settings.noises]
    ordinary = [
        Cell(seed, data, split, training)
        for seed in range(settings.seeds)
        for noise in noises
        for data in settings.data
        for training in trainings((noise,), settings.structures)
        for split in (ALL, *settings.splits)
    ]
    last = [replace(cell, split=ADAPTED) for cell in ordinary if cell.split == ALL and cell.seed == 0]
    return [*ordinary, *(last if settings.alternations else ())]


def measure(run: Run) -> dict[str, Any]:
    """Run the cells that are missing; when all are there, freeze the choices and open the closed sets."""
    every, rows = cells(run.settings), []
    for number, cell in enumerate(every, 1):
        started = time.time()
        rows.append(row(run, cell))
        if time.time() - started > 1:
            run.say(f"{number} of {len(every)}: {cell.name}{' FAILED' if 'failed' in rows[-1] else ''}")
    return collected(run, rows)


def collected(run: Run, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of the cells that were run; the closed sets only if no cell is missing."""
    results: dict[str, Any] = {"settings": run.settings.plain(), "cells": len(cells(run.settings)), "rows": rows}
    if len(rows) < results["cells"]:
        return results
    freeze(run.folder, results)
    return {**results, "opened": [opened(run, cell, results) for cell in cells(run.settings) if cell.split == ALL]}


def partial(run: Run) -> dict[str, Any]:
    """Return the results of the cells that were run so far, and run none."""
    known = (run.stored(cell.name, key_of(run, cell)) for cell in cells(run.settings))
    return {"size": run.size, **collected(run, [row for row in known if row is not None])}


def publish(out: str) -> None:
    """Write results and picture of the cells that were run so far, for `common.page --from OUT/default`."""
    run = STUDY.start(out=out)
    results = partial(run)
    write_json(run.folder / "results.json", results)
    draw(run.folder, results)


def key_of(run: Run, cell: Cell) -> dict[str, Any]:
    """Return all that a cell's result depends on."""
    key = {"seed": cell.seed, "data": cell.data, "split": cell.split, "training": cell.training.name}
    return {**key, **run.settings.only(*KEYS, "noises")}


def row(run: Run, cell: Cell) -> dict[str, Any]:
    """Return the result of a cell; a training that fails is a row with the reason."""

    def compute() -> dict[str, Any]:
        try:
            return evaluated(run, cell)
        except MarquisError as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    return run.cell(cell.name, key_of(run, cell), compute)


def evaluated(run: Run, cell: Cell) -> dict[str, Any]:
    """Train the network of a cell and evaluate all its candidates."""
    settings, x = run.settings, images(run, cell.data, cell.split)
    if cell.split == ADAPTED:
        return adapted(run, cell, x.train)
    trained = networks.train(cell.training, x.train, settings, cell.seed)
    if cell.split == ALL:
        networks.save(path_of(run, cell), trained)
    evidences, scores = {}, {}
    for group in posteriors(trained, x.train, cell.training, settings.noises):
        if cell.split == ALL:
            scores |= held_out(trained, group, x, settings)
            if group.laplace is not None:
                value = float(group.laplace.log_evidence()) / len(x.train)
                evidences |= {candidate.name: value for candidate in group.candidates}
        else:
            scores |= withheld(trained, group, x, settings)
    return {"seconds": trained.seconds, "scores": scores, "evidence": evidences}


def adapted(run: Run, cell: Cell, x: Tensor) -> dict[str, Any]:
    """Return the adapted evidence of the refitted posteriors of a network that was trained before."""
    trained = networks.load(path_of(run, replace(cell, split=ALL)), cell.training, run.settings, x.shape[1:])
    scores: dict[str, Any] = {}
    for group in posteriors(trained, x, cell.training, run.settings.noises):
        if group.laplace is not None and group.linear:
            tuned = group.laplace.tune(
                "adapted", max_iterations=run.settings.alternations, max_products=run.settings.products, store_bytes=0
            )
            if tuned.log_evidence is None:
                raise ValueError("adapted tuning reported no evidence")
            value = float(tuned.log_evidence) / len(x)
            scores |= {c.name: {"adapted": value} for c in group.candidates if c.temperature == 1}
    return {"scores": scores}


def path_of(run: Run, cell: Cell) -> Path:
    """Return the file of a trained network."""
    return run.folder / "networks" / f"{cell.name}.safetensors"


@dataclass(frozen=True, eq=False)
class Group:
    """Candidates that share a posterior and a predictive and differ in their temperature alone."""

    candidates: list[Candidate]
    posterior: Posterior
    likelihood: Likelihood
    laplace: Laplace | None
    linear: bool

    def read(self, trained: networks.Trained, x: Tensor, samples: int, noises: Any = None) -> list[Reading]:
        """Evaluate all candidates on some images."""
        temperatures = [candidate.temperature for candidate in self.candidates]
        return read(trained.model, self.posterior, self.likelihood, x, temperatures, self.linear, samples, noises)


def posteriors(trained: networks.Trained, x: Tensor, training: Training, noises: Sequence[str]) -> Iterator[Group]:
    """Yield the candidates of a training, grouped by posterior and predictive."""
    candidates = candidates_of(training, noises)
    for kind in dict.fromkeys((c.curvature, c.structure, c.noise) for c in candidates):
        curvature, structure, noise = kind
        if curvature == "training":
            assert trained.posterior is not None
            posterior, likelihood, laplace = trained.posterior, trained.likelihood, None
        else:
            laplace = networks.refitted(trained, x, structure, noise)
            posterior, likelihood = laplace.posterior, laplace.likelihood
        for predictive in ("sampled", "linearised"):
            members = [
                c for c in candidates if (c.curvature, c.structure, c.noise) == kind and c.predictive == predictive
            ]
            yield Group(members, posterior, likelihood, laplace, predictive == "linearised")


def held_out(trained: networks.Trained, group: Group, x: Images, settings: Any) -> dict[str, Any]:
    """Evaluate criterion 1 on validation images: log-density with noise per output for every candidate."""
    train = x.train[: settings.validation]
    noises: list[Tensor | None] = [None] * len(group.candidates)
    if not isinstance(group.likelihood, Heteroscedastic):
        noises = [r.squares.clamp_min(networks.LOWEST_VARIANCE).reciprocal() for r in group.read(trained, train, 10)]
        own = group.likelihood.noise_precision if isinstance(group.likelihood, Gaussian) else None
        if own is not None and own.ndim:
            noises = [own.clamp_max(1 / networks.LOWEST_VARIANCE)] * len(noises)
    started = time.process_time()
    readings = group.read(trained, x.validation, settings.samples, noises)
    seconds = (time.process_time() - started) / len(readings) * 1000 / len(x.validation)
    scores = {}
    for candidate, reading in zip(group.candidates, readings, strict=True):
        density = reading.log_prob if reading.log_prob_equal is None else reading.log_prob_equal
        scores[candidate.name] = {
            "density": float(density.mean()),
            "density_error": float(density.std() / len(density) ** 0.5),
            "own_density": float(reading.log_prob.mean()),
            "error": float((reading.mean - x.validation).square().flatten(1).sum(1).mean()),
            "coverage": covered(reading, x.validation, x.train),
            "seconds_per_1000": seconds,
        }
    return scores


def withheld(trained: networks.Trained, group: Group, x: Images, settings: Any) -> dict[str, Any]:
    """Evaluate criteria 2 and 3 on validation images of kept and of withheld clusters."""
    assert x.withheld is not None
    kept, others = x.validation[: settings.side], x.withheld[: settings.side]
    readings = group.read(trained, torch.cat([kept, others]), settings.few_samples)
    scores = {}
    for candidate, reading in zip(group.candidates, readings, strict=True):
        scores[candidate.name] = {
            "auroc": {name: auroc(s[: len(kept)], s[len(kept) :]) for name, s in reading.scores().items()},
            "coverage": covered(reading, others, x.train, slice(len(kept), None)),
        }
    return scores


def covered(reading: Reading, x: Tensor, train: Tensor, rows: slice = slice(None)) -> float:
    """Return the share of pixels that vary over the training images and are inside their 90 % interval."""
    where = train.std(0) > VARIES
    total = (reading.variance + reading.noise_variance)[rows]
    return coverage(reading.mean[rows][:, where], total[:, where], x[:, where], (LEVEL,))[LEVEL]


def opened(run: Run, cell: Cell, results: dict[str, Any]) -> dict[str, Any]:
    """Evaluate all candidates of a training on the closed sets; refused before the choices are frozen."""
    checksum = frozen(run.folder, results)["rows_sha256"]
    settings = run.settings

    def compute() -> dict[str, Any]:
        path = path_of(run, cell)
        if "failed" in row(run, cell):
            return {"scores": {}}
        x = images(run, cell.data, ALL)
        trained = networks.load(path, cell.training, settings, x.train.shape[1:])
        sets = closed_sets(cell.data, settings.opened, run.data_dir)
        inside = len(sets["test"])
        everything, scores = torch.cat(list(sets.values())), {}
        for group in posteriors(trained, x.train, cell.training, settings.noises):
            for candidate, reading in zip(
                group.candidates, group.read(trained, everything, settings.few_samples), strict=True
            ):
                areas: dict[str, dict[str, float]] = {name: {} for name in sets if name != "test"}
                for score, values_ in reading.scores().items():
                    for (name, _), part in zip(sets.items(), values_.split(inside), strict=True):
                        if name != "test":
                            areas[name][score] = auroc(values_[:inside], part)
                scores[candidate.name] = {
                    "auroc": areas,
                    "log_prob": float(reading.log_prob[:inside].mean()),
                    "coverage": covered(reading, sets["test"], x.train, slice(inside)),
                }
        return {"scores": scores}

    return run.cell(
        f"opened-{cell.name}", {**key_of(run, cell), "opened": settings.opened, "frozen": checksum}, compute
    )


STUDY = Study(
    "lae-default",
    Path(__file__).with_name("page.md"),
    measure,
    values,
    draw,
    default={
        "seeds": 3,
        "data": ("mnist", "fashion-mnist"),
        "noises": ("one", "per output", "predicted"),
        "structures": STRUCTURES,
        "splits": tuple(SPLITS),
        "train": 10_000,
        "validation": 2_000,
        "epochs": 20,
        "batch": 128,
        "architecture": "mnist-dense",
        "width": 1.0,
        "samples": 100,
        "few_samples": 30,
        "side": 500,
        "clusters": 10,
        "opened": 1_000,
        "alternations": 3,
        "products": 50,
    },
    quick={
        "seeds": 1,
        "data": ("digits",),
        "noises": ("one",),
        "structures": ("diagonal",),
        "splits": ("a",),
        "train": 300,
        "validation": 100,
        "epochs": 1,
        "batch": 64,
        "architecture": "dense",
        "width": 0.1,
        "samples": 5,
        "few_samples": 3,
        "side": 30,
        "opened": 40,
        "alternations": 0,
        "products": 2,
    },
    full={},
)

if __name__ == "__main__":
    publish(sys.argv[1])

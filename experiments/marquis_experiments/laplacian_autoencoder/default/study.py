"""The study `lae-default`: which Laplacian autoencoder should a user get who says nothing?

The protocol is `PROTOCOL.md`, written before any number. One cell is one training with everything that is evaluated
from it; which cells run is in `stages`. The sets at the end stay closed until `choice.freeze` has written the choices
of every criterion.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
    PRESENT,
    STRUCTURES,
    Candidate,
    Training,
    candidates_of,
)
from marquis_experiments.laplacian_autoencoder.default.choice import EVERY, freeze, frozen
from marquis_experiments.laplacian_autoencoder.default.data import ALL, SPLITS, Images, closed_sets, images
from marquis_experiments.laplacian_autoencoder.default.evaluation import Evaluation, evaluate_posterior
from marquis_experiments.laplacian_autoencoder.default.page import draw, values
from marquis_experiments.laplacian_autoencoder.default.stages import STAGES, Cell, finalists, planned

LEVEL, VARIES = 0.9, 0.05
OPENED = ("opened", "confirmation")
"""Lists of rows on the closed sets: of the study's network, and of the confirmation's."""
SIZE = ("train", "validation", "epochs", "batch", "architecture", "width", "clusters")
KEYS = (*SIZE, "held_out", "samples", "few_samples", "side")


def measure(run: Run) -> dict[str, Any]:
    """Run the cells that are missing, stage by stage; then freeze the choices and open the closed sets."""

    def fetch(cell: Cell) -> dict[str, Any]:
        started = time.time()
        result = row(run, cell)
        if time.time() - started > 1:
            run.say(f"{cell.name}{' FAILED' if 'failed' in result else ''}")
        return result

    return collected(run, fetch, adapted, opened)


def partial(run: Run) -> dict[str, Any]:
    """Return the results of the cells that were run so far, and run none."""

    def fetch(cell: Cell) -> dict[str, Any] | None:
        return run.stored(cell.name, key_of(run, cell), "rows")

    def fetch_adapted(run: Run, cell: Cell) -> dict[str, Any] | None:
        return run.stored(f"adapted-{cell.name}", adapted_key(run, cell), "adapted")

    def fetch_opened(run: Run, cell: Cell, results: dict[str, Any]) -> dict[str, Any] | None:
        among = OPENED[run.out.name == "confirmation"]
        return run.stored(f"opened-{cell.name}", opened_key(run, cell, results), among)

    return {"size": run.size, **collected(run, fetch, fetch_adapted, fetch_opened)}


def collected(
    run: Run,
    fetch: Callable[[Cell], dict[str, Any] | None],
    fetch_adapted: Callable[[Run, Cell], dict[str, Any] | None],
    fetch_opened: Callable[[Run, Cell, dict[str, Any]], dict[str, Any] | None],
) -> dict[str, Any]:
    """Return the results of the cells that `fetch` has; the closed sets only if no cell of the stages is missing."""
    settings, rows = run.settings, []
    results: dict[str, Any] = {"settings": settings.plain(), "cells": planned(settings), "rows": rows}
    for stage in STAGES:
        fetched = [fetch(cell) for cell in stage(settings, rows)]
        rows += [row for row in fetched if row is not None]
        if None in fetched:
            return results
    last = finalists(settings, rows)
    results["finalists"] = [training.name for training in last]
    if settings.alternations:
        seen = [fetch_adapted(run, Cell(0, d, settings.splits[0], t)) for t in last for d in settings.data]
        results["adapted"] = [row for row in seen if row is not None]
        if None in seen:
            return results
    results["frozen"] = freeze(run.folder, results)
    cells = [Cell(seed, data, ALL, t) for seed in range(settings.seeds) for t in last for data in settings.data]
    seen = [fetch_opened(run, cell, results) for cell in cells]
    results |= {"to_open": len(cells), "opened": [row for row in seen if row is not None]}
    if settings.confirmation and None not in seen:
        other = elsewhere(run, results)
        seen = [fetch_opened(other, cell, results) for cell in confirmed_cells(settings, results)]
        results["confirmation"] = [row for row in seen if row is not None]
    return results


def elsewhere(run: Run, results: dict[str, Any]) -> Run:
    """Return a run with the network of the confirmation, which has a folder of its own with the same frozen choices."""
    out = run.out / "confirmation"
    other = replace(
        run, settings=run.settings.replace(**run.settings.confirmation), out=out, cells=out / run.size / "cells"
    )
    freeze(other.folder, results)
    return other


def confirmed_cells(settings: Any, results: dict[str, Any]) -> list[Cell]:
    """Return the trainings of the frozen choices and of the present default, with the first seed."""
    chosen = {EVERY[choice["candidate"]].training for choice in results["frozen"]["choices"].values()}
    wanted = [t for t in finalists(settings, results["rows"]) if t in {*chosen, PRESENT.training}]
    return [Cell(0, settings.confirmation["data"], ALL, training) for training in wanted]


def publish(out: str) -> None:
    """Write results and picture of the cells that were run so far, for `common.page --from OUT/default`."""
    run = STUDY.start(out=out, go_on=True)
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

    return run.cell(cell.name, key_of(run, cell), compute, among="rows")


def evaluated(run: Run, cell: Cell) -> dict[str, Any]:
    """Train the network of a cell and evaluate all its candidates."""
    settings, x = run.settings, images(run, cell.data, cell.split)
    trained = network(run, cell, x)
    evidences, scores = {}, {}
    for group in posteriors(trained, x.train, cell.training, settings.noises):
        outside = withheld(trained, group, x, settings)
        for name, inside in held_out(trained, group, x, settings).items():
            scores[name] = {**inside, **outside[name]}
        if group.laplace is not None:
            value = float(group.laplace.log_evidence()) / len(x.train)
            evidences |= {candidate.name: value for candidate in group.candidates}
    return {"seconds": trained.seconds, "scores": scores, "evidence": evidences}


def network(run: Run, cell: Cell, x: Images) -> networks.Trained:
    """Return the network of a cell, trained once."""
    path = run.folder / "networks" / f"{cell.name}.safetensors"
    if not path.is_file():
        networks.save(path, networks.train(cell.training, x.train, run.settings, cell.seed))
    return networks.load(path, cell.training, run.settings, x.train.shape[1:])


def adapted_key(run: Run, cell: Cell) -> dict[str, Any]:
    """Return all that the adapted evidence depends on."""
    return {**key_of(run, cell), **run.settings.only("alternations", "products")}


def adapted(run: Run, cell: Cell) -> dict[str, Any]:
    """Return the adapted evidence of the refitted posteriors of a cell's network."""

    def compute() -> dict[str, Any]:
        x = images(run, cell.data, cell.split)
        scores: dict[str, Any] = {}
        for group in posteriors(network(run, cell, x), x.train, cell.training, run.settings.noises):
            if group.laplace is not None and group.linear:
                most = run.settings.alternations, run.settings.products
                tuned = group.laplace.tune("adapted", max_iterations=most[0], max_products=most[1], store_bytes=0)
                assert tuned.log_evidence is not None
                value = float(tuned.log_evidence) / len(x.train)
                scores |= {c.name: {"adapted": value} for c in group.candidates if c.temperature == 1}
        return {"scores": scores}

    return run.cell(f"adapted-{cell.name}", adapted_key(run, cell), compute, among="adapted")


@dataclass(frozen=True, eq=False)
class Group:
    """Hold candidates that share a posterior and a predictive and differ in their temperature alone."""

    candidates: list[Candidate]
    posterior: Posterior
    likelihood: Likelihood
    laplace: Laplace | None
    linear: bool

    def evaluate(self, trained: networks.Trained, x: Tensor, samples: int, noises: Any = None) -> list[Evaluation]:
        """Evaluate all candidates on some images."""
        temperatures = [candidate.temperature for candidate in self.candidates]
        return evaluate_posterior(
            trained.model, self.posterior, self.likelihood, x, temperatures, self.linear, samples, noises
        )


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
    train, validation = x.train[: settings.held_out], x.validation[: settings.held_out]
    noises: list[Tensor | None] = [None] * len(group.candidates)
    if not isinstance(group.likelihood, Heteroscedastic):
        noises = [
            e.squares.clamp_min(networks.LOWEST_VARIANCE).reciprocal() for e in group.evaluate(trained, train, 10)
        ]
        fixed_noise = group.likelihood.noise_precision if isinstance(group.likelihood, Gaussian) else None
        if fixed_noise is not None and fixed_noise.ndim:
            noises = [fixed_noise.clamp_max(1 / networks.LOWEST_VARIANCE)] * len(noises)
    started = time.process_time()
    outputs = group.evaluate(trained, validation, settings.samples, noises)
    seconds = (time.process_time() - started) / len(outputs) * 1000 / len(validation)
    scores = {}
    for candidate, evaluation in zip(group.candidates, outputs, strict=True):
        density = evaluation.log_prob if evaluation.log_prob_equal is None else evaluation.log_prob_equal
        scores[candidate.name] = {
            "density": float(density.mean()),
            "density_error": float(density.std() / len(density) ** 0.5),
            "own_density": float(evaluation.log_prob.mean()),
            "error": float((evaluation.mean - validation).square().flatten(1).sum(1).mean()),
            "coverage_inside": covered(evaluation, validation, x.train),
            "seconds_per_1000": seconds,
        }
    return scores


def withheld(trained: networks.Trained, group: Group, x: Images, settings: Any) -> dict[str, Any]:
    """Evaluate criteria 2 and 3 on validation images of kept and of withheld clusters."""
    assert x.withheld is not None
    inliers, others = x.validation[: settings.side], x.withheld[: settings.side]
    outputs = group.evaluate(trained, torch.cat([inliers, others]), settings.few_samples)
    scores = {}
    for candidate, evaluation in zip(group.candidates, outputs, strict=True):
        scores[candidate.name] = {
            "auroc": {name: auroc(s[: len(inliers)], s[len(inliers) :]) for name, s in evaluation.scores().items()},
            "coverage": covered(evaluation, others, x.train, slice(len(inliers), None)),
        }
    return scores


def covered(evaluation: Evaluation, x: Tensor, train: Tensor, rows: slice = slice(None)) -> float:
    """Return the share of pixels that vary over the training images and are inside their 90 % interval."""
    where = train.std(0) > VARIES
    total = (evaluation.variance + evaluation.noise_variance)[rows]
    return coverage(evaluation.mean[rows][:, where], total[:, where], x[:, where], (LEVEL,))[LEVEL]


def opened_key(run: Run, cell: Cell, results: dict[str, Any]) -> dict[str, Any]:
    """Return all that the result on the closed sets depends on; there is none before the choices are frozen."""
    checksum = frozen(run.folder, results)["rows_sha256"]
    return {**key_of(run, cell), "opened": run.settings.opened, "frozen": checksum}


def opened(run: Run, cell: Cell, results: dict[str, Any]) -> dict[str, Any]:
    """Train on all clusters and evaluate on the closed sets; refused before the choices are frozen."""
    key, settings = opened_key(run, cell, results), run.settings

    def compute() -> dict[str, Any]:
        x = images(run, cell.data, ALL)
        try:
            trained = network(run, cell, x)
        except MarquisError as error:
            return {"failed": f"{type(error).__name__}: {error}", "scores": {}}
        sets = closed_sets(cell.data, settings.opened, run.data_dir)
        test_rows, everything, scores = len(sets["test"]), torch.cat(list(sets.values())), {}
        for group in posteriors(trained, x.train, cell.training, settings.noises):
            outputs = group.evaluate(trained, everything, settings.few_samples)
            for candidate, evaluation in zip(group.candidates, outputs, strict=True):
                areas: dict[str, dict[str, float]] = {name: {} for name in sets if name != "test"}
                for score, values_ in evaluation.scores().items():
                    for name, part in zip(sets, values_.split(test_rows), strict=True):
                        if name != "test":
                            areas[name][score] = auroc(values_[:test_rows], part)
                scores[candidate.name] = {
                    "auroc": areas,
                    "log_prob": float(evaluation.log_prob[:test_rows].mean()),
                    "coverage": covered(evaluation, sets["test"], x.train, slice(test_rows)),
                }
        run.say(f"opened: {cell.name}")
        return {"seconds": trained.seconds, "scores": scores}

    return run.cell(f"opened-{cell.name}", key, compute, among=OPENED[run.out.name == "confirmation"])


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
        "held_out": 1_000,
        "samples": 30,
        "few_samples": 30,
        "side": 500,
        "clusters": 10,
        "opened": 500,
        "confirmation": {"data": "fashion-mnist", "architecture": "fashion-conv", "width": 0.25},
        "alternations": 0,  # 3 adds the adapted evidence, which needs hours: see PROTOCOL.md
        "products": 50,
    },
    quick={
        "seeds": 2,
        "data": ("digits",),
        "noises": ("one",),
        "structures": ("diagonal",),
        "splits": ("a", "b"),
        "train": 300,
        "validation": 100,
        "epochs": 1,
        "batch": 64,
        "architecture": "dense",
        "width": 0.1,
        "held_out": 50,
        "samples": 5,
        "few_samples": 3,
        "side": 30,
        "opened": 40,
        "confirmation": {"data": "digits", "architecture": "dense", "width": 0.2},
        "alternations": 0,
        "products": 2,
    },
    full={},
)

if __name__ == "__main__":
    publish(sys.argv[1])

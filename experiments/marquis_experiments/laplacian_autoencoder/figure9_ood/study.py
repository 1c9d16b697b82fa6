"""The study `ood`: out-of-distribution detection by autoencoders (LAE Figures 9 and 10; docs/method/tasks.md).

Fashion-MNIST against MNIST, the paper's pair, by the paper's convolutional network; MNIST against KMNIST and
Fashion-MNIST by the dense one. And what makes the variances of the Laplacian autoencoder separate them: its settings
one by one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.common.study import Run, Study
from marquis_experiments.laplacian_autoencoder.figure9_ood.page import draw, values
from marquis_experiments.laplacian_autoencoder.figure9_ood.rows import (
    AT_ONE,
    DEFAULT_TANGENT,
    FACTORED,
    POSTHOC_TANGENT,
    SHUFFLED,
    TANGENT,
    Job,
    Sizes,
    is_there,
    line,
    one_row,
    rows_of_one_model,
)
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, VARIANTS, Place, Recipe

PAPER_CODE, PAPER = "online-sketched-paper-code", "online-sketched-paper"
OTHERS = ("ae", "ae-variance", "vae", "dropout", "ensemble", "posthoc-sketched", "online-sketched")
MODELS = (*OTHERS, PAPER_CODE, PAPER)
MORE = ("vae-kl-0.001", "bbb", "online-variance")
WIDTHS = (0.25, 0.5)
"""Widths of the ablation's other networks, as factors on its width."""


@dataclass(frozen=True)
class Training:
    """Describe an in-distribution data set, its out-of-distribution sets, and the models that are trained.

    Attributes:
        recipe: Recipe of the models; its data are in-distribution.
        outside: Names of the out-of-distribution data sets.
        seeds: Trainings of every model.
        again: Models that are trained with more than one seed; None for all.
        models: Keys of the rows.
        ablation: Recipe of the ablation of the default's settings, or None.
        part: Name of this part of the page.
    """

    recipe: Recipe
    outside: tuple[str, ...]
    seeds: int
    again: tuple[str, ...] | None = None
    models: tuple[str, ...] = MODELS
    ablation: Recipe | None = None
    part: str = "main"


def measure(run: Run) -> dict[str, Any]:
    """Compute every row, on all cores except at quick size; an interrupted run reports the rows that it has."""
    sizes, place = run.settings.sizes, Place.of(run)
    groups = [group for training in run.settings.trainings for group in jobs(training)]
    everything = [job for group in groups for job in group]
    try:
        if run.size != "quick":
            missing = [group for group in groups if not all(is_there(place, sizes, job) for job in group)]
            run_in_processes(rows_of_one_model, [(place, sizes, group) for group in missing], run.say)
        for job in everything:
            run.say(line(one_row(place, sizes, job, run.say)))
    except KeyboardInterrupt:
        run.say("interrupted; the same command resumes")
    rows = [one_row(place, sizes, job) for job in everything if is_there(place, sizes, job)]
    settings = {"trainings": [asdict(training) for training in run.settings.trainings], "sizes": asdict(sizes)}
    return {"settings": settings, "wanted": len(everything), "rows": rows}


def jobs(training: Training) -> list[list[Job]]:
    """Return the rows of each trained model: all models with one seed first, then the ablation."""
    wanted = [
        (training.part, training.recipe, key, seed)
        for seed in range(training.seeds)
        for key in training.models
        if seed == 0 or training.again is None or key in training.again
    ]
    small = training.ablation
    if small is not None:
        changed = [f"online-sketched{suffix}" for suffix in ("", *VARIANTS)]
        changed += ["online-approximate", "online-kronecker", PAPER]
        wanted += [("ablation", small, key, 0) for key in changed]
        others = [replace(small, width=factor * small.width) for factor in WIDTHS]
        if small.architecture != "dense":
            others.append(replace(small, architecture="dense", width=1.0))
        wanted += [("network", other, "online-sketched", 0) for other in others]
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in (Job(*one, outside) for one in wanted for outside in training.outside):
        groups.setdefault((job.part, job.recipe, job.trained_as, job.seed), []).append(job)
    return list(groups.values())


FASHION = Recipe("fashion-mnist", 10_000, 20, "fashion-conv", 0.25)
LONG = replace(FASHION, images=55_000)
LONGER = replace(LONG, epochs=50)
# fmt: off
STUDY = Study(
    "ood", Path(__file__).with_name("page.md"), measure, values, draw, cells="",
    default={
        "trainings": (
            Training(
                FASHION, ("mnist",), 2, ("ae", "online-sketched", FACTORED, TANGENT),
                (*OTHERS, PAPER_CODE, FACTORED, POSTHOC_TANGENT, TANGENT), replace(FASHION, images=5_000, epochs=10),
            ),
            Training(TASK_RECIPES["default"], ("kmnist", "fashion-mnist"), 1, models=(*OTHERS, DEFAULT_TANGENT)),
        ),
        "sizes": Sizes(),
    },
    quick={
        "trainings": (Training(TASK_RECIPES["quick"], (SHUFFLED,), 1, ablation=TASK_RECIPES["quick"]),),
        "sizes": Sizes(60, 50, 8, 4),
    },
    full={
        "trainings": (
            Training(
                replace(LONG, epochs=60), ("mnist",), 3, ("ae", "online-sketched", FACTORED, POSTHOC_TANGENT),
                (*MODELS, *MORE, FACTORED, POSTHOC_TANGENT, DEFAULT_TANGENT, TANGENT),
                part="every model",
            ),
            Training(
                replace(LONGER, falling=5), ("mnist",), 3, ("ae", FACTORED, AT_ONE, TANGENT),
                ("ae", POSTHOC_TANGENT, FACTORED, AT_ONE, TANGENT), part="falling",
            ),
            Training(LONGER, ("mnist",), 3, models=("ae", FACTORED), part="longer"),
            Training(
                LONG, ("mnist",), 3, part="long",
                models=("ae", "posthoc-sketched", "online-kronecker", FACTORED, TANGENT),
            ),
            Training(
                Recipe("fashion-mnist", 55_000, 200, "fashion-conv", validation=5_000), ("mnist",), 5,
                models=(
                    *MODELS, "online-sketched-temperature-0.1", FACTORED, POSTHOC_TANGENT, DEFAULT_TANGENT, TANGENT,
                ),
                ablation=FASHION,
            ),
            Training(TASK_RECIPES["full"], ("kmnist", "fashion-mnist"), 5, models=(*MODELS, DEFAULT_TANGENT)),
        ),
        "sizes": Sizes(5000, 1000, ablation_samples=100),
    },
)
# fmt: on

"""`ood`: who notices that an image comes from elsewhere (LAE Figures 9 and 10; methods.md 8.1).

Two trainings and three pairs: Fashion-MNIST inside with MNIST outside, the paper's pair, by the paper's convolutional
network; MNIST inside with KMNIST and Fashion-MNIST outside, by the dense one. And what makes the variances of the
Laplacian autoencoder tell them apart: its settings one by one, and its layers one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from marquis_experiments.cells import timed_from_now, write_json
from marquis_experiments.common.parallel import run_in_processes as work_ahead
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, VARIANTS, Recipe
from marquis_experiments.ood_readings import (
    BOTH,
    BOTH_TANGENTS,
    DEFAULT_TANGENT,
    FACTORED,
    JOINED,
    JOINED_TANGENTS,
    POSTHOC_TANGENT,
    READ_WARMER,
    TANGENT,
)
from marquis_experiments.ood_report import write_report
from marquis_experiments.ood_rows import SHUFFLED, Job, Place, Sizes, is_there, line, one_row, rows_of_one_model
from marquis_experiments.trained import shared_networks

PAPER_CODE, PAPER = "online-sketched-paper-code", "online-sketched-paper"
"""The presets; at the default size the second one, which costs most and learns least, is in the ablation only."""
OTHERS = ("ae", "ae-variance", "vae", "dropout", "ensemble", "posthoc-sketched", "online-sketched")
MODELS = (*OTHERS, PAPER_CODE, PAPER)
WIDTHS = (0.25, 0.5)
"""Of the ablation's other networks, as factors on its own width."""


@dataclass(frozen=True)
class Training:
    """Data inside, data outside and how the models are trained.

    Attributes:
        recipe: Of the models; its data are the inside.
        outside: Names of the data sets outside.
        seeds: How many trainings of every model.
        again: Models that are trained with more than one seed; None for all.
        models: Those of Figure 9 and more.
        ablation: Of the default's settings, or None.
        part: What this is called on the page where it is not the main thing.
    """

    recipe: Recipe
    outside: tuple[str, ...]
    seeds: int
    again: tuple[str, ...] | None = None
    models: tuple[str, ...] = MODELS
    ablation: Recipe | None = None
    part: str = "main"


@dataclass(frozen=True)
class Settings:
    """How large the experiment is: what is trained, one after the other, and how its rows are measured."""

    trainings: tuple[Training, ...]
    sizes: Sizes = field(default_factory=Sizes)


FASHION = Recipe("fashion-mnist", 10_000, 20, "fashion-conv", 0.25)
LONG = Recipe("fashion-mnist", 55_000, 20, "fashion-conv", 0.25)
LONGER = replace(LONG, epochs=50)
WARM = "online-sketched-temperature-0.1"
LONG_MODELS = ("ae", "posthoc-sketched", "online-kronecker", FACTORED, TANGENT)
SETTINGS = {
    "quick": Settings(
        (Training(TASK_RECIPES["quick"], (SHUFFLED,), 1, ablation=TASK_RECIPES["quick"]),), Sizes(60, 50, 8, 4, 4)
    ),
    "default": Settings(
        (
            Training(
                *(FASHION, ("mnist",), 2, ("ae", "online-sketched", FACTORED, TANGENT)),
                models=(*OTHERS, PAPER_CODE, FACTORED, POSTHOC_TANGENT, TANGENT, BOTH, BOTH_TANGENTS),
                ablation=replace(FASHION, images=5_000, epochs=10),
            ),
            Training(TASK_RECIPES["default"], ("kmnist", "fashion-mnist"), 1, models=(*OTHERS, DEFAULT_TANGENT)),
        )
    ),
    "full": Settings(
        (
            Training(
                *(replace(LONGER, falling=5), ("mnist",), 3, ("ae", FACTORED, READ_WARMER, TANGENT)),
                models=("ae", POSTHOC_TANGENT, FACTORED, READ_WARMER, TANGENT, JOINED, JOINED_TANGENTS),
                part="falling",
            ),
            Training(LONGER, ("mnist",), 3, models=("ae", FACTORED), part="longer"),
            Training(LONG, ("mnist",), 3, models=LONG_MODELS, part="long"),
            Training(
                Recipe("fashion-mnist", 55_000, 200, "fashion-conv", validation=5_000),
                ("mnist",),
                5,
                models=(*MODELS, WARM, FACTORED, POSTHOC_TANGENT, DEFAULT_TANGENT, TANGENT),
                ablation=FASHION,
            ),
            Training(TASK_RECIPES["full"], ("kmnist", "fashion-mnist"), 5, models=(*MODELS, DEFAULT_TANGENT)),
        ),
        Sizes(5000, 1000, ablation_samples=100, layer_samples=100, layer_rows=1000),
    ),
}


def run(
    size: str = "default",
    out: str | Path = "runs/ood",
    data_dir: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Run what is missing and write the page; models are kept, and shared with other experiments."""
    settings = SETTINGS[size]
    sizes, place = settings.sizes, Place(Path(out) / size, shared_networks(out), data_dir)
    timed = timed_from_now(say)
    models = [group for training in settings.trainings for group in jobs(training)]
    everything = [job for group in models for job in group]
    try:
        if size != "quick":
            missing = [group for group in models if not all(is_there(place, sizes, job) for job in group)]
            work_ahead(rows_of_one_model, [(place, sizes, group) for group in missing], timed)
        for job in everything:
            timed(line(one_row(place, sizes, job, timed)))
    finally:  # a run that is stopped shows what it has
        rows = [one_row(place, sizes, job) for job in everything if is_there(place, sizes, job)]
        results = {"size": size, "settings": asdict(settings), "wanted": len(everything), "rows": rows}
        write_json(place.folder / "results.json", results)
        page = write_report(place.folder, results)
    return page


def jobs(training: Training) -> list[list[Job]]:
    """The rows of each trained model: all models with one seed first, then the ablation.

    Rows of several trainings together come last, so that nobody else is at these trainings any more.
    """
    wanted = [
        (training.part, training.recipe, key, seed)
        for seed in range(training.seeds)
        for key in training.models
        if seed == 0 or training.again is None or key in training.again
    ]
    small = training.ablation
    if small is not None:
        changed = [f"online-sketched{end}" for end in ("", *VARIANTS)]
        changed += ["online-approximate", "online-kronecker", PAPER]
        wanted += [("ablation", small, key, 0) for key in changed]
        others = [replace(small, width=factor * small.width) for factor in WIDTHS]
        if small.architecture != "dense":
            others.append(replace(small, architecture="dense", width=1.0))
        wanted += [("network", other, "online-sketched", 0) for other in others]
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in (Job(*one, outside) for one in wanted for outside in training.outside):
        groups.setdefault((job.part, job.recipe, job.trained_as, job.seed, len(job.singles)), []).append(job)
    return sorted(groups.values(), key=lambda group: len(group[0].singles))

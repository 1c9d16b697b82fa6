"""`tomography`: how good images from few angles are, and how honest their error bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marquis_experiments.common.parallel import run_in_processes
from marquis_experiments.common.study import Run, Study
from marquis_experiments.tomography.angles import one_design
from marquis_experiments.tomography.characters import EXACT, STEPS, TV_WEIGHTS, one_character
from marquis_experiments.tomography.pictures import draw
from marquis_experiments.tomography.problems import NAMES, one_problem
from marquis_experiments.tomography.slices import one_slice, slice_name
from marquis_experiments.tomography.tables import values

MAIN = (20, 0.05)
"""Angles and noise of the main table."""

PROBLEM_IMAGES = (3, 4, 5)
"""KMNIST test images of the other linear problems."""

TRAININGS: dict[str, dict[str, Any]] = {
    "base": {"steps": 2500, "start": "fbp", "stop_at": None, "tv_factor": 1.0},
    "long": {"steps": 7500, "start": "fbp", "stop_at": None, "tv_factor": 1.0},
    "tv-start": {"steps": 2500, "start": "tv", "stop_at": None, "tv_factor": 1.0},
    "more-tv": {"steps": 2500, "start": "fbp", "stop_at": None, "tv_factor": 10.0},
    "short": {"steps": 1500, "start": "fbp", "stop_at": None, "tv_factor": 1.0, "tv_factors": [3.0, 10.0]},
}
"""Ways of training on a CT slice; the posterior is computed for the first."""


SLICES = [(128, "base", 16, True), (128, "long", 16, True), (128, "tv-start", 0, False), (128, "more-tv", 0, False)]
"""Pixels, training, posterior samples, and whether to sample with and without the TV-PredCP prior."""


def character_settings(run: Run, angles: int, noise: float, image: int, part: str) -> dict[str, Any]:
    """Return all that one character's cell depends on."""
    quick = run.size == "quick"
    steps = run.settings.steps or STEPS[angles, noise]
    common = {"angles": angles, "noise": noise, "image": image}
    if part == "defaults":
        return {**common, "rows": ["evidence", "predcp"]}
    training = {**common, "tv": TV_WEIGHTS[angles, noise], "steps": steps, "channels": run.settings.channels}
    if part == "stop":
        return {**training, "steps": 2500}
    if part == "ensemble":
        return {**training, "members": run.settings.members}
    exact = ["block", "predcp", "tangent"] if quick else list(EXACT)
    return {**training, "exact": exact, "paper": not quick, "dropout": not quick}


def character_parts(run: Run, angles: int, noise: float, image: int) -> list[str]:
    """Return the parts of the comparison that are run for one character."""
    parts = ["linearised"]
    if run.size == "quick":
        return parts
    if image < run.settings.stop_images:
        parts.append("stop")
    if image < run.settings.default_images:
        parts.append("defaults")
    if (angles, noise) == MAIN and image < run.settings.ensemble_images:
        parts.append("ensemble")
    return parts


def jobs_of(run: Run) -> list[tuple[Any, ...]]:
    """Return one job per cell, those of the main table first."""
    cells, arrays = str(run.cells), str(run.folder / "arrays")
    data_dir = None if run.data_dir is None else str(run.data_dir)
    jobs: list[tuple[Any, ...]] = []
    order = ("linearised", "defaults", "stop", "ensemble")
    for angles, noise, images in run.settings.characters:
        for image in range(images):
            for part in character_parts(run, angles, noise, image):
                settings = character_settings(run, angles, noise, image, part)
                jobs.append((one_character, part, cells, arrays, settings, data_dir))
    jobs.sort(key=lambda job: order.index(job[1]))
    for size, training, samples, both in run.settings.slices:
        settings = {"size": size, "training": training, **TRAININGS[training], "samples": samples, "both": both}
        settings |= {"angles": 60 if size <= 128 else 120, "rank": 300 if training == "short" else 350}
        jobs.append((one_slice, cells, arrays, settings, data_dir))
        if (size, training) in ((128, "base"), (128, "long")):
            others = [{**settings, "slice": index, "samples": 0, "both": False} for index in run.settings.other_slices]
            jobs += [(one_slice, cells, arrays, other, data_dir) for other in others]
    for name in run.settings.problems:
        for image in PROBLEM_IMAGES:
            jobs.append((one_problem, cells, arrays, {"problem": name, "image": image}, data_dir))
    jobs += [(one_design, cells, {"image": image}) for image in range(run.settings.designs)]
    return jobs


def compute(work: Any, *arguments: Any) -> str:
    """Call a job's function: one name for all of them, for worker processes."""
    return work(*arguments)


def measure(run: Run) -> dict[str, Any]:
    """Compute all cells, in one process per core, and collect them."""
    jobs = jobs_of(run)
    run_in_processes(compute, jobs, run.say, None if run.settings.workers == 0 else run.settings.workers)
    for job in jobs:  # what is missing is computed here: everything, with one process
        run.say(compute(*job))
    return collect(run)


def collect(run: Run) -> dict[str, Any]:
    """Return all finished cells by kind."""
    results: dict[str, Any] = {"settings": run.settings.plain()}
    kinds = ("linearised", "defaults", "stop", "ensemble", "ct", "problem", "design")
    for kind in kinds:
        results[kind] = []
    for job in jobs_of(run):
        work = job[0]
        if work is one_character:
            part, settings = job[1], job[4]
            name = f"{part}-a{settings['angles']}-n{round(100 * settings['noise'])}-i{settings['image']}"
            kind = part
        elif work is one_slice:
            settings = job[3]
            kind, name = "ct", slice_name(settings)
        elif work is one_problem:
            settings = job[3]
            kind, name = "problem", f"problem-{settings['problem'].replace(' ', '-')}-i{settings['image']}"
        else:
            settings = job[2]
            kind, name = "design", f"design-i{settings['image']}"
        row = run.stored(name, settings)
        if row is not None and not row.get("missing"):
            results[kind].append(row)
    return results


# fmt: off
STUDY = Study(
    "tomography", Path(__file__).with_name("study.md"), measure, values, draw,
    default={
        "characters": [(20, 0.05, 10), (5, 0.1, 10)], "steps": None, "channels": 16, "members": 5,
        "ensemble_images": 10, "stop_images": 4, "default_images": 10, "slices": SLICES, "other_slices": [],
        "problems": list(NAMES),
        "designs": 20, "workers": 0,
    },
    quick={
        "characters": [(20, 0.05, 1)], "steps": 800, "channels": 8, "slices": [], "problems": [], "designs": 0,
        "workers": 1,
    },
    full={
        "characters": [(angles, noise, 50) for noise in (0.05, 0.1) for angles in (5, 10, 20, 30)],
        "slices": [*SLICES, (256, "short", 8, False)], "other_slices": [33, 66],
    },
)
# fmt: on

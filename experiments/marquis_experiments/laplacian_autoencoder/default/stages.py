"""Stages of the study `lae-default`: which trainings run with which seeds, given the rows of earlier stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from marquis_experiments.laplacian_autoencoder.default.candidates import PRESENT, Training, candidates_of, trainings
from marquis_experiments.laplacian_autoencoder.default.choice import COMBINED, criteria_values, mean_ranks

ONLINE_KEPT, FINALISTS = 2, 4
"""Online trainings that get the other noises, and trainings that get all seeds."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """Describe one training on one data set and split with one seed."""

    seed: int
    data: str
    split: str
    training: Training

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.data}-{self.split}-{self.training.name}-s{self.seed}"


def first(settings: Any, rows: Rows) -> list[Cell]:
    """Return plain training and all online trainings with one noise precision, first seed."""
    return _cells(settings, trainings(("one",), settings.structures), (0,))


def second(settings: Any, rows: Rows) -> list[Cell]:
    """Return the other noises for the best online trainings and for plain training, first seed."""
    others = [noise for noise in settings.noises if noise != "one"]
    best = [training for training in ranked(settings, rows) if training.structure is not None][:ONLINE_KEPT]
    more = [Training(noise, t.structure, t.temperature) for t in best for noise in others]
    return _cells(settings, [*([Training("predicted")] if "predicted" in others else []), *more], (0,))


def third(settings: Any, rows: Rows) -> list[Cell]:
    """Return the finalists with the other seeds."""
    return _cells(settings, finalists(settings, rows), range(1, settings.seeds))


STAGES: tuple[Callable[[Any, Rows], list[Cell]], ...] = (first, second, third)


def finalists(settings: Any, rows: Rows) -> list[Training]:
    """Return the trainings of the last stage: the present default's, plain, and the best of the others."""
    sure = [PRESENT.training, Training("one")]
    of_first_seed = [row for row in rows if row["seed"] == 0]
    others = [training for training in ranked(settings, of_first_seed) if training not in sure]
    return [*sure, *others[: FINALISTS - len(sure)]]


def ranked(settings: Any, rows: Rows) -> list[Training]:
    """Return the trainings of these rows, the one with the best candidate by combined rank first."""
    every = criteria_values({"rows": rows})
    ranks = [mean_ranks(every[criterion]) for criterion in COMBINED]
    names = {row["training"] for row in rows}
    known = [training for training in trainings(settings.noises, settings.structures) if training.name in names]

    def best(training: Training) -> float:
        candidates = (candidate.name for candidate in candidates_of(training, settings.noises))
        return min((mean(r[c] for r in ranks) for c in candidates if all(c in r for r in ranks)), default=float("inf"))

    return sorted(known, key=best)


def planned(settings: Any) -> int:
    """Return the number of cells of all stages."""
    online = len(trainings(("one",), settings.structures)) - 1
    others = len([noise for noise in settings.noises if noise != "one"])
    of_second = min(ONLINE_KEPT, online) * others + ("predicted" in settings.noises)
    of_third = min(FINALISTS, 1 + online + of_second) * (settings.seeds - 1)
    return len(settings.data) * (1 + online + of_second + of_third)


def _cells(settings: Any, wanted: Sequence[Training], seeds: Sequence[int]) -> list[Cell]:
    """Return cells seed by seed, cheap trainings first, each on all data sets; a seed has its own withheld clusters."""
    return [
        Cell(seed, data, settings.splits[seed % len(settings.splits)], training)
        for seed in seeds
        for training in wanted
        for data in settings.data
    ]

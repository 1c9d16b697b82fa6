"""Candidates of the study `lae-default`, and the trainings that they are evaluated from (`PROTOCOL.md`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STRUCTURES = ("diagonal", "kronecker")
NOISES = ("one", "per output", "predicted")
TRAINED_AT = (0.01, 0.1, 1.0)
"""Posterior temperatures of online training."""
POSTHOC_AT = (1.0, 0.1)
"""Temperatures at which a post-hoc posterior is evaluated."""


@dataclass(frozen=True)
class Training:
    """Describe one training: what the weights of a network depend on, besides data, split and seed.

    Attributes:
        noise: "one" also serves "per output" where the training is plain.
        structure: Structure of the online curvature; None for a plain training.
        temperature: Posterior temperature while training online; None for a plain training.
    """

    noise: str
    structure: str | None = None
    temperature: float | None = None

    @property
    def name(self) -> str:
        """Return a name for files and tables."""
        kind = "plain" if self.structure is None else f"online-{self.structure}-{self.temperature:g}"
        return f"{kind}-{self.noise.replace(' ', '-')}"


@dataclass(frozen=True)
class Candidate:
    """Describe one candidate: a training, and how its posterior is evaluated.

    Attributes:
        training: Which network.
        noise: Noise of the posterior.
        structure: Structure of the curvature.
        temperature: Posterior temperature when predicting.
        predictive: "sampled" or "linearised".
        curvature: "training", or "refitted" in one pass at the final mean, as every post-hoc posterior is.
    """

    training: Training
    noise: str
    structure: str
    temperature: float
    predictive: str
    curvature: str

    @property
    def name(self) -> str:
        """Return the candidate as a row of a table has it."""
        trained = self.training.temperature
        kind = "post-hoc" if trained is None else f"online T={trained:g}, {self.curvature}"
        return f"{kind}, {self.structure}, {self.predictive} at T={self.temperature:g}, noise {self.noise}"


def trainings(noises: Sequence[str] = NOISES, structures: Sequence[str] = STRUCTURES) -> list[Training]:
    """Return the trainings of one data set, split and seed, cheap ones first and noise per output last."""
    plain = [Training(noise) for noise in ("one", "predicted") if noise in noises]
    online = [
        Training(noise, structure, temperature)
        for noise in ("one", "predicted", "per output")
        if noise in noises
        for structure in structures
        for temperature in TRAINED_AT
    ]
    return [*plain, *online]


def candidates_of(training: Training, noises: Sequence[str] = NOISES) -> list[Candidate]:
    """Return the candidates that are evaluated from one training."""
    if training.structure is None:
        kinds = ("one", "per output") if training.noise == "one" else (training.noise,)
        return [
            Candidate(training, noise, structure, temperature, predictive, "refitted")
            for noise in kinds
            if noise in noises
            for structure in STRUCTURES
            for predictive in ("sampled", "linearised")
            for temperature in POSTHOC_AT
        ]
    assert training.temperature is not None
    temperatures = dict.fromkeys((training.temperature, 1.0))
    return [
        Candidate(training, training.noise, training.structure, temperature, predictive, curvature)
        for curvature in ("training", "refitted")
        for predictive in ("sampled", "linearised")
        for temperature in temperatures
        if not (curvature == "refitted" and predictive == "linearised" and temperature < 1)
    ]


PRESENT = Candidate(Training("one", "diagonal", 0.01), "one", "diagonal", 0.01, "sampled", "training")
"""The default at the time of the protocol."""


def by_name(noises: Sequence[str] = NOISES) -> dict[str, Candidate]:
    """Return all candidates by their names."""
    return {c.name: c for training in trainings(noises) for c in candidates_of(training, noises)}


def options_of(training: Training) -> dict[str, Any]:
    """Return the options of the online learner for a training."""
    options: dict[str, Any] = {"structure": training.structure, "posterior_temperature": training.temperature}
    options |= {"every": 20} if training.structure == "kronecker" else {}
    return options | ({"noise_groups": "output"} if training.noise == "per output" else {})

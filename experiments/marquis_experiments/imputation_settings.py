"""How large `imputation` is, and which models and procedures it compares."""

from __future__ import annotations

from dataclasses import dataclass

from marquis_experiments.imputation_procedures import PUBLISHED, TRAINING, WEIGHTED, ClassifierSettings, Procedure
from marquis_experiments.laplacian_autoencoder.models import TASK_RECIPES, Recipe

KEYS = (
    *("ae", "vae", "dropout", "ensemble", "posthoc-sketched"),
    *("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code", "online-sketched-paper"),
)
JUDGED = ("online-sketched", "online-sketched-temperature-0.1", "online-sketched-paper-code")
"""Rows that are held against the paper's online model."""
EXPONENTS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
"""The noise of some models is learnt and small, that of others is one: what suits them differs by as much."""
OPTIONS = (
    PUBLISHED,
    *(Procedure(rounds=rounds) for rounds in (2, 5, 10)),
    Procedure("mean image"),
    Procedure("black"),
    Procedure("noise", 10, 1),
    *(Procedure(TRAINING, 10, 1, rounds) for rounds in (1, 2, 5)),
    *(Procedure(WEIGHTED, 30, exponent=exponent, donors=2000, networks=2) for exponent in EXPONENTS),
)
"""What is tried on validation images, for every model."""
WAYS = {"own": False, "weighted": True}
"""What is chosen from, by itself, and whether it has weights."""
CLASSIFIER = ClassifierSettings()


@dataclass(frozen=True)
class Settings:
    """How large the experiment is.

    Attributes:
        recipe: Of the autoencoders.
        classifier: Of the classifiers.
        keys: Which autoencoders.
        options: Procedures to choose from.
        seeds: Trainings of every autoencoder.
        validation: Images that the procedure is chosen on; right after the classifier's training rows.
        test: Images that are reported, the first of the test images.
        all_test: Images that weighted codes of some models are reported on besides.
        widely: These models: those that are held against the paper's numbers.
        generated: Starts of the fully masked case.
        rounds: Of the fully masked case.
        neighbours: Of the reference without a network.
    """

    recipe: Recipe
    classifier: ClassifierSettings = CLASSIFIER
    keys: tuple[str, ...] = KEYS
    options: tuple[Procedure, ...] = OPTIONS
    seeds: int = 3
    validation: int = 400
    test: int = 2000
    all_test: int = 10_000
    widely: tuple[str, ...] = JUDGED
    generated: int = 100
    rounds: tuple[int, ...] = (1, 10)
    neighbours: int = 10


SETTINGS = {
    "quick": Settings(
        TASK_RECIPES["quick"],
        ClassifierSettings(800, 8, (8, 8, 16), (32, 32), 200, 2, batch=32),
        ("ae", "vae", "online-sketched"),
        (
            *(PUBLISHED, Procedure(rounds=2), Procedure(TRAINING, 4, 1, 1)),
            *(Procedure(WEIGHTED, 4, exponent=exponent, donors=100, networks=2) for exponent in (0.1, 1.0)),
        ),
        seeds=1,
        validation=60,
        test=80,
        all_test=120,
        generated=8,
        rounds=(1, 2),
        neighbours=4,
    ),
    "default": Settings(TASK_RECIPES["default"]),
    "full": Settings(TASK_RECIPES["full"], seeds=5, validation=5000, test=10_000, generated=1000),
}
